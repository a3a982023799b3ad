"""Hints of TileLang's kernels that mean something on CUDA only."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand, TileWarning


def test_hints_for_cuda_change_no_result():
    @T.prim_func
    def main(A: T.Tensor((16,), "float32")):
        with T.Kernel(1) as _:
            T.annotate_pass_configs({tvmtile.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
            T.annotate_min_blocks_per_sm(2)
            T.annotate_restrict_buffers(A)
            T.annotate_producer_reg_dealloc(24)
            T.annotate_consumer_reg_alloc(240)
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


def test_dependent_launches_are_instructions_from_hopper_on():
    def both(A):
        T.pdl_sync()
        T.pdl_trigger()

    source = source_for("sm_90a", both)
    assert "griddepcontrol.wait;" in source
    assert "griddepcontrol.launch_dependents;" in source
    assert "griddepcontrol" not in source_for("sm_80", both)


def test_what_has_no_effect_says_so():
    with pytest.warns(TileWarning, match="tl.device_compile_flags has no effect"):
        annotated(lambda A: T.annotate_compile_flags(["-O3"]))
    with pytest.warns(TileWarning, match="T.annotate_l2_hit_ratio has no effect"):
        annotated(lambda A: T.annotate_l2_hit_ratio({A: 0.8}))
    options = {tvmtile.PassConfigKey.TL_CONFIG_INDEX_BITWIDTH: 32}
    with pytest.warns(TileWarning, match="tl.config_index_bitwidth has no effect"):
        annotated(lambda A: T.annotate_pass_configs(options))


def test_options_of_operators_that_have_no_effect_say_so():
    def options(A):
        C = T.alloc_shared((64,), "float32")
        T.clear(C)
        T.atomic_add(A[0:64], C, use_tma=True)

    with pytest.warns(TileWarning, match="T.atomic_add: use_tma has no effect"):
        annotated(options)
