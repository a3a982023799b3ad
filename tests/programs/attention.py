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


def _space(**given):
    """Lists of values, of which most spaces have some."""
    usual = {
        "batch": [1],
        "heads": [1, 2],
        "dim": [64, 128],
        "causal": [True, False],
        "stages": [2, 0, 1, 3],
        "policy": ["FullRow", "Square"],
        "dtype": ["float16", "bfloat16"],
        "roles": [None, False],
        "tensor_copies": [True],
        "longest_first": [False, True],
        "product_last": [False, True],
    }
    return usual | given


@program(
    name="attention_by_blocks_that_stay",  # queries of the next one are copied while these are used
    tags={"blocks that stay"},
    parameters=_space(
        batch=[2, 1, 6, 3],
        heads=[1],
        length=[384, 768, 128, 300],
        dim=[64],
        causal=[False, True],
        block_M=[128],
        block_N=[128],
        threads=[256],
        stages=[2],
        policy=["FullRow"],
        dtype=["float16"],
        roles=[None],
        longest_first=[True],
        product_last=[True, False],
    ),
    examples=[{}, {"causal": True}, {"causal": True, "length": 300, "batch": 3}],
    where=lambda p: p.batch * p.length <= 1024,
    targets=["llvm", "sm_80", "sm_90a", "gpu"],
    expects={"sm_90a": ["Q_map"]},
)
@program(
    name="attention_by_wgmma",
    tags={"pipelined"},
    parameters=_space(
        length=[128, 100, 192],
        block_M=[64, 128],
        block_N=[64, 32],
        threads=[128, 256],
        tensor_copies=[True, False],
    ),
    where=lambda p: p.block_M * 2 == p.threads,
    targets=["llvm", "sm_90a", "gpu"],
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
    drawn=4,
    fast=["sm_90a"],
)
@program(
    tags={"pipelined", "attention"},
    parameters=_space(
        batch=[1, 2],
        heads=[2, 1],
        length=[70, 96, 33, 1, 100],
        block_M=[32, 64, 16],
        block_N=[32, 64, 16],
        threads=[128, 64, 256, 32],
        stages=[1, 0, 2, 3],
        policy=["FullRow", "Square", "FullCol"],
        dtype=["float16", "bfloat16", "float32"],
    ),
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
    Q: dtype[batch, length, heads, dim],
    K: dtype[batch, length, heads, dim],
    V: dtype[batch, length, heads, dim],
    Output: dtype[batch, length, heads, dim],
):
    """TileLang's kernel: scores are masked before the product."""
    scale = math.log2(math.e) / math.sqrt(dim)
    with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=threads) as (bx, by, bz):
        if roles is not None:
            T.annotate_warp_specialize(roles)
        x = T.ceildiv(length, block_M) - 1 - bx if longest_first else bx
        q = T.alloc_shared((block_M, dim), dtype)
        k, v = T.alloc_shared((block_N, dim), dtype), T.alloc_shared((block_N, dim), dtype)
        scores = T.alloc_fragment((block_M, block_N), "float32")
        weights = T.alloc_fragment((block_M, block_N), dtype)
        output = T.alloc_fragment((block_M, dim), "float32")
        largest, before = (
            T.alloc_fragment((block_M,), "float32"),
            T.alloc_fragment((block_M,), "float32"),
        )
        rescale, sums = (
            T.alloc_fragment((block_M,), "float32"),
            T.alloc_fragment((block_M,), "float32"),
        )
        total = T.alloc_fragment((block_M,), "float32")
        T.copy(Q[bz, x * block_M : (x + 1) * block_M, by, :], q)
        T.fill(output, 0)
        T.fill(total, 0)
        T.fill(largest, -T.infinity("float32"))
        end = T.min((x + 1) * block_M, length) if causal else length
        for step in T.Pipelined(T.ceildiv(end, block_N), num_stages=stages):
            T.copy(K[bz, step * block_N : (step + 1) * block_N, by, :], k)
            for i, j in T.Parallel(block_M, block_N):
                last = x * block_M + i if causal else length - 1
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
            if not product_last:
                T.gemm(weights, v, output, policy=getattr(T.GemmWarpPolicy, policy))
            T.reduce_sum(scores, sums, dim=1)
            for i in T.Parallel(block_M):
                total[i] = total[i] * rescale[i] + sums[i]
            if product_last:
                T.gemm(weights, v, output, policy=getattr(T.GemmWarpPolicy, policy))
        for i, j in T.Parallel(block_M, dim):
            output[i, j] /= total[i]
        T.copy(
            output,
            Output[bz, x * block_M : (x + 1) * block_M, by, :],
            disable_tma=not tensor_copies,
        )


@program(tags={"pipelined"}, parameters={"stages": [3, 4]}, fast=["metal"])
def attention_whose_scores_take_memory(
    Q: float32[128, 16], K: float32[128, 16], V: float32[128, 16], Output: float32[128, 16]
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
