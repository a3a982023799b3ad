"""T.dp4a on the CPU."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.tileop.dp4a import reference


def test_dot_products():
    @T.prim_func
    def main(
        A: T.Tensor((5, 8), "int8"), B: T.Tensor((5, 8), "int8"), C: T.Tensor((5, 2), "int32")
    ):
        with T.Kernel(5, threads=1) as bx:
            a = T.alloc_local((8,), "int8")
            b = T.alloc_local((4,), "int8")
            c = T.alloc_local((1,), "int32")
            T.copy(A[bx, 0], a)
            T.copy(B[bx, 4], b)
            c[0] = C[bx, 0]
            T.dp4a(a[4], b, c)
            C[bx, 0] = c[0]
            T.dp4a(A[bx, 0:4], B[bx, 0], C[bx, 1])

    a, b = (torch.randint(-128, 128, (5, 8), dtype=torch.int8) for _ in range(2))
    a[0] = b[0] = -128
    c = torch.randint(-1000, 1000, (5, 2), dtype=torch.int32)
    expected = [
        [
            reference(x[part].numpy(), y[part].numpy(), int(z))
            for part, z in zip(parts, row, strict=True)
        ]
        for x, y, row in zip(a, b, c, strict=True)
        for parts in [(slice(4, 8), slice(0, 4))]
    ]
    tvmtile.compile(main)(a, b, c)
    assert c.tolist() == expected


@pytest.mark.full(but=1)
def test_each_thread_of_a_block(compiled):
    """Operands that begin between two words."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 10), "int8"), B: T.Tensor((4, 10), "int8"), C: T.Tensor((32,), "int32")
    ):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "int32")
            total[0] = tx
            T.dp4a(A[tx % 4, 1:5], B[tx % 4, 6], total)
            C[tx] = total[0]

    a, b = (torch.randint(-128, 128, (4, 10), dtype=torch.int8) for _ in range(2))
    out = torch.zeros(32, dtype=torch.int32)
    compiled(main)(a, b, out)
    sums = (a[:, 1:5].int() * b[:, 6:10].int()).sum(1)
    assert out.tolist() == [int(sums[n % 4]) + n for n in range(32)]
