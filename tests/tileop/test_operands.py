"""Operands of tile operators."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


def test_bounds_of_a_region_may_be_names():
    @T.prim_func
    def main(
        A: T.Tensor((100, 8), "float32"),
        starts: T.Tensor((4,), "int32"),
        B: T.Tensor((4, 32, 8), "float32"),
        C: T.Tensor((4, 32, 8), "float32"),
    ):
        with T.Kernel(4) as bx:
            tile = T.alloc_shared((32, 8), "float32")
            begin = bx * 32
            end = (bx + 1) * 32
            T.copy(A[begin:end, :], tile)
            T.copy(tile, B[bx, :, :])
            first = starts[bx]
            last = first + 32
            T.copy(A[first:last, :], tile)
            T.copy(tile, C[bx, :, :])

    a, starts = torch.randn(100, 8), torch.tensor([5, 90, 0, 68], dtype=torch.int32)
    b, c = torch.empty(4, 32, 8), torch.empty(4, 32, 8)
    tvmtile.compile(main)(a, starts, b, c)
    padded = torch.cat([a, torch.zeros(32, 8)])
    assert torch.equal(b, padded[:128].reshape(4, 32, 8))
    assert torch.equal(c, torch.stack([padded[s : s + 32] for s in starts.tolist()]))
