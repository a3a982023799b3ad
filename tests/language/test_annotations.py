"""Hints of TileLang's kernels that mean something on CUDA only."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


def test_hints_for_cuda_change_no_result():
    @T.prim_func
    def main(A: T.Tensor((16,), "float32")):
        with T.Kernel(1) as _:
            T.annotate_pass_configs({tvmtile.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
            T.annotate_compile_flags(["-O3"])
            T.annotate_l2_hit_ratio({A: 0.8})
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
