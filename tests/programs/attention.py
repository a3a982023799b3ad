"""Attention: products of products, with the online softmax between them."""

from __future__ import annotations

import math

import tvmtile.language as T
from tests.programs import program


def _fits(p):
    """Simdgroups share both products, and Metal's memory has the tiles."""
    size = 4 if p.dtype == "float32" else 2
    rows = p.block_M + 2 * p.block_N * max(1, p.stages)
    memory = size * ((p.dim + 8) * rows + p.block_M * p.block_N)
    by_rows = p.policy != "FullRow" or p.threads // 4 <= p.block_M
    by_columns = p.policy != "FullCol" or p.threads // 4 <= p.block_N
    few = p.batch * p.heads * p.length <= 8 * p.block_M  # blocks: the interpreter runs each
    shared = p.block_M * p.block_N >= 8 * p.threads and by_rows and by_columns
    return few and shared and memory <= 32 * 1024


@program(
    name="attention_by_wgmma",
    tags={"attention", "gemm", "pipelined", "wgmma"},
    parameters={
        "batch": [1],
        "heads": [1, 2],
        "length": [128, 100, 192],
        "dim": [64, 128],
        "causal": [True, False],
        "block_M": [64, 128],
        "block_N": [64, 32],
        "threads": [128, 256],
        "stages": [2, 0, 1, 3],
        "policy": ["FullRow", "Square"],
        "dtype": ["float16", "bfloat16"],
        "roles": [None, False],
        "tensor_copies": [True, False],
    },
    where=lambda p: p.block_M * 2 == p.threads,
    targets=["llvm", "sm_90a", "gpu"],
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
    drawn=4,
    fast=["sm_90a"],
)
@program(
    tags={"attention", "gemm", "pipelined"},
    parameters={
        "batch": [1, 2],
        "heads": [2, 1],
        "length": [70, 96, 33, 1, 100],
        "dim": [64, 128],
        "causal": [True, False],
        "block_M": [32, 64, 16],
        "block_N": [32, 64, 16],
        "threads": [128, 64, 256, 32],
        "stages": [1, 0, 2, 3],
        "policy": ["FullRow", "Square", "FullCol"],
        "dtype": ["float16", "bfloat16", "float32"],
        "roles": [None, False],
        "tensor_copies": [True],
    },
    examples=[
        {},
        {"block_M": 32, "block_N": 64, "policy": "FullCol"},  # maxima through shared memory
        {"length": 1, "batch": 1},
    ],
    where=_fits,
    drawn=4,
    fast=["metal", "sm_80"],
)
def attention(
    Q: T.Tensor((batch, length, heads, dim), dtype),
    K: T.Tensor((batch, length, heads, dim), dtype),
    V: T.Tensor((batch, length, heads, dim), dtype),
    Output: T.Tensor((batch, length, heads, dim), dtype),
):
    """TileLang's kernel: scores are masked before the product."""
    scale = math.log2(math.e) / math.sqrt(dim)
    with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=threads) as (bx, by, bz):
        if roles is not None:
            T.annotate_warp_specialize(roles)
        q = T.alloc_shared((block_M, dim), dtype)
        k = T.alloc_shared((block_N, dim), dtype)
        v = T.alloc_shared((block_N, dim), dtype)
        scores = T.alloc_fragment((block_M, block_N), "float32")
        weights = T.alloc_fragment((block_M, block_N), dtype)
        output = T.alloc_fragment((block_M, dim), "float32")
        largest = T.alloc_fragment((block_M,), "float32")
        before = T.alloc_fragment((block_M,), "float32")
        rescale = T.alloc_fragment((block_M,), "float32")
        sums = T.alloc_fragment((block_M,), "float32")
        total = T.alloc_fragment((block_M,), "float32")
        T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], q)
        T.fill(output, 0)
        T.fill(total, 0)
        T.fill(largest, -T.infinity("float32"))
        end = T.min((bx + 1) * block_M, length) if causal else length
        for step in T.Pipelined(T.ceildiv(end, block_N), num_stages=stages):
            T.copy(K[bz, step * block_N : (step + 1) * block_N, by, :], k)
            for i, j in T.Parallel(block_M, block_N):
                last = bx * block_M + i if causal else length - 1
                scores[i, j] = T.if_then_else(step * block_N + j <= last, 0, -T.infinity("float32"))
            T.gemm(q, k, scores, transpose_B=True, policy=getattr(T.GemmWarpPolicy, policy))
            T.copy(V[bz, step * block_N : (step + 1) * block_N, by, :], v)
            T.copy(largest, before)
            T.reduce_max(scores, largest, dim=1, clear=False)
            for i in T.Parallel(block_M):
                rescale[i] = T.exp2((before[i] - largest[i]) * scale)
            for i, j in T.Parallel(block_M, dim):
                output[i, j] *= rescale[i]
            for i, j in T.Parallel(block_M, block_N):
                scores[i, j] = T.exp2((scores[i, j] - largest[i]) * scale)
            T.copy(scores, weights)
            T.gemm(weights, v, output, policy=getattr(T.GemmWarpPolicy, policy))
            T.reduce_sum(scores, sums, dim=1)
            for i in T.Parallel(block_M):
                total[i] = total[i] * rescale[i] + sums[i]
        for i, j in T.Parallel(block_M, dim):
            output[i, j] /= total[i]
        T.copy(
            output,
            Output[bz, bx * block_M : (bx + 1) * block_M, by, :],
            disable_tma=not tensor_copies,
        )


@program(tags={"attention", "gemm", "pipelined"}, fast=["metal"])
def attention_linear_with_a_state_in_registers(
    Q: T.Tensor((64, 32), "float16"),
    K: T.Tensor((64, 32), "float16"),
    V: T.Tensor((64, 32), "float16"),
    Output: T.Tensor((64, 32), "float32"),
):
    with T.Kernel(1, threads=128):
        q, k = T.alloc_shared((16, 32), "float16"), T.alloc_shared((16, 32), "float16")
        v = T.alloc_shared((16, 32), "float16")
        scores = T.alloc_fragment((16, 16), "float32")
        scores_shared = T.alloc_shared((16, 16), "float16")
        state = T.alloc_fragment((32, 32), "float32")
        state_shared = T.alloc_shared((32, 32), "float16")
        output = T.alloc_fragment((16, 32), "float32")
        T.clear(state)
        for step in T.Pipelined(4, num_stages=1):
            for i, j in T.Parallel(16, 32):
                q[i, j] = Q[step * 16 + i, j]
                k[i, j] = K[step * 16 + i, j]
                v[i, j] = V[step * 16 + i, j]
            T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(16, 16):
                scores[i, j] = T.if_then_else(i >= j, scores[i, j], 0)
            T.copy(scores, scores_shared)
            T.copy(state, state_shared)
            T.gemm(scores_shared, v, output, clear_accum=True)
            T.gemm(q, state_shared, output)
            T.gemm(k, v, state, transpose_A=True)
            T.copy(output, Output[step * 16, 0])


@program(tags={"attention", "gemm", "pipelined"}, parameters={"stages": [3, 4]}, fast=["metal"])
def attention_whose_scores_take_memory(
    Q: T.Tensor((128, 16), "float32"),
    K: T.Tensor((128, 16), "float32"),
    V: T.Tensor((128, 16), "float32"),
    Output: T.Tensor((128, 16), "float32"),
):
    """Scores go through Metal's threadgroup memory, which leaves room for fewer stages."""
    with T.Kernel(T.ceildiv(128, 16), threads=128) as bx:
        q, k = T.alloc_shared((16, 16), "float32"), T.alloc_shared((64, 16), "float32")
        v = T.alloc_shared((64, 16), "float32")
        scores, operand = (
            T.alloc_fragment((16, 64), "float32"),
            T.alloc_fragment((16, 64), "float32"),
        )
        output = T.alloc_fragment((16, 16), "float32")
        T.copy(Q[bx * 16, 0], q)
        T.clear(output)
        for n in T.Pipelined(T.ceildiv(128, 64), num_stages=stages):
            T.copy(K[n * 64, 0], k)
            T.gemm(
                q, k, scores, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow
            )
            T.copy(scores, operand)
            T.copy(V[n * 64, 0], v)
            T.gemm(operand, v, output, policy=T.GemmWarpPolicy.FullRow)
        T.copy(output, Output[bx * 16, 0])
