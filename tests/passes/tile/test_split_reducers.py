"""SplitReducers: what may be stored into a reducer before it is finalized, and what after."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand


def test_another_store_than_a_contribution():
    @T.prim_func
    def main(A: T.Tensor((8, 16), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer((8,), "float32")
            T.clear(total)
            for i, j in T.Parallel(8, 16):
                total[i] = total[i] * A[i, j]
            T.finalize_reducer(total, C)

    with pytest.raises(InvalidOperand, match=r"total\[8\] float32 is stored something else"):
        tvmtile.compile(main, target="metal", execution_backend="emulator")


def test_totals_are_an_ordinary_tile_afterwards():
    """Also where one thread contributes outside of a loop, and where the loop repeats iterations."""

    @T.prim_func
    def main(A: T.Tensor((8, 16), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=128):
            total = T.alloc_reducer((8,), "float32", op="max")
            for step in T.serial(2):
                T.fill(total, -100)
                for i, j in T.Parallel(8, 8):
                    total[i] = T.max(total[i], A[i, step * 8 + j])
                total[3] = T.max(total[3], 7 + step)
                T.finalize_reducer(total)
                for i in T.Parallel(8):
                    total[i] = total[i] * 2
                for i in T.Parallel(8):
                    C[i] += total[i]

    a, c = torch.randn(8, 16), torch.zeros(8)
    tvmtile.compile(main, target="metal", execution_backend="emulator")(a, c)
    parts = a.reshape(8, 2, 8).amax(2)
    parts[3] = parts[3].maximum(torch.tensor([7.0, 8.0]))
    torch.testing.assert_close(c, 2 * parts.sum(1))
