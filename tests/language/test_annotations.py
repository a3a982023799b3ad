"""Hints of TileLang's kernels that mean something on CUDA only."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand, InvalidValue, TileWarning


def test_hints_for_cuda_change_no_result():
    @T.prim_func
    def main(A: T.Tensor((16,), "float32")):
        with T.Kernel(1) as _:
            T.annotate_pass_configs({tvmtile.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
            T.annotate_min_blocks_per_sm(2)
            T.annotate_restrict_buffers(A)
            T.disable_warp_group_reg_alloc()
            T.no_set_max_nreg()
            T.pdl_sync()
            for i in T.Parallel(16):
                A[i] = A[i] + 1
            T.pdl_trigger()

    a = torch.zeros(16)
    tvmtile.compile(main)(a)
    assert torch.equal(a, torch.ones(16))


def annotated(annotate):
    @T.prim_func
    def main(A: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            annotate(A)
            for i in T.Parallel(128):
                A[bx * 128 + i] = A[bx * 128 + i] + 1

    return main


def source_for(arch, annotate):
    kernel = tvmtile.compile(annotated(annotate), target={"kind": "cuda", "arch": arch})
    assert kernel.cubin
    return kernel.get_kernel_source()


def test_the_least_number_of_blocks_stands_in_the_launch_bounds():
    source = source_for("sm_80", lambda A: T.annotate_min_blocks_per_sm(2))
    assert "__launch_bounds__(128, 2)" in source
    with pytest.raises(InvalidOperand, match="T.annotate_min_blocks_per_sm: n=0"):
        annotated(lambda A: T.annotate_min_blocks_per_sm(0))


def launch_bounds(blocks, body, arch="sm_90a"):
    @T.prim_func
    def main(A: T.Tensor((blocks * 64, 64), "float16")):
        with T.Kernel(blocks, threads=128) as bx:
            body(A, bx)

    source = tvmtile.compile(main, target={"kind": "cuda", "arch": arch}).get_kernel_source()
    return re.findall(r"__launch_bounds__\(([^)]*)\)", source)[-1]


@T.macro
def through_shared(A, bx):
    tile = T.alloc_shared((64, 64), "float16")
    T.copy(A[bx * 64, 0], tile)
    for i, j in T.Parallel(64, 64):
        A[bx * 64 + i, j] = tile[j, i]


@T.macro
def in_registers(A, bx):
    for i, j in T.Parallel(64, 64):
        A[bx * 64 + i, j] = A[bx * 64 + i, j] * 2


@T.macro
def product(A, bx):
    tile = T.alloc_shared((64, 64), "float16")
    sums = T.alloc_fragment((64, 64), "float32")
    T.copy(A[bx * 64, 0], tile)
    T.clear(sums)
    T.gemm(tile, tile, sums)
    T.copy(sums, A[bx * 64, 0])


def test_threads_have_all_registers_where_more_blocks_at_once_would_gain_nothing():
    assert launch_bounds(132, through_shared) == "128, 1"
    assert launch_bounds(133, through_shared) == "128"
    assert launch_bounds(132, in_registers) == "128, 1"
    assert launch_bounds(133, in_registers) == "128"
    assert launch_bounds(4, product) == "128"
    assert launch_bounds(4, product, "sm_80") == "128"


def test_what_is_said_of_a_launch_hides_none_of_its_threads():
    program = annotated(lambda A: T.annotate_min_blocks_per_sm(2))
    (used,) = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_80"}).resources()
    assert used.threads == 128


def test_dependent_launches_are_instructions_from_hopper_on():
    def both(A):
        T.pdl_sync()
        T.pdl_trigger()

    source = source_for("sm_90a", both)
    assert "griddepcontrol.wait;" in source
    assert "griddepcontrol.launch_dependents;" in source
    assert "griddepcontrol" not in source_for("sm_80", both)


def test_what_has_no_effect_says_so():
    with pytest.warns(TileWarning, match="tl.device_compile_flags=.* has no effect"):
        annotated(lambda A: T.annotate_compile_flags(["-O3"]))
    with pytest.warns(TileWarning, match="T.annotate_l2_hit_ratio has no effect"):
        annotated(lambda A: T.annotate_l2_hit_ratio({A: 0.8}))
    options = {tvmtile.PassConfigKey.TL_CONFIG_INDEX_BITWIDTH: 32}
    with pytest.warns(TileWarning, match="tl.config_index_bitwidth=32 has no effect"):
        annotated(lambda A: T.annotate_pass_configs(options))


def test_options_of_one_kernel_act_on_it():
    fast = {tvmtile.PassConfigKey.TL_ENABLE_FAST_MATH: True}
    exact = {tvmtile.PassConfigKey.TL_ENABLE_FAST_MATH: False}
    assert annotated(lambda A: T.annotate_pass_configs(fast)).attrs["tvmtile.fast_math"]
    assert "tvmtile.fast_math" not in annotated(lambda A: T.annotate_pass_configs(exact)).attrs
    with pytest.raises(InvalidValue, match="did you mean 'tl.enable_fast_math'"):
        annotated(lambda A: T.annotate_pass_configs({"tl.enable_fastmath": True}))
    with pytest.warns(TileWarning, match=r"tirx\.disable_vectorize has no effect: .*pass_configs="):
        annotated(lambda A: T.annotate_pass_configs({"tirx.disable_vectorize": True}))


def test_a_kernel_that_asks_for_no_tensor_maps_has_none():
    @T.prim_func
    def main(A: T.Tensor((512, 64), "float16"), C: T.Tensor((512, 64), "float16")):
        with T.Kernel(4, threads=128) as bx:
            T.annotate_pass_configs({tvmtile.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
            tile = T.alloc_shared((128, 64), "float16")
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k * 128, 0], tile)
                T.copy(tile, C[k * 128, 0])

    source = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_90a"}).get_kernel_source()
    assert "cp.async.bulk.tensor" not in source


def on_tiles(use):
    """A program with two tiles of 16 x 16, a row, and one use of them."""

    @T.prim_func
    def main(A: T.Tensor((16, 16), "float16")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            row = T.alloc_fragment((16,), "float32")
            T.clear(s)
            T.clear(c)
            T.clear(row)
            use(A, s, c, row)

    return main


def a_parallel_loop(c, **hints):
    loop = T.Parallel(16, 16, **hints)
    i, j = loop.__enter__()
    T.buffer_store(c, T.float32(0), [i, j])
    loop.__exit__(None, None, None)


NOTES = {"any": 1}
WITHOUT_EFFECT = {
    "T.gemm: mbar": lambda A, s, c, row: T.gemm(s, s, c, mbar=row),
    "T.gemm: annotations": lambda A, s, c, row: T.gemm(s, s, c, annotations=NOTES),
    "T.copy: coalesced_width": lambda A, s, c, row: T.copy(A, s, coalesced_width=4),
    "T.copy: prefer_instruction": lambda A, s, c, row: T.copy(A, s, prefer_instruction="cp_async"),
    "T.copy: loop_layout": lambda A, s, c, row: T.copy(A, s, loop_layout=row),
    "T.copy: any": lambda A, s, c, row: T.copy(A, s, annotations=NOTES),
    "T.fill: annotations": lambda A, s, c, row: T.fill(s, 1, NOTES),
    "T.transpose: annotations": lambda A, s, c, row: T.transpose(A, s, NOTES),
    "T.cumsum: annotations": lambda A, s, c, row: T.cumsum(s, annotations=NOTES),
    "T.cummax: annotations": lambda A, s, c, row: T.cummax(s, annotations=NOTES),
    "T.reduce_sum: batch": lambda A, s, c, row: T.reduce_sum(c, row, batch=2),
    "T.reduce_max: annotations": lambda A, s, c, row: T.reduce_max(c, row, annotations=NOTES),
    "T.atomic_add: use_tma": lambda A, s, c, row: T.atomic_add(A, s, use_tma=True),
    "T.atomic_add: annotations": lambda A, s, c, row: T.atomic_add(A, s, annotations=NOTES),
    "T.atomic_max: annotations": lambda A, s, c, row: T.atomic_max(A, s, annotations=NOTES),
    "T.atomic_min: annotations": lambda A, s, c, row: T.atomic_min(A, s, annotations=NOTES),
    "T.alloc_reducer: replication": lambda A, s, c, row: T.alloc_reducer(
        8, "int32", replication="all"
    ),
    "T.print: warp_id": lambda A, s, c, row: T.print(s, warp_id=1),
    "T.print: warp_group_id": lambda A, s, c, row: T.print(s, warp_group_id=1),
    "T.Parallel: coalesced_width": lambda A, s, c, row: a_parallel_loop(c, coalesced_width=4),
    "T.Parallel: loop_layout": lambda A, s, c, row: a_parallel_loop(c, loop_layout=c),
    "T.Parallel: prefer_async": lambda A, s, c, row: a_parallel_loop(c, prefer_async=True),
    "T.Pipelined: sync": lambda A, s, c, row: T.Pipelined(4, sync=[[0]]),
    "T.Pipelined: group": lambda A, s, c, row: T.Pipelined(4, group=[[0]]),
    "T.sync_warp: mask": lambda A, s, c, row: T.sync_warp(0xFFFF),
    "T.annotate_producer_reg_dealloc": lambda A, s, c, row: T.annotate_producer_reg_dealloc(24),
    "T.annotate_consumer_reg_alloc": lambda A, s, c, row: T.annotate_consumer_reg_alloc(240),
}


@pytest.mark.parametrize("option", WITHOUT_EFFECT)
def test_options_of_operators_that_have_no_effect_say_so(option):
    with pytest.warns(TileWarning, match=f"{option}.* has no effect: ") as caught:
        on_tiles(WITHOUT_EFFECT[option])
    assert len(caught) == 1


def test_options_at_their_defaults_say_nothing():
    def defaults(A, s, c, row):
        T.copy(A, s, disable_tma=True, coalesced_width=None, annotations={})
        T.gemm(s, s, c, k_pack=1, wg_wait=0, mbar=None, annotations={})
        T.reduce_sum(c, row, batch=1, annotations=None)
        T.print(s, warp_id=0)
        T.sync_warp(0xFFFFFFFF)

    on_tiles(defaults)


def test_pointers_to_memory_that_tensors_share_are_not_restricted():
    source = source_for("sm_80", lambda A: None)
    assert "float* __restrict__ A" in source
    assert "__restrict__" not in source_for("sm_80", T.annotate_restrict_buffers)
