"""What LLVM makes of a tile program on this machine's CPU."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


def test_a_strided_index_wraps_where_its_remainder_does():
    """LLVM 22 read a whole group of strided elements, and so on behind the row, with AVX-512."""

    @T.prim_func
    def main(A: T.Tensor((5, 32), "float32"), B: T.Tensor((5, 32), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((5, 32), "float32")
            T.copy(A, a)
            for i, j in T.Parallel(5, 32):
                B[i, j] = T.if_then_else(
                    a[(i + 1) % 5, (j * 3) % 32] <= 3, a[i, j], a[i, (j * 3 + 1) % 32]
                )

    a, b = torch.randint(-16, 17, (5, 32)) / 4.0, torch.zeros(5, 32)
    tvmtile.compile(main, target="llvm")(a, b)
    rows, columns = torch.arange(1, 6) % 5, torch.arange(32) * 3
    expected = torch.where(a[rows][:, columns % 32] <= 3, a, a[:, (columns + 1) % 32])
    assert torch.equal(b, expected)


def test_a_remainder_in_an_index_is_not_lost():
    """LLVM 22 read behind the row at its third level, for CPUs with AVX-512."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 48), "float32"),
        B: T.Tensor((34, 64), "uint8"),
        C: T.Tensor((34, 64), "int32"),
    ):
        with T.Kernel(2, 1, threads=32) as (bx, by):
            tile = T.alloc_shared((32, 16), "int8")
            sums = T.alloc_fragment((64, 32), "int8")
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[bx, k], tile)
            for i, j in T.Parallel(64, 32):
                sums[i, j] = T.cast(
                    T.cast(B[i, bx], "int32") + T.cast(tile[i % 32, j * 5 % 16], "int32"), "int8"
                )
            T.copy(sums, C[by, bx * 32])

    a, b = torch.randint(-4, 5, (64, 48)).float(), torch.randint(0, 8, (34, 64)).to(torch.uint8)
    c = torch.zeros(34, 64, dtype=torch.int32)
    tvmtile.compile(main, target="llvm")(a, b, c)
    rows, columns = torch.arange(34) % 32, torch.arange(32) * 5 % 16
    for bx in range(2):
        tile = a[bx : bx + 32, 2:18].int()
        expected = b[:, bx, None].int() + tile[rows][:, columns]
        assert torch.equal(c[:, bx * 32 : bx * 32 + 32], expected)
