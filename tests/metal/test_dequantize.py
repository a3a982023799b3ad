"""Dequantised GEMM on Metal: int4 weights, two to a byte, decoded on their way into the product."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.gpu.machine import precision_of_products
from tests.metal.programs import assert_close, random

GROUP = 32


def dequant_gemm(M, N, K, dtype, stages, in_registers):
    """C = A @ W.T, a weight (nibble - 8) * scale; decoded in shared memory or in fragments."""
    block_M, block_N, block_K = 32, 32, 32

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // 2), "uint8"),
        scales: T.Tensor((N, K // GROUP), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            W_packed = T.alloc_shared((block_N, block_K // 2), "uint8")
            W_shared = T.alloc_shared((block_N, block_K), dtype)
            packed = T.alloc_fragment((block_N, block_K // 2), "uint8")
            decoded = T.alloc_fragment((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(W[bx * block_N, k * block_K // 2], W_packed)
                if in_registers:
                    T.copy(W_packed, packed)
                    for i, j in T.Parallel(block_N, block_K):
                        nibble = (packed[i, j // 2] >> (j % 2 * 4)) & 0xF
                        scale = scales[bx * block_N + i, k * block_K // GROUP]
                        decoded[i, j] = (T.cast(nibble, dtype) - 8) * scale
                    T.copy(decoded, W_shared)
                else:
                    for i, j in T.Parallel(block_N, block_K):
                        nibble = (W_packed[i, j // 2] >> (j % 2 * 4)) & 0xF
                        scale = scales[bx * block_N + i, k * block_K // GROUP]
                        W_shared[i, j] = (T.cast(nibble, dtype) - 8) * scale
                T.gemm(A_shared, W_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("stages", [0, 2])
@pytest.mark.parametrize(
    ("M", "N", "K", "dtype"),
    [(32, 64, 64, "float16"), (33, 40, 96, "bfloat16"), (1, 7, 32, "float32")],
)
def test_int4_weights(compiled, M, N, K, dtype, stages, in_registers):
    a, scales = random(M, K, dtype=dtype), random(N, K // GROUP, dtype=dtype)
    packed = torch.randint(256, (N, K // 2), dtype=torch.uint8)
    c = torch.empty(M, N, dtype=a.dtype)
    compiled(dequant_gemm(M, N, K, dtype, stages, in_registers))(a, packed, scales, c)
    nibbles = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(1)
    weights = (nibbles.to(scales.dtype) - 8) * scales.repeat_interleave(GROUP, dim=1)
    precision = precision_of_products(dtype, compiled)
    assert_close(c, a.double() @ weights.double().T, precision)
