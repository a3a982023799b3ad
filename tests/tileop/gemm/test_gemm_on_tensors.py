"""`T.gemm` on operands in global memory, which may be ragged or of dynamic extent."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T


@pytest.mark.parametrize("m", [1, 30, 64, 100])
def test_ragged_operands_in_global_memory(m: int) -> None:
    n, k = 40, 24

    @T.prim_func
    def multiply(
        A: T.Tensor((m, k), "float32"),
        B: T.Tensor((k, n), "float32"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(m, 32), T.ceildiv(n, 32)) as (by, bx):
            tile = T.alloc_fragment((32, 32), "float32")
            T.gemm(
                A[by * 32 : by * 32 + 32, 0:k],
                B[0:k, bx * 32 : bx * 32 + 32],
                tile,
                clear_accum=True,
            )
            T.copy(tile, C[by * 32, bx * 32])

    a, b = torch.randn(m, k), torch.randn(k, n)
    result = tvmtile.compile(multiply, out_idx=-1)(a, b)
    torch.testing.assert_close(result, (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-5)


def test_extent_known_at_run_time() -> None:
    K = T.dynamic("K")

    @T.prim_func
    def multiply(
        A: T.Tensor((16, K), "float32"),
        B: T.Tensor((K, 16), "float32"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1) as _:
            tile = T.alloc_fragment((16, 16), "float32")
            T.clear(tile)
            T.gemm(A, B, tile)
            T.copy(tile, C)

    kernel = tvmtile.compile(multiply, out_idx=-1)
    for k in (1, 5, 64):
        a, b = torch.randn(16, k), torch.randn(k, 16)
        expected = (a.double() @ b.double()).float()
        torch.testing.assert_close(kernel(a, b), expected, rtol=1e-5, atol=1e-5)
