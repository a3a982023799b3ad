"""Operators that few programs have: sparse products, scaled ones, dot products of threads."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

FLAGS = [False, True]
SPARSE = {
    ("float16", "float32"): "m16n8k32.row.col.f32.f16.f16.f32",
    ("float16", "float16"): "m16n8k32.row.col.f32.f16.f16.f32",
    ("bfloat16", "float32"): "m16n8k32.row.col.f32.bf16.bf16.f32",
    ("float32", "float32"): "m16n8k16.row.col.f32.tf32.tf32.f32",
    ("int8", "int32"): "m16n8k64.row.col.s32.s8.s8.s32",
    ("float8_e4m3fn", "float32"): "m16n8k64.row.col.f32.e4m3.e4m3.f32",
    ("float8_e5m2", "float32"): "m16n8k64.row.col.f32.e5m2.e5m2.f32",
}


def places(rng, shape, dtype, meta):
    """Words of which four bits say where two stored elements, or one float32, are among theirs."""
    bits = int(meta.removeprefix("u").removeprefix("int"))
    codes = rng.choice(
        [4, 14] if dtype == "float32" else [4, 8, 9, 12, 13, 14], (*shape, bits // 4)
    )
    words = (codes << np.arange(0, bits, 4)).sum(-1)
    return words if meta[0] == "u" else words - (words >> bits - 1 << bits)


@program(
    tags={"gemm", "sparse"},
    parameters={
        "dtypes": [*SPARSE],
        "meta": ["int16", "uint8", "int32"],
        "extents": [(32, 32, 64), (64, 96, 128)],
        "block": [(32, 32, 64), (64, 32, 128)],
        "transposed": [(False, False, True), (False, False, False), (True, True, True)],
        "stages": [2, 1],
        "policy": ["Square", "FullRow", "FullCol"],
    },
    examples=[{"dtypes": dtypes} for dtypes in SPARSE]
    + [{"transposed": (True, True, True), "meta": "uint8", "dtypes": ("float16", "float16")}],
    inputs={
        "A": lambda rng, shape: rng.integers(-4, 5, shape),
        "E": lambda rng, shape: places(rng, shape, dtypes[0], meta),
        "B": lambda rng, shape: rng.integers(-4, 5, shape),
    },
    where=lambda p: p.block[0] <= p.extents[0] and p.block[2] <= p.extents[2],
    targets=lambda p: [
        *("llvm", "metal", "sm_89", "sm_90a", "sm_100a", "gpu"),
        *([] if "float8" in p.dtypes[0] else ["sm_80"]),
    ],
    expects=lambda p: {
        arch: [
            f"mma.sp::ordered_metadata.sync.aligned.{SPARSE[p.dtypes]}",
            *(["ldmatrix"] if p.transposed == (False, False, True) else []),
        ]
        for arch in ("sm_80", "sm_89")
    },
    drawn=12,
    fast=["metal", "sm_80"],
)
def gemm_of_half_a_tile(
    A: T.Tensor((k // 2, m) if transposed[0] else (m, k // 2), dtypes[0]),
    E: T.Tensor((k // each, m) if transposed[1] else (m, k // each), meta),
    B: T.Tensor((n, k) if transposed[2] else (k, n), dtypes[0]),
    C: T.Tensor((m, n), dtypes[1]),
):
    """Small integers, whose sums every dtype has. An element of E describes `each` of the whole A."""
    (m, n, k), (bm, bn, bk) = extents, block
    each = int(meta.removeprefix("u").removeprefix("int")) // (2 if dtypes[0] == "float32" else 1)
    with T.Kernel(n // bn, m // bm, threads=128) as (bx, by):
        a = T.alloc_shared((bk // 2, bm) if transposed[0] else (bm, bk // 2), dtypes[0])
        e = T.alloc_shared((bk // each, bm) if transposed[1] else (bm, bk // each), meta)
        b = T.alloc_shared((bn, bk) if transposed[2] else (bk, bn), dtypes[0])
        c = T.alloc_fragment((bm, bn), dtypes[1])
        T.clear(c)
        for step in T.Pipelined(k // bk, num_stages=stages):
            if transposed[0]:
                T.copy(A[step * bk // 2, by * bm], a)
            else:
                T.copy(A[by * bm, step * bk // 2], a)
            if transposed[1]:
                T.copy(E[step * bk // each, by * bm], e)
            else:
                T.copy(E[by * bm, step * bk // each], e)
            if transposed[2]:
                T.copy(B[bx * bn, step * bk], b)
            else:
                T.copy(B[step * bk, bx * bn], b)
            T.gemm_sp(a, e, b, c, *transposed, getattr(T.GemmWarpPolicy, policy))
        T.copy(c, C[by * bm, bx * bn])
