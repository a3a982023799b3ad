"""Products of narrow weights that are decoded on their way."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program(
    tags={"gemm", "pipelined", "quantized"},
    parameters={
        "M": [33, 32, 1],
        "N": [40, 64, 7],
        "K": [96, 64, 32],
        "dtype": ["bfloat16", "float16", "float32"],
        "stages": [2, 0, 3],
        "in_registers": [True, False],
    },
    inputs={"W": lambda rng, shape: rng.integers(0, 256, shape)},
    drawn=4,
    fast=["metal", "sm_80"],
)
def quantized_gemm_of_4_bits(
    A: T.Tensor((M, K), dtype),
    W: T.Tensor((N, K // 2), "uint8"),
    scales: T.Tensor((N, K // 32), dtype),
    C: T.Tensor((M, N), dtype),
):
    """C = A @ W.T, a weight (nibble - 8) * scale; decoded in shared memory or in fragments."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        a = T.alloc_shared((32, 32), dtype)
        w_packed = T.alloc_shared((32, 16), "uint8")
        w = T.alloc_shared((32, 32), dtype)
        packed = T.alloc_fragment((32, 16), "uint8")
        decoded = T.alloc_fragment((32, 32), dtype)
        sums = T.alloc_fragment((32, 32), "float32")
        T.clear(sums)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=stages):
            T.copy(A[by * 32, k * 32], a)
            T.copy(W[bx * 32, k * 16], w_packed)
            if in_registers:
                T.copy(w_packed, packed)
                for i, j in T.Parallel(32, 32):
                    nibble = (packed[i, j // 2] >> (j % 2 * 4)) & 0xF
                    decoded[i, j] = (T.cast(nibble, dtype) - 8) * scales[bx * 32 + i, k]
                T.copy(decoded, w)
            else:
                for i, j in T.Parallel(32, 32):
                    nibble = (w_packed[i, j // 2] >> (j % 2 * 4)) & 0xF
                    w[i, j] = (T.cast(nibble, dtype) - 8) * scales[bx * 32 + i, k]
            T.gemm(a, w, sums, transpose_B=True)
        T.copy(sums, C[by * 32, bx * 32])
