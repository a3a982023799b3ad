"""Extents that are known at a call only, on Metal: one kernel for all of them."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, gemm, operands, random


@pytest.mark.parametrize("stages", [0, 2])
@pytest.mark.parametrize("transposes", [(False, False), (False, True), (True, False)])
def test_gemm_of_any_M(compiled, transposes, stages):
    N, K = 40, 48
    program = gemm(T.dynamic("M"), N, K, block=(32, 32, 16), transposes=transposes, stages=stages)
    kernel = compiled(program)
    for M in (1, 32, 50):
        a, b, product = operands(M, N, K, transposes=transposes)
        c = torch.empty(M, N)
        kernel(a, b, c)
        assert_close(c, product)


def test_gemm_of_any_extents(compiled):
    program = gemm(T.dynamic("M"), T.dynamic("N"), T.dynamic("K"), block=(32, 32, 16), stages=2)
    kernel = compiled(program)
    for M, N, K in [(1, 1, 1), (32, 64, 16), (33, 31, 50), (64, 8, 3)]:
        a, b, product = operands(M, N, K)
        c = torch.empty(M, N)
        kernel(a, b, c)
        assert_close(c, product)


def test_softmax_of_any_number_of_rows(compiled):
    M = T.dynamic("M")

    @T.prim_func
    def main(A: T.Tensor((M, 96), "float16"), C: T.Tensor((M, 96), "float16")):
        with T.Kernel(T.ceildiv(M, 4), threads=64) as bx:
            x = T.alloc_fragment((4, 96), "float32")
            row_max = T.alloc_fragment((4,), "float32")
            row_sum = T.alloc_fragment((4,), "float32")
            T.copy(A[bx * 4, 0], x)
            T.reduce_max(x, row_max, dim=1)
            for i, j in T.Parallel(4, 96):
                x[i, j] = T.exp(x[i, j] - row_max[i])
            T.reduce_sum(x, row_sum, dim=1)
            for i, j in T.Parallel(4, 96):
                x[i, j] /= row_sum[i]
            T.copy(x, C[bx * 4, 0])

    kernel = compiled(main)
    for rows in (1, 8, 11):
        a = random(rows, 96, dtype="float16")
        c = torch.empty_like(a)
        kernel(a, c)
        assert_close(c, torch.softmax(a.double(), 1))


def test_a_length_that_is_a_value_of_another_tensor(compiled):
    """Rows end where `lengths` says; what lies behind keeps its value."""

    @T.prim_func
    def main(
        A: T.Tensor((5, 64), "float32"),
        lengths: T.Tensor((5,), "int32"),
        C: T.Tensor((5, 64), "float32"),
    ):
        with T.Kernel(5, threads=32) as bx:
            for j in T.Parallel(64):
                if j < lengths[bx]:
                    C[bx, j] = A[bx, j] * 2

    a, c = random(5, 64), torch.zeros(5, 64)
    lengths = torch.tensor([0, 1, 31, 33, 64], dtype=torch.int32)
    compiled(main)(a, lengths, c)
    assert torch.equal(c, torch.where(torch.arange(64) < lengths[:, None], a * 2, 0))
