"""Products of matrices: one text for most, with a space of parameters for each way to compute it."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import METAL4, program
from tests.programs.text import Name

FLAGS = [False, True]
POLICIES = ["Square", "FullRow", "FullCol"]
HALF, BRAIN, SINGLE, DOUBLE = "float16", "bfloat16", "float32", "float64"
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
# Of A, of B, of the sums, of C.
FLOATS = [
    (HALF, HALF, SINGLE, SINGLE),
    (HALF, HALF, SINGLE, HALF),
    (HALF, HALF, HALF, HALF),
    (HALF, HALF, HALF, SINGLE),
    (HALF, HALF, SINGLE, BRAIN),
    (BRAIN, BRAIN, SINGLE, BRAIN),
    (BRAIN, BRAIN, SINGLE, SINGLE),
    (SINGLE, SINGLE, SINGLE, SINGLE),
    (SINGLE, SINGLE, SINGLE, HALF),
]
BYTES = [
    ("int8", "int8", "int32", "int32"),
    ("uint8", "uint8", "int32", "int32"),
    (E4M3, E4M3, SINGLE, SINGLE),
    (E5M2, E5M2, SINGLE, SINGLE),
]
PLAIN = {
    "policy": ["Square"],
    "threads": [128],
    "stages": [0],
    "roles": [None],
    "tensor_copies": [True],
}


def _whole(p):
    """Metal's simdgroups can share the accumulator, and the stages fit into its memory."""
    m, n, k = p.block
    simdgroups = p.threads // 32
    rows = [r for r in range(1, simdgroups + 1) if not simdgroups % r]
    shared = any(not m // 8 % r and not n // 8 % (simdgroups // r) for r in rows)
    size = 4 if p.dtypes[0] == SINGLE else 2
    memory = (m * k + k * n) * size * max(1, p.stages)
    return shared and memory <= 30 * 1024 and m * n <= 64 * p.threads


def _mma(p):
    """The instruction of a product; none where the block has no whole ones along K."""
    of_a, _, sums, _ = p.dtypes
    shapes = {HALF: "m16n8k16", BRAIN: "m16n8k16", SINGLE: "m16n8k8", DOUBLE: "m8n8k4"}
    shape = shapes.get(of_a, "m16n8k32" if p.block[2] % 32 == 0 else "m16n8k16")
    if p.block[2] % int(shape.partition("k")[2]):
        return ""
    short = {HALF: "f16", BRAIN: "bf16", SINGLE: "f32", DOUBLE: "f64", E4M3: "e4m3", E5M2: "e5m2"}
    short |= {"int8": "s8", "uint8": "u8", "int32": "s32"}
    sums = SINGLE if sums == HALF else sums  # narrower ones are rounded behind it
    operand = "tf32" if of_a == SINGLE else short[of_a]
    return f"{shape}.row.col.{short[sums]}.{operand}.{operand}.{short[sums]}"


def _multiplies(p):
    """How many products of 16x16 and 16x32 the tiles are."""
    tiles = [-(-extent // step) for extent, step in zip(p.extents, p.block, strict=True)]
    m, n, k = (count * step for count, step in zip(tiles, p.block, strict=True))
    return m * n * k // (16 * 32 * 16)


def _wgmma(p):
    """Whole warpgroups of 64 rows and of columns that B's panels have; bytes lie along K."""
    _, n, k = p.block
    sixteen = p.dtypes[0] in (HALF, BRAIN)
    per_panel = 8 if p.transpose_B else 32
    groups = p.threads // 128
    rows = p.block[0] // 64
    columns = n // per_panel
    size = {SINGLE: 4, HALF: 2, BRAIN: 2}.get(p.dtypes[0], 1)
    fits = (p.block[0] + n) * k * size * max(1, p.stages) <= 160 * 1024
    if p.policy == "FullRow":
        shared = rows % groups == 0
    elif p.policy == "FullCol":
        shared = columns % groups == 0
    else:
        shared = rows * columns % groups == 0 and rows % groups == 0
    run_along_k = sixteen or (p.transpose_B and not p.transpose_A)
    return fits and shared and run_along_k and k * size % 32 == 0 and n % per_panel == 0


@program(
    name="gemm_of_any_size",
    tags={"gemm"},
    parameters={
        "dtypes": [(HALF, HALF, SINGLE, SINGLE), (SINGLE, SINGLE, SINGLE, SINGLE)],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "block": [(32, 32, 16)],
        "extents": [(Name("M"), Name("N"), Name("K"))],
        **PLAIN,
        "stages": [2, 0],
    },
    sizes=[{"M": 1, "N": 1, "K": 1}, {"M": 33, "N": 31, "K": 50}, {"M": 64, "N": 8, "K": 3}],
    fast=["metal"],
)
@program(
    name="gemm_of_any_rows",
    tags={"gemm"},
    parameters={
        "dtypes": [(HALF, HALF, SINGLE, SINGLE), (BRAIN, BRAIN, SINGLE, BRAIN)],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "block": [(64, 64, 32), (32, 32, 16)],
        "extents": [(Name("M"), 40, 48), (Name("M"), 64, 128)],
        **PLAIN,
        "stages": [3, 0, 2],
    },
    sizes=[{"M": 100}, {"M": 1}, {"M": 32}],
    fast=["sm_90a"],
)
@program(
    name="gemm_by_mma",
    tags={"gemm"},
    parameters={
        "dtypes": [*FLOATS, *BYTES, (DOUBLE, DOUBLE, DOUBLE, DOUBLE)],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "block": [
            (64, 64, 32),
            (32, 32, 64),
            (16, 16, 32),
            (16, 24, 32),
            (32, 8, 16),
            (64, 128, 32),
            (64, 64, 48),
        ],
        "extents": [(100, 72, 88), (64, 64, 128), (128, 128, 64)],
        "policy": POLICIES,
        "threads": [128, 32, 64, 96, 256],
        "stages": [3, 0, 2],
        "roles": [False],
        "tensor_copies": [True],
    },
    examples=[
        {},
        {"dtypes": BYTES[0], "transpose_B": True, "extents": (64, 64, 144), "block": (64, 64, 48)},
        {"dtypes": (DOUBLE, DOUBLE, DOUBLE, DOUBLE), "block": (32, 32, 64)},
        {"threads": 96, "block": (16, 16, 32), "stages": 2},  # more warps than there is work for
        {"threads": 256, "block": (32, 8, 16), "stages": 2},
    ],
    where=lambda p: p.block[0] * p.block[1] <= 64 * p.threads,
    targets=lambda p: {
        E4M3: ["llvm", "sm_89", "sm_100a"],
        E5M2: ["llvm", "sm_89", "sm_100a"],
        HALF: ["llvm", "metal", "sm_80", "sm_89", "sm_100a", "gpu"],
    }.get(p.dtypes[0], ["llvm", "sm_80", "sm_89", "sm_100a", "gpu"]),
    drawn=24,
    expects=lambda p: {
        arch: [f"mma.sync.aligned.{_mma(p)}"] for arch in ("sm_80", "sm_89") if _mma(p)
    },
    fast=["sm_80"],
)
@program(
    name="gemm_by_wgmma",
    tags={"gemm", "wgmma"},
    parameters={
        "dtypes": [
            (HALF, HALF, SINGLE, HALF),
            (BRAIN, BRAIN, SINGLE, BRAIN),
            (SINGLE, SINGLE, SINGLE, SINGLE),
            *BYTES,
        ],
        "transpose_A": FLAGS,
        "transpose_B": [True, False],
        "block": [
            (64, 64, 64),
            (64, 64, 32),
            (64, 64, 128),
            (128, 128, 32),
            (64, 256, 32),
            (128, 192, 32),
            (256, 64, 64),
            (64, 8, 32),
            (64, 24, 32),
            (64, 96, 32),
            (64, 288, 32),
        ],
        "extents": [(100, 72, 88), (128, 128, 128), (64, 256, 64)],
        "policy": POLICIES,
        "threads": [128, 256, 512],
        "stages": [2, 0, 1, 3, 4],
        "roles": [None, False],
        "tensor_copies": [True, False],
    },
    examples=[
        {},
        {"transpose_A": True, "transpose_B": False, "stages": 4},
        {"dtypes": BYTES[0], "stages": 3},
        {"dtypes": BYTES[2], "block": (64, 64, 128)},
        {"dtypes": (SINGLE, SINGLE, SINGLE, SINGLE), "block": (64, 64, 32)},
        {"block": (128, 128, 32), "threads": 256, "policy": "FullCol", "transpose_A": True},
        {"block": (64, 96, 32), "transpose_B": False, "roles": False},
        {"block": (64, 264, 32), "roles": False, "stages": 0},
    ],
    where=_wgmma,
    drawn=24,
    # Hopper keeps few bits of sums of float8: docs/emulator.md.
    targets=lambda p: ["llvm", "sm_90a", *([] if p.dtypes[0] in (E4M3, E5M2) else ["gpu"])],
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
    fast=["sm_90a"],
)
@program(
    name="gemm_by_matmul2d",
    tags={"gemm"},
    parameters={
        "dtypes": [(HALF, HALF, SINGLE, SINGLE), (BRAIN, BRAIN, SINGLE, SINGLE)],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "block": [(64, 64, 32), (32, 64, 16), (64, 128, 32)],
        "extents": [(64, 64, 32), (70, 56, 88), (64, 64, 64)],
        "policy": POLICIES,
        "threads": [128, 32, 64],
        "stages": [0, 1, 2, 3],
        "roles": [None],
        "tensor_copies": [True],
    },
    examples=[
        {},
        {"transpose_A": True, "transpose_B": True, "extents": (70, 56, 88), "block": (32, 64, 16)},
    ],
    where=lambda p: p.block[0] * p.block[1] <= 64 * p.threads,
    targets=[METAL4],
    drawn=8,
    expects=lambda p: {METAL4: [f"tvmtile_matmul2d_{'nt'[p.transpose_A]}{'nt'[p.transpose_B]}("]},
    counts=lambda p: {METAL4: f"tensor_multiplies == {_multiplies(p)} and matrix_multiplies == 0"},
    fast=[METAL4],
)
@program(
    name="gemm_without_matmul2d",
    tags={"gemm"},
    parameters={
        "dtypes": [
            (HALF, HALF, SINGLE, SINGLE),
            (SINGLE, SINGLE, SINGLE, SINGLE),
            (HALF, HALF, HALF, SINGLE),
        ],
        "transpose_A": [False],
        "transpose_B": [False],
        "block": [(64, 64, 24), (24, 64, 32), (64, 16, 32), (16, 32, 16), (64, 64, 32)],
        "extents": [(48, 64, 48)],
        **PLAIN,
        "threads": [128, 32, 64],
    },
    examples=[
        {},
        {"dtypes": (SINGLE, SINGLE, SINGLE, SINGLE), "block": (64, 64, 32)},
        {"dtypes": (HALF, HALF, HALF, SINGLE), "block": (64, 64, 32)},
        {"block": (24, 64, 32)},
        {"block": (64, 16, 32), "threads": 32},
        {"block": (16, 32, 16), "threads": 64},
    ],
    where=lambda p: False,
    targets=[METAL4],
    expects={METAL4: ["not matmul2d"]},
    counts={METAL4: "matrix_multiplies > 0"},
)
@program(
    tags={"gemm"},
    parameters={
        "dtypes": [*FLOATS, ("int8", "int8", "int32", "int32"), ("uint8", "int8", SINGLE, SINGLE)],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "block": [
            (32, 64, 32),
            (16, 16, 16),
            (64, 32, 16),
            (48, 24, 8),
            (96, 64, 32),
            (64, 64, 64),
        ],
        "extents": [(101, 67, 70), (64, 64, 96), (40, 33, 45), (1, 129, 65), (97, 64, 128)],
        "policy": POLICIES,
        "threads": [128, 32, 64, 96, 256, 512],
        "stages": [2, 0, 1, 3],
        "roles": [None],
        "tensor_copies": [True],
    },
    where=_whole,
    drawn=24,
    targets=["llvm", "metal", "sm_80", "gpu"],
    expects=lambda p: {"metal": ["simdgroup_multiply_accumulate"]} if p.dtypes in FLOATS else {},
    fast=["metal"],
)
def gemm(
    A: T.Tensor((extents[2], extents[0]) if transpose_A else (extents[0], extents[2]), dtypes[0]),
    B: T.Tensor((extents[1], extents[2]) if transpose_B else (extents[2], extents[1]), dtypes[1]),
    C: T.Tensor((extents[0], extents[1]), dtypes[3]),
):
    """Tiles of C, step by step along K; over the edges, where the blocks don't divide the extents."""
    bm, bn, bk = block
    M, N, K = extents
    with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
        if roles is not None:
            T.annotate_warp_specialize(roles)
        a = T.alloc_shared((bk, bm) if transpose_A else (bm, bk), dtypes[0])
        b = T.alloc_shared((bn, bk) if transpose_B else (bk, bn), dtypes[1])
        sums = T.alloc_fragment((bm, bn), dtypes[2])
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
        T.copy(sums, C[by * bm, bx * bn], disable_tma=not tensor_copies)
