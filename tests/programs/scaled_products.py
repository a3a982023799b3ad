"""Products of half a tile, by metadata, and products with scales."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program
from tests.programs.operators import E4M3, E5M2, FLAGS, FLOAT8

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


E8M0 = "float8_e8m0fnu"
# Of scales: their dtype, elements along K that share one (0: all), rows of A and of B that do.
TENSOR, ROW, MX = ("float32", 0, 0, 0), ("float32", 0, 1, 1), (E8M0, 32, 1, 1)
DEEPSEEK, NVFP4 = ("float32", 128, 1, 128), (E4M3, 16, 1, 1)
SCALES = [
    *(TENSOR, ROW, MX, DEEPSEEK, NVFP4, ("uint8", 32, 1, 1), ("float32", 32, 0, 0)),
    *((dtype, 0, 1, 1) for dtype in ("float16", "bfloat16", E8M0, "uint8")),
]


def factors(rng, shape, dtype):
    """Scales near 1; those that are exponents are powers of two."""
    if dtype == "uint8":
        return rng.integers(120, 134, shape)
    powers = 2.0 ** rng.integers(-7, 7, shape)
    return powers if dtype == "float8_e8m0fnu" else rng.uniform(0.5, 1.5, shape)


@program(
    name="scaled_gemm_by_wgmma",
    parameters={
        "dtypes": [(E4M3, E4M3)],
        "scales": [MX, TENSOR, ROW, DEEPSEEK],
        "extents": [(40, 33, 256), (64, 128, 128)],
        "transpose_B": [True],
        "block": [(64, 64, 128)],
        "threads": [128],
        "sums": ["float32"],
        "clear": FLAGS,
    },
    examples="scales",
    inputs={
        "R": lambda rng, shape: factors(rng, shape, scales[0]),
        "S": lambda rng, shape: factors(rng, shape, scales[0]),
    },
    targets=["sm_90a"],  # a GPU keeps fewer bits: docs/emulator.md
    expects={"sm_90a": ["wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"]},
    fast=["sm_90a"],
)
@program(
    name="scaled_gemm_in_registers",
    parameters={
        "dtypes": [(E4M3, E4M3), (E5M2, E4M3)],
        "scales": [ROW, MX, NVFP4],
        "extents": [(16, 16, 64), (16, 32, 128)],
        "transpose_B": [True, False],
        "block": [(16, 16, 64), (16, 16, 32)],
        "threads": [32],
        "sums": ["float32"],
        "clear": [False],
    },
    examples=[{}, {"transpose_B": False, "scales": MX}, {"scales": NVFP4, "block": (16, 16, 32)}],
    inputs={
        "R": lambda rng, shape: factors(rng, shape, scales[0]),
        "S": lambda rng, shape: factors(rng, shape, scales[0]),
    },
    targets=["sm_80"],
    # Decoded there where both operands have their rows along K.
    expects=lambda p: {
        "sm_80": [f"{'not ' if p.transpose_B else ''}__shared__ alignas(64) half a_float16_ptr["]
    },
    fast=["sm_80"],
)
@program(
    parameters={
        "dtypes": [(a, b) for a in FLOAT8 for b in FLOAT8],
        "scales": SCALES,
        "extents": [(40, 33, 256), (37, 70, 96), (1, 40, 256), (31, 17, 4096), (130, 5, 32)],
        "transpose_B": FLAGS,
        "block": [(32, 32, 64), (32, 32, 128), (128, 32, 32), (1, 32, 128), (8, 16, 64)],
        "threads": [64],
        "sums": ["float32", "bfloat16", "float16"],
        "clear": FLAGS,
    },
    examples=[
        {"scales": MX},
        {},
        {"scales": ROW, "transpose_B": True, "dtypes": (E5M2, E4M3)},
        {"scales": ("uint8", 32, 1, 1), "transpose_B": True, "dtypes": (E4M3, E5M2)},
        {"scales": NVFP4, "transpose_B": True},
        {"scales": DEEPSEEK, "block": (32, 32, 128)},
        {"scales": DEEPSEEK, "transpose_B": True, "dtypes": (FLOAT8[2], FLOAT8[3])},
        {"scales": MX, "transpose_B": True, "block": (32, 32, 64)},
        # On Metal by the lanes of simdgroups.
        {"scales": ROW, "transpose_B": True, "extents": (1, 40, 256), "block": (1, 32, 128)},
        {"scales": MX, "transpose_B": True, "extents": (1, 40, 256), "block": (8, 16, 64)},
        {"scales": ("float32", 32, 0, 0), "sums": "bfloat16", "clear": True},
        *({"scales": scales} for scales in SCALES[7:]),
    ],
    inputs={
        "R": lambda rng, shape: factors(rng, shape, scales[0]),
        "S": lambda rng, shape: factors(rng, shape, scales[0]),
    },
    where=lambda p: p.sums != "float16" or p.scales[0] == "float32",
    # Hopper keeps few bits of sums of float8, which fnuz forms are not multiplied as.
    targets=lambda p: [
        *("llvm", "metal", "sm_80", "sm_89", "sm_100a"),
        *(["gpu"] if "fnuz" in p.dtypes[0] + p.dtypes[1] else []),
    ],
    expects=lambda p: {
        "sm_80": ["f16.f16.f32"] if p.block[0] == 32 else [],
        "sm_89": (
            ["e4m3.e4m3.f32"]
            if p.block[0] == 32 and p.dtypes == (E4M3, E4M3) and p.scales != NVFP4
            else []
        ),
    },
    drawn=24,
    fast=["metal", "sm_80"],
)
def scaled_gemm(
    A: T.Tensor((m, k), dtypes[0]),
    R: T.Tensor((-(-m // a_rows) if a_rows else 1, blocks) if each else (blocks,), of_scales),
    B: T.Tensor((n, k) if transpose_B else (k, n), dtypes[1]),
    S: T.Tensor((-(-n // b_rows) if b_rows else 1, blocks) if each else (blocks,), of_scales),
    C: T.Tensor((m, n), sums),
):
    """Scales are a tensor's, rows' or blocks' along K; `size` and rows are 0 where all share one."""
    of_scales, size, a_rows, b_rows = scales
    (m, n, k), (bm, bn, bk) = extents, block
    blocks, parts = (-(-k // size), -(-bk // size)) if size else (1, 1)
    each = a_rows > 0
    with T.Kernel(T.ceildiv(n, bn), T.ceildiv(m, bm), threads=threads) as (bx, by):
        a = T.alloc_shared((bm, bk), dtypes[0])
        b = T.alloc_shared((bn, bk) if transpose_B else (bk, bn), dtypes[1])
        c = T.alloc_fragment((bm, bn), sums)
        T.copy(C[by * bm, bx * bn], c)
        for step in T.Pipelined(T.ceildiv(k, bk), num_stages=2):
            T.copy(A[by * bm, step * bk], a)
            if transpose_B:
                T.copy(B[bx * bn, step * bk], b)
            else:
                T.copy(B[step * bk, bx * bn], b)
            part = step * bk // size if size else 0
            if each:
                row, column = by * bm // a_rows, bx * bn // b_rows
            T.fp8_scaled_matmul(
                a,
                R[row : row + -(-bm // a_rows), part : part + parts]
                if each
                else R[part : part + parts],
                b,
                S[column : column + -(-bn // b_rows), part : part + parts]
                if each
                else S[part : part + parts],
                c,
                transpose_B=transpose_B,
                clear_accum=clear,
                block_scale_layout=(
                    T.BlockScaledLayout(of_scales, size, max(a_rows, 1), max(b_rows, 1))
                    if size
                    else None
                ),
            )
        T.copy(c, C[by * bm, bx * bn])
