"""Flash attention, forward: the online softmax on the scores that simdgroup matrices hold."""

from __future__ import annotations

import math

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, emulated, random


def flash_attention(
    batch, heads, length, dim, causal, *, block_M, block_N, threads, stages, policy, dtype
):
    """TileLang's kernel: [batch, length, heads, dim], masked before the product."""
    shape = (batch, length, heads, dim)
    scale = math.log2(math.e) / math.sqrt(dim)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        Output: T.Tensor(shape, dtype),
    ):
        with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, dim), dtype)
            acc_s = T.alloc_fragment((block_M, block_N), "float32")
            acc_s_cast = T.alloc_fragment((block_M, block_N), dtype)
            acc_o = T.alloc_fragment((block_M, dim), "float32")
            scores_max = T.alloc_fragment((block_M,), "float32")
            scores_max_prev = T.alloc_fragment((block_M,), "float32")
            scores_scale = T.alloc_fragment((block_M,), "float32")
            scores_sum = T.alloc_fragment((block_M,), "float32")
            logsum = T.alloc_fragment((block_M,), "float32")

            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity("float32"))
            end = T.min((bx + 1) * block_M, length) if causal else length
            for k in T.Pipelined(T.ceildiv(end, block_N), num_stages=stages):
                T.copy(K[bz, k * block_N : (k + 1) * block_N, by, :], K_shared)
                for i, j in T.Parallel(block_M, block_N):
                    last = bx * block_M + i if causal else length - 1
                    acc_s[i, j] = T.if_then_else(k * block_N + j <= last, 0, -T.infinity("float32"))
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=policy)
                T.copy(V[bz, k * block_N : (k + 1) * block_N, by, :], V_shared)
                T.copy(scores_max, scores_max_prev)
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2((scores_max_prev[i] - scores_max[i]) * scale)
                for i, j in T.Parallel(block_M, dim):
                    acc_o[i, j] *= scores_scale[i]
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2((acc_s[i, j] - scores_max[i]) * scale)
                T.copy(acc_s, acc_s_cast)
                T.gemm(acc_s_cast, V_shared, acc_o, policy=policy)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])

    return main


def check(batch, heads, length, dim, causal, dtype="float16", **options):
    options = {"block_M": 32, "block_N": 32, "threads": 128, "stages": 1, **options}
    options.setdefault("policy", T.GemmWarpPolicy.FullRow)
    q, k, v = (random(batch, length, heads, dim, dtype=dtype) for _ in range(3))
    output = torch.empty_like(q)
    program = flash_attention(batch, heads, length, dim, causal, dtype=dtype, **options)
    emulated(program)(q, k, v, output)
    heads_first = (x.double().transpose(1, 2) for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal)
    assert_close(output, expected.transpose(1, 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dim", "length"), [(64, 96), (64, 70), (128, 64), (128, 33)])
def test_head_sizes_and_lengths(dim, length, causal):
    check(1, 2, length, dim, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stages", [0, 2, 3])
def test_stages(stages, causal):
    check(1, 1, 100, 64, causal, block_M=16, block_N=16, threads=64, stages=stages)


@pytest.mark.parametrize(
    ("block_M", "block_N", "threads", "policy"),
    [
        (64, 64, 128, "FullRow"),
        (64, 16, 256, "FullRow"),
        (16, 64, 32, "FullRow"),
        (32, 32, 128, "Square"),
        (32, 64, 128, "FullCol"),
    ],
)
def test_blocks_and_policies(block_M, block_N, threads, policy):
    policy = getattr(T.GemmWarpPolicy, policy)
    check(2, 1, 72, 64, True, block_M=block_M, block_N=block_N, threads=threads, policy=policy)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_dtypes(dtype):
    check(1, 1, 50, 64, True, dtype, block_M=16, block_N=16, threads=64)


def test_one_query():
    check(1, 1, 1, 64, True)
