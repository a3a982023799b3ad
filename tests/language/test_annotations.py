"""Hints of TileLang's kernels that mean something on CUDA only."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T


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


DEPENDENT = ["griddepcontrol.wait;", "griddepcontrol.launch_dependents;"]


def annotated(annotate):
    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), C: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            annotate(A)
            for i in T.Parallel(128):
                C[bx * 128 + i] = A[bx * 128 + i] + 1

    return main


@pytest.mark.parametrize(
    ("arch", "annotate", "has", "lacks"),
    [
        ("sm_80", lambda A: T.annotate_min_blocks_per_sm(2), ["__launch_bounds__(128, 2)"], []),
        ("sm_90a", lambda A: (T.pdl_sync(), T.pdl_trigger()), DEPENDENT, []),
        ("sm_80", lambda A: (T.pdl_sync(), T.pdl_trigger()), [], ["griddepcontrol"]),
        ("sm_80", lambda A: None, ["float* __restrict__ A"], []),
        ("sm_80", T.annotate_restrict_buffers, ["float* A"], ["__restrict__"]),
    ],
)
def test_hint_is_in_the_source(arch, annotate, has, lacks):
    kernel = tvmtile.compile(annotated(annotate), target={"kind": "cuda", "arch": arch})
    source, (used,) = kernel.get_kernel_source(), kernel.resources()
    assert [text for text in has if text not in source] == []
    assert [text for text in lacks if text in source] == []
    assert kernel.cubin
    assert used.threads == 128  # what is said of a launch hides none of them


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


@pytest.mark.full
def test_threads_have_all_registers_where_more_blocks_at_once_would_gain_nothing():
    assert launch_bounds(132, through_shared) == "128, 1"
    assert launch_bounds(133, through_shared) == "128"
    assert launch_bounds(132, in_registers) == "128, 1"
    assert launch_bounds(133, in_registers) == "128"
    assert launch_bounds(4, product) == "128"
    assert launch_bounds(4, product, "sm_80") == "128"


def test_options_of_one_kernel_act_on_it():
    fast = {tvmtile.PassConfigKey.TL_ENABLE_FAST_MATH: True}
    exact = {tvmtile.PassConfigKey.TL_ENABLE_FAST_MATH: False}
    assert annotated(lambda A: T.annotate_pass_configs(fast)).attrs["tvmtile.fast_math"]
    assert "tvmtile.fast_math" not in annotated(lambda A: T.annotate_pass_configs(exact)).attrs


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


def test_options_at_their_defaults_say_nothing():
    @T.prim_func
    def main(A: T.Tensor((16, 16), "float16")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            row = T.alloc_fragment((16,), "float32")
            T.copy(A, s, disable_tma=True, coalesced_width=None, annotations={})
            T.gemm(s, s, c, k_pack=1, wg_wait=0, mbar=None, annotations={})
            T.reduce_sum(c, row, batch=1, annotations=None)
            T.print(s, warp_id=0)
            T.sync_warp(0xFFFFFFFF)
