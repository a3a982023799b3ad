"""Flash attention, forward: the online softmax on the scores that simdgroup matrices hold."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, emulated, flash_attention, random


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
