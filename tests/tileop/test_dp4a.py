"""T.dp4a: each thread of a block has a sum of its own."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T


@pytest.mark.full(but=1)
def test_dot_products_of_each_thread(compiled):
    """Operands in registers and in tensors, also such as begin between two words."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 10), "int8"), B: T.Tensor((4, 10), "int8"), C: T.Tensor((2, 32), "int32")
    ):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            a, b = T.alloc_local((8,), "int8"), T.alloc_local((4,), "int8")
            total = T.alloc_local((1,), "int32")
            total[0] = tx
            T.dp4a(A[tx % 4, 1:5], B[tx % 4, 6], total)
            C[0, tx] = total[0]
            T.copy(A[tx % 4, 0], a)
            T.copy(B[tx % 4, 4], b)
            T.dp4a(a[4], b, total)
            C[1, tx] = total[0]

    a, b = (torch.randint(-128, 128, (4, 10), dtype=torch.int8) for _ in range(2))
    a[0] = b[0] = -128
    out = torch.zeros(2, 32, dtype=torch.int32)
    compiled(main)(a, b, out)
    first = (a[:, 1:5].int() * b[:, 6:10].int()).sum(1)
    second = (a[:, 4:8].int() * b[:, 4:8].int()).sum(1)
    assert out[0].tolist() == [int(first[n % 4]) + n for n in range(32)]
    assert (out[1] - out[0]).tolist() == [int(second[n % 4]) for n in range(32)]
