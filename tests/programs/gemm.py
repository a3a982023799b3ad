"""Products of matrices."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program(
    tags={"gemm"},
    parameters={
        "dtypes": [
            ("float16", "float32", "float32"),
            ("float16", "float32", "float16"),
            ("float16", "float16", "float16"),
            ("float16", "float16", "float32"),
            ("float16", "float32", "bfloat16"),
            ("bfloat16", "float32", "bfloat16"),
            ("bfloat16", "float32", "float32"),
            ("float32", "float32", "float32"),
            ("float32", "float32", "float16"),
        ],
        "transpose_A": [False, True],
        "transpose_B": [False, True],
        "policy": ["Square", "FullRow", "FullCol"],
        "threads": [128, 32, 64, 96, 256, 512],
        "block": [
            (32, 64, 32),
            (16, 16, 16),
            (64, 32, 16),
            (48, 24, 8),
            (96, 64, 32),
            (64, 64, 64),
        ],
        "rest": [(5, 0, 0), (0, 0, 0), (0, 11, 0), (0, 0, 7), (8, 3, 4), (1, 1, 1)],
        "stages": [2, 0, 1, 3],
    },
    where=lambda p: _fits(p.block, p.threads, p.stages, p.dtypes[0]),
    fast=["metal", "sm_80", "sm_90a"],
    expects={"metal": ["simdgroup_multiply_accumulate"], "sm_80": ["mma.sync"]},
)
def gemm(
    A: T.Tensor((K, M) if transpose_A else (M, K), dtypes[0]),
    B: T.Tensor((N, K) if transpose_B else (K, N), dtypes[0]),
    C: T.Tensor((M, N), dtypes[2]),
):
    """A tile of C and a rest, more steps along K than stages and a rest."""
    bm, bn, bk = block
    M, N, K = bm + rest[0], bn + rest[1], bk * (stages + 1) + rest[2]
    with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
        a = T.alloc_shared((bk, bm) if transpose_A else (bm, bk), dtypes[0])
        b = T.alloc_shared((bn, bk) if transpose_B else (bk, bn), dtypes[0])
        sums = T.alloc_fragment((bm, bn), dtypes[1])
        T.clear(sums)
        for k in T.Pipelined(T.ceildiv(K, bk), num_stages=stages):
            if transpose_A:
                T.copy(A[k * bk, by * bm], a)
            else:
                T.copy(A[by * bm, k * bk], a)
            if transpose_B:
                T.copy(B[bx * bn, k * bk], b)
            else:
                T.copy(B[k * bk, bx * bn], b)
            T.gemm(a, b, sums, transpose_A, transpose_B, getattr(T.GemmWarpPolicy, policy))
        T.copy(sums, C[by * bm, bx * bn])


def _fits(block, threads, stages, dtype):
    """Warps can share the accumulator, and the stages fit into Metal's memory."""
    m, n, k = block
    warps = threads // 32
    rows = [r for r in range(1, warps + 1) if not warps % r]
    shared = any(not m // 8 % r and not n // 8 % (warps // r) for r in rows)
    size = 4 if dtype == "float32" else 2
    return shared and (m * k + k * n) * size * max(1, stages) <= 32 * 1024 and m * n <= 64 * threads


@program(
    tags={"gemm"},
    parameters={
        "dtype": ["float16", "bfloat16", "float32"],
        "transpose_A": [False, True],
        "transpose_B": [False, True],
        "stages": [2, 0],
    },
    sizes=[{"M": 1, "N": 1, "K": 1}, {"M": 33, "N": 31, "K": 50}, {"M": 64, "N": 8, "K": 3}],
    fast=["metal", "sm_90a"],
)
def gemm_of_any_extents(
    A: T.Tensor((K, M) if transpose_A else (M, K), dtype),
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype),
    C: T.Tensor((M, N), "float32"),
):
    """One kernel for all extents."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        a = T.alloc_shared((16, 32) if transpose_A else (32, 16), dtype)
        b = T.alloc_shared((32, 16) if transpose_B else (16, 32), dtype)
        sums = T.alloc_fragment((32, 32), "float32")
        T.clear(sums)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=stages):
            if transpose_A:
                T.copy(A[k * 16, by * 32], a)
            else:
                T.copy(A[by * 32, k * 16], a)
            if transpose_B:
                T.copy(B[bx * 32, k * 16], b)
            else:
                T.copy(B[k * 16, bx * 32], b)
            T.gemm(a, b, sums, transpose_A, transpose_B)
        T.copy(sums, C[by * 32, bx * 32])


@program(
    tags={"gemm"},
    parameters={"policy": ["Square", "FullRow", "FullCol"]},
    fast=["metal", "sm_80"],
)
def gemm_chained(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 64), "float16"),
    D: T.Tensor((64, 16), "float16"),
    C: T.Tensor((32, 16), "float32"),
):
    """The first product is an operand of the second, without going through memory of the user's."""
    with T.Kernel(1, threads=64):
        first = T.alloc_fragment((32, 64), "float32")
        first_cast = T.alloc_fragment((32, 64), "float16")
        second = T.alloc_fragment((32, 16), "float32")
        T.clear(first)
        T.clear(second)
        T.gemm(A, B, first, policy=getattr(T.GemmWarpPolicy, policy))
        for i, j in T.Parallel(32, 64):
            first[i, j] = T.max(first[i, j], 0)
        T.copy(first, first_cast)
        T.gemm(first_cast, D, second, policy=getattr(T.GemmWarpPolicy, policy))
        T.copy(second, C)
