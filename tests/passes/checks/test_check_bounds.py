"""CheckBounds: elements outside a kernel's own tiles."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


def test_load_under_a_condition_is_taken_to_be_right():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1) as _:
            tile = T.alloc_shared((4, 8), "float32")
            T.clear(tile)
            for i in T.serial(8):
                row = i - 1
                A[i] = tile[row, i] if i > 8 else tile[row + 1 - 1, i]

    tvmtile.compile(main)


def test_conditions_and_loops_that_may_not_run_are_taken_to_be_right():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), n: T.int32, B: T.Tensor((64,), "float32")):
        with T.Kernel(1) as _:
            tile = T.alloc_shared((32,), "float32")
            for i in T.Parallel(64):
                if i < 32:
                    tile[i] = A[i]
            for i in T.Parallel(64):
                B[i] = T.if_then_else(i < 32, tile[i], 0)
            for k in T.serial(n):
                for i in T.serial(64):
                    tile[k * 64 + i] = 0

    a = torch.randn(64)
    b = torch.empty(64)
    tvmtile.compile(main)(a, 0, b)
    assert torch.equal(b, torch.cat([a[:32], torch.zeros(32)]))
