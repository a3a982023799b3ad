"""What is done with a product before it is stored: it must neither be lost nor be done twice."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, gemm, operands, random

EPILOGUES = {
    "above 5": (lambda x: T.if_then_else(x > 5, x, 0), lambda x: torch.where(x > 5, x, 0)),
    "relu": (lambda x: T.max(x, 0), torch.relu),
    "leaky relu": (
        lambda x: T.if_then_else(x > 0, x, x * 0.125),
        lambda x: torch.nn.functional.leaky_relu(x, 0.125),
    ),
    "square": (lambda x: x * x, torch.square),
    "clamp": (lambda x: T.min(T.max(x, -3), 4), lambda x: x.clamp(-3, 4)),
    "sigmoid": (lambda x: 1 / (1 + T.exp(-x)), torch.sigmoid),
    "scale and shift": (lambda x: 0.5 * x - 2, lambda x: 0.5 * x - 2),
    "constant": (lambda x: T.float32(3), lambda x: torch.full_like(x, 3)),
}


@pytest.mark.parametrize("out_dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_elementwise(compiled, name, out_dtype):
    epilogue, reference = EPILOGUES[name]
    program = gemm(70, 41, 40, dtypes=("float16", "float32", out_dtype), epilogue=epilogue)
    a, b, product = operands(70, 41, 40)
    c = torch.empty(70, 41, dtype=getattr(torch, out_dtype))
    compiled(program)(a, b, c)
    assert_close(c, reference(product))


@pytest.mark.parametrize("policy", ["Square", "FullRow", "FullCol"])
@pytest.mark.parametrize(("M", "N", "out_dtype"), [(64, 64, "float16"), (61, 59, "float32")])
def test_bias_relu_and_residual(compiled, M, N, out_dtype, policy):
    K = 32

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        bias: T.Tensor((N,), "float32"),
        row_bias: T.Tensor((M,), "float16"),
        residual: T.Tensor((M, N), out_dtype),
        C: T.Tensor((M, N), out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
            A_shared = T.alloc_shared((32, K), "float16")
            B_shared = T.alloc_shared((K, 32), "float16")
            C_local = T.alloc_fragment((32, 32), "float32")
            bias_local = T.alloc_fragment((32,), "float32")
            T.copy(A[by * 32, 0], A_shared)
            T.copy(B[0, bx * 32], B_shared)
            T.copy(bias[bx * 32], bias_local)
            T.clear(C_local)
            T.gemm(A_shared, B_shared, C_local, policy=getattr(T.GemmWarpPolicy, policy))
            for i, j in T.Parallel(32, 32):
                biased = C_local[i, j] + bias_local[j] + row_bias[by * 32 + i]
                C_local[i, j] = T.max(biased, 0) + residual[by * 32 + i, bx * 32 + j]
            T.copy(C_local, C[by * 32, bx * 32])

    a, b, product = operands(M, N, K)
    bias, row_bias, residual = random(N), random(M, dtype="float16"), random(M, N, dtype=out_dtype)
    c = torch.empty_like(residual)
    compiled(main)(a, b, bias, row_bias, residual, c)
    expected = torch.relu(product + bias + row_bias.double()[:, None]) + residual
    assert_close(c, expected)


def test_scalars_of_the_call(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float16"),
        B: T.Tensor((32, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
        alpha: T.float32,
        beta: T.float32,
    ):
        with T.Kernel(1, threads=64):
            C_local = T.alloc_fragment((32, 32), "float32")
            T.clear(C_local)
            T.gemm(A, B, C_local)
            for i, j in T.Parallel(32, 32):
                C[i, j] = C_local[i, j] * alpha + C[i, j] * beta

    a, b, product = operands(32, 32, 32)
    c = random(32, 32)
    expected = product * 0.75 + c.double() * -2.5
    compiled(main)(a, b, c, 0.75, -2.5)
    assert_close(c, expected)


def test_scale_of_a_row_that_is_computed_from_the_product(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((64, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
        largest: T.Tensor((64,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            C_local = T.alloc_fragment((64, 64), "float32")
            row_max = T.alloc_fragment((64,), "float32")
            column_sum = T.alloc_fragment((64,), "float32")
            T.clear(C_local)
            T.gemm(A, B, C_local)
            T.reduce_absmax(C_local, row_max, dim=1)
            T.reduce_sum(C_local, column_sum, dim=0)
            for i, j in T.Parallel(64, 64):
                C_local[i, j] = C_local[i, j] / row_max[i] - column_sum[j]
            T.copy(C_local, C)
            T.copy(row_max, largest)

    a, b, product = operands(64, 64, 32)
    c, largest = torch.empty(64, 64), torch.empty(64)
    compiled(main)(a, b, c, largest)
    absmax = product.abs().amax(1)
    assert_close(largest, absmax)
    assert_close(c, product / absmax[:, None] - product.sum(0))


def test_two_outputs_of_different_dtypes(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float16"),
        B: T.Tensor((32, 32), "float16"),
        C: T.Tensor((32, 32), "bfloat16"),
        D: T.Tensor((32, 32), "float32"),
        mask: T.Tensor((32, 32), "uint8"),
    ):
        with T.Kernel(1, threads=32):
            C_local = T.alloc_fragment((32, 32), "float32")
            C_cast = T.alloc_fragment((32, 32), "bfloat16")
            T.clear(C_local)
            T.gemm(A, B, C_local)
            T.copy(C_local, C_cast)
            T.copy(C_cast, C)
            for i, j in T.Parallel(32, 32):
                mask[i, j] = T.cast(C_local[i, j] > 0, "uint8")
                D[j, i] = C_local[i, j]

    a, b, product = operands(32, 32, 32)
    c, d = torch.empty(32, 32, dtype=torch.bfloat16), torch.empty(32, 32)
    mask = torch.empty(32, 32, dtype=torch.uint8)
    compiled(main)(a, b, c, d, mask)
    assert_close(c, product)
    assert_close(d, product.T)
    assert_close(mask, (product > 0).long())
