"""Products whose operands and sums lie anywhere: in tensors, tiles, regions, registers."""

from __future__ import annotations

from hypothesis import strategies as st

import tvmtile.language as T
from tests.programs import METAL4, TARGETS, program

FLAGS = [False, True]
POLICIES = ["Square", "FullRow", "FullCol"]
HALF, BRAIN, SINGLE = "float16", "bfloat16", "float32"


def any_value(rng, shape, dtype):
    """Bytes of the whole range: instructions multiply those of one sign by those of the other."""
    if dtype == "int8":
        return rng.integers(-128, 128, shape)
    return rng.integers(0, 256, shape) if dtype == "uint8" else rng.standard_normal(shape)


@program(
    name="gemm_from_registers_by_wgmma",
    tags={"gemm", "wgmma"},
    parameters={
        "dtypes": [
            (HALF, HALF, SINGLE),
            (BRAIN, BRAIN, SINGLE),
            (SINGLE, SINGLE, SINGLE),
            ("int8", "int8", "int32"),
            ("float8_e4m3fn", "float8_e4m3fn", SINGLE),
        ],
        "shape": [(128, 64, 64)],
        "places": [("fragment", "shared", "fragment")],
        "transpose_A": [False],
        "transpose_B": [True],
        "threads": [128, 256],
        "clear": [True],
        "k_pack": [1],
        "staged": [False],
    },
    drawn=4,
    # Hopper keeps few bits of sums of float8: docs/emulator.md.
    targets=lambda p: ["sm_90a", *(["gpu"] if "8" not in p.dtypes[0] else [])],
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
    fast=["sm_90a"],
)
@program(
    name="gemm_from_registers_by_matmul2d",
    tags={"gemm"},
    parameters={
        "dtypes": [(HALF, HALF, SINGLE)],
        "shape": [(64, 64, 32)],
        "places": [("fragment", "fragment", "fragment"), ("device", "device", "fragment")],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "threads": [128],
        "clear": FLAGS,
        "k_pack": [1],
        "staged": [False],
    },
    drawn=4,
    targets=[METAL4],
    expects={METAL4: ["tvmtile_matmul2d_"]},
    counts={METAL4: "tensor_multiplies == 16 and threadgroup_memory == 0"},
    fast=[METAL4],
)
@program(
    name="gemm_packed",
    tags={"gemm"},
    parameters={
        "dtypes": [("int8", "int8", "int32"), (BRAIN, BRAIN, SINGLE)],
        "shape": [(64, 64, 128), (64, 64, 64), (64, 64, 96)],
        "places": [
            ("fragment", "shared", "fragment"),
            ("shared", "fragment", "fragment"),
            ("fragment", "fragment", "fragment"),
        ],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "threads": [128],
        "clear": [True],
        "k_pack": [2, 3, 4],
        "staged": [True],
    },
    targets=["sm_80", "sm_90a", "gpu"],
    drawn=12,
    fast=["sm_80"],
)
@program(
    name="gemm_by_vectors",
    tags={"gemm"},
    parameters={
        "dtypes": [
            ("float8_e4m3fn", "float8_e4m3fn", SINGLE),
            ("float8_e5m2", "float8_e5m2", SINGLE),
        ],
        "shape": [(1, 32, 128), (8, 34, 132), (2, 16, 4), (3, 4, 512)],
        "places": [("shared", "shared", "fragment")],
        "transpose_A": [False],
        "transpose_B": [True],
        "threads": [64, 32],
        "clear": FLAGS,
        "k_pack": [1],
        "staged": [True],
    },
    drawn=4,
    targets=["llvm", "metal"],
    expects={"metal": ["simd_sum"]},
    fast=["metal"],
)
@program(
    name="gemm_on_cpu",
    tags={"gemm"},
    parameters={
        "dtypes": [
            (SINGLE, SINGLE, SINGLE),
            (HALF, HALF, SINGLE),
            (HALF, HALF, HALF),
            (BRAIN, BRAIN, SINGLE),
            (BRAIN, BRAIN, BRAIN),
            ("float64", "float64", "float64"),
            ("int8", "int8", "int32"),
            ("uint8", "uint8", "int32"),
            ("uint8", "int8", "int32"),
            ("int8", "uint8", "int32"),
            ("int16", "int16", "int32"),
            ("int8", "int8", SINGLE),
            ("float8_e4m3fn", "float8_e4m3fn", SINGLE),
            ("float8_e4m3fnuz", "float8_e5m2", SINGLE),
            ("float8_e5m2", "float8_e5m2fnuz", SINGLE),
        ],
        "shape": [
            (32, 64, 16),
            (7, 45, 13),
            (1, 33, 5),
            (33, 1, 5),
            (5, 3, 1),
            (13, 43, 19),
            (14, 33, 64),
            (8, 75, 35),
            (37, 17, 5),
            (64, 64, 32),
        ],
        "places": [("shared", "shared", "fragment"), ("device", "device", "fragment")],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "threads": [128],
        "clear": FLAGS,
        "k_pack": [1],
        "staged": [True],
    },
    examples=[
        {},
        {"shape": (5, 3, 1), "transpose_A": True, "clear": True},
        {"shape": (13, 43, 19), "dtypes": ("int8", "int8", "int32"), "transpose_B": True},
        {"shape": (14, 33, 64), "dtypes": (BRAIN, BRAIN, BRAIN)},
        {
            "shape": (8, 75, 35),
            "dtypes": (HALF, HALF, HALF),
            "transpose_A": True,
            "transpose_B": True,
        },
    ],
    inputs={
        "A": lambda rng, shape: any_value(rng, shape, dtypes[0]),
        "B": lambda rng, shape: any_value(rng, shape, dtypes[1]),
    },
    drawn=40,
    targets=["llvm"],
)
@program(
    tags={"gemm"},
    parameters={
        "dtypes": [(HALF, HALF, SINGLE), (BRAIN, BRAIN, SINGLE), (SINGLE, SINGLE, SINGLE)],
        "shape": [(32, 48, 24), (64, 64, 32), (32, 32, 16)],
        "places": [
            (a, b, c)
            for a in ("shared", "fragment", "device")
            for b in ("fragment", "device", "shared")
            for c in ("fragment", "shared", "device")
        ],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "threads": [64, 128],
        "clear": FLAGS,
        "k_pack": [1],
        "staged": [True, False],
    },
    drawn=12,
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    fast=["metal", "sm_80"],
)
def gemm_from_anywhere(
    A: T.Tensor((k, m) if transpose_A else (m, k), dtypes[0]),
    B: T.Tensor((n, k) if transpose_B else (k, n), dtypes[1]),
    C: T.Tensor((m, n), dtypes[2]),
):
    """Operands and sums in tensors, in shared memory and in fragments; sums that are added to."""
    m, n, k = shape
    with T.Kernel(1, threads=threads):
        if places[0] == "device":
            a = A
        elif places[0] == "fragment" and not staged:
            a = T.alloc_fragment((k, m) if transpose_A else (m, k), dtypes[0])
            T.copy(A, a)
        else:
            a_shared = T.alloc_shared((k, m) if transpose_A else (m, k), dtypes[0])
            T.copy(A, a_shared)
            a = a_shared
            if places[0] == "fragment":
                a_own = T.alloc_fragment((k, m) if transpose_A else (m, k), dtypes[0])
                T.copy(a_shared, a_own)
                a = a_own
        if places[1] == "device":
            b = B
        elif places[1] == "fragment" and not staged:
            b = T.alloc_fragment((n, k) if transpose_B else (k, n), dtypes[1])
            T.copy(B, b)
        else:
            b_shared = T.alloc_shared((n, k) if transpose_B else (k, n), dtypes[1])
            T.copy(B, b_shared)
            b = b_shared
            if places[1] == "fragment":
                b_own = T.alloc_fragment((n, k) if transpose_B else (k, n), dtypes[1])
                T.copy(b_shared, b_own)
                b = b_own
        if places[2] == "device":
            T.gemm(a, b, C, transpose_A, transpose_B, clear_accum=clear, k_pack=k_pack)
        else:
            sums = getattr(T, "alloc_" + places[2])((m, n), dtypes[2])
            T.copy(C, sums)
            T.gemm(a, b, sums, transpose_A, transpose_B, clear_accum=clear, k_pack=k_pack)
            T.copy(sums, C)


@program(
    tags={"gemm"},
    parameters={
        "out": [HALF, BRAIN, SINGLE],
        "shape": [(64, 128, 16), (128, 64, 48), (32, 96, 64), (64, 16, 16)],
    },
    drawn=4,
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    expects=lambda p: {
        "sm_90a": ["stmatrix"] if p.out != SINGLE else ["not stmatrix"],
        "sm_80": ["not stmatrix"],
    },
    fast=["sm_90a"],
)
def gemm_stored_through_shared_memory(
    A: T.Tensor((m, k), "float16"), B: T.Tensor((k, n), "float16"), C: T.Tensor((m, n), out)
):
    m, n, k = shape
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((m, k), "float16"), T.alloc_shared((k, n), "float16")
        c = T.alloc_shared((m, n), out)
        sums = T.alloc_fragment((m, n), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, sums, clear_accum=True)
        T.copy(sums, c)
        T.copy(c, C)


@program(tags={"gemm", "pipelined"}, targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"])
def gemm_pipelined_and_stored_through_shared_memory(
    A: T.Tensor((64, 96), "float16"),
    B: T.Tensor((96, 128), "float16"),
    C: T.Tensor((64, 128), "float16"),
):
    """On Hopper by `stmatrix`; the tile of the result has the memory of none before it."""
    with T.Kernel(2, threads=128) as bx:
        T.annotate_warp_specialize(False)
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        c = T.alloc_shared((64, 64), "float16")
        sums = T.alloc_fragment((64, 64), "float32")
        T.clear(sums)
        for step in T.Pipelined(3, num_stages=2):
            T.copy(A[0, step * 32], a)
            T.copy(B[step * 32, bx * 64], b)
            T.gemm(a, b, sums)
        T.copy(sums, c)
        T.copy(c, C[0, bx * 64])


@program(
    tags={"gemm"},
    parameters={"policy": POLICIES},
    targets=[*TARGETS, METAL4],
    counts=lambda p: (
        {METAL4: "tensor_multiplies == 16 and threadgroup_memory == 0"}
        if p.policy == "FullRow"
        else {}
    ),
    fast=["metal", "sm_80"],
)
def gemm_chained(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 64), "float16"),
    D: T.Tensor((64, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    """The first product is an operand of the second, without going through memory of the user's."""
    with T.Kernel(1, threads=64):
        first = T.alloc_fragment((32, 64), "float32")
        first_cast = T.alloc_fragment((32, 64), "float16")
        second = T.alloc_fragment((32, 32), "float32")
        T.clear(first)
        T.clear(second)
        T.gemm(A, B, first, policy=getattr(T.GemmWarpPolicy, policy))
        for i, j in T.Parallel(32, 64):
            first[i, j] = T.max(first[i, j], 0)
        T.copy(first, first_cast)
        T.gemm(first_cast, D, second, policy=getattr(T.GemmWarpPolicy, policy))
        T.copy(second, C)


@program(tags={"gemm"}, parameters={"tensor_copies": [True]}, fast=["sm_80"])
def gemm_chained_in_a_loop(
    A: T.Tensor((4, 64, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
):
    """A product is an operand of the next, whose warps hold other rows of it, in each iteration."""
    with T.Kernel(1, threads=128):
        left, right = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        product = T.alloc_fragment((64, 64), "float32")
        operand = T.alloc_fragment((64, 64), "float16")
        total = T.alloc_fragment((64, 64), "float32")
        T.copy(B, right)
        T.clear(total)
        for step in T.serial(4):
            T.copy(A[step, :, :], left)
            T.clear(product)
            T.gemm(left, right, product, policy=T.GemmWarpPolicy.FullRow)
            T.copy(product, operand)
            T.gemm(operand, right, total, policy=T.GemmWarpPolicy.FullCol)
        T.copy(total, C, disable_tma=not tensor_copies)


@program(tags={"gemm"}, fast=["metal"])
def gemm_of_parts_into_one_accumulator(
    A: T.Tensor((32, 64), "float16"),
    B: T.Tensor((64, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((32, 64), "float16"), T.alloc_shared((64, 32), "float16")
        sums = T.alloc_fragment((32, 32), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(sums)
        T.gemm(a[:, 0:32], b[0:32, :], sums)
        T.gemm(a[:, 32:64], b[32:64, :], sums)
        T.gemm(b, a, sums, transpose_A=True, transpose_B=True)
        T.copy(sums, C)


@program(
    tags={"gemm", "wgmma"},
    parameters={
        "along": ["m", "k", "n"],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
    },
    examples=[{}, {"along": "k", "transpose_A": True}, {"along": "n", "transpose_B": True}],
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    drawn=4,
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
    fast=["sm_90a"],
)
def gemm_of_regions(
    A: T.Tensor((K, M) if transpose_A else (M, K), "float16"),
    B: T.Tensor((N, K) if transpose_B else (K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
):
    """Slices of tiles: they begin inside of a panel along K, and at panels and atoms along M and N."""
    M, N = 128 if along == "m" else 64, 128 if along == "n" else 64
    K = 128 if along == "k" else 64
    depth = 32 if along == "k" else 64
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((K, M) if transpose_A else (M, K), "float16")
        b = T.alloc_shared((N, K) if transpose_B else (K, N), "float16")
        sums = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(sums)
        for step in T.serial(4 if along == "k" else 2):
            m = step * 64 if along == "m" else 0
            n = step * 64 if along == "n" else 0
            k = step * 32 if along == "k" else 0
            if along != "k":
                T.clear(sums)
            T.gemm(
                a[k : k + depth, m : m + 64] if transpose_A else a[m : m + 64, k : k + depth],
                b[n : n + 64, k : k + depth] if transpose_B else b[k : k + depth, n : n + 64],
                sums,
                transpose_A,
                transpose_B,
            )
            if along != "k":
                T.copy(sums, C[m : m + 64, n : n + 64])
        if along == "k":
            T.copy(sums, C)


@program(tags={"gemm"}, fast=["metal"])
def gemm_of_tiles_that_are_computed(
    A: T.Tensor((64, 48), "float16"),
    B: T.Tensor((40, 64), "float16"),
    C: T.Tensor((40, 48), "float32"),
):
    """C = (2 B)[:, 32:] @ (A + 1)[32:, :], the roles of the parameters exchanged."""
    with T.Kernel(T.ceildiv(48, 16), T.ceildiv(40, 16), threads=64) as (bx, by):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((16, 32), "float16")
        sums = T.alloc_fragment((16, 16), "float32")
        T.copy(A[32, bx * 16], a)
        T.copy(B[by * 16, 32], b)
        for i, j in T.Parallel(32, 16):
            a[i, j] += 1
        for i, j in T.Parallel(16, 32):
            b[i, j] *= 2
        T.clear(sums)
        T.gemm(b, a, sums)
        T.copy(sums, C[by * 16, bx * 16])


@program(
    tags={"gemm"},
    parameters={"padding": [1, 2, 8], "transpose_B": FLAGS},
    fast=["metal"],
)
def gemm_of_padded_rows(
    A: T.Tensor((32, 64), "float16"),
    B: T.Tensor((rows, columns), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    """The stride of the rows in memory is not their length, nor a multiple of 4."""
    rows, columns = (32, 64) if transpose_B else (64, 32)
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((32, 64 + padding), "float16")
        b = T.alloc_shared((rows, columns + padding), "float16")
        sums = T.alloc_fragment((32, 32), "float32")
        T.copy(A, a[:, 0:64])
        T.copy(B, b[:, padding : columns + padding])
        T.clear(sums)
        T.gemm(a[:, 0:64], b[:, padding : columns + padding], sums, transpose_B=transpose_B)
        T.copy(sums, C)


@program(
    tags={"gemm"},
    parameters={
        "a": ["int8", "uint8", "float16", "float32", "bfloat16"],
        "b": ["int8", "float32", "float16", "bfloat16"],
        "sums": ["int32", "float32", "bfloat16"],
        "stages": [2, 0],
    },
    examples=[
        {},
        {"a": "uint8", "sums": "float32"},
        {"a": "float16", "b": "float32", "sums": "float32"},
        {"a": "float16", "b": "bfloat16", "sums": "float32"},
        {"a": "float16", "b": "float16", "sums": "bfloat16"},
    ],
    where=lambda p: (
        ("int" in p.a) == ("int" in p.b)
        and (p.sums == "float32" or ("int" in p.a) == ("int" in p.sums))
    ),
    fast=["metal"],
)
def gemm_of_two_dtypes(
    A: T.Tensor((33, 40), a), B: T.Tensor((40, 20), b), C: T.Tensor((33, 20), sums)
):
    """No matrix unit multiplies most of them."""
    with T.Kernel(T.ceildiv(20, 16), T.ceildiv(33, 16), threads=64) as (bx, by):
        left, right = T.alloc_shared((16, 16), a), T.alloc_shared((16, 16), b)
        total = T.alloc_fragment((16, 16), sums)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(40, 16), num_stages=stages):
            T.copy(A[by * 16, k * 16], left)
            T.copy(B[k * 16, bx * 16], right)
            T.gemm(left, right, total)
        T.copy(total, C[by * 16, bx * 16])


@program(tags={"gemm"}, fast=["metal"])
def gemm_of_batches_in_one_tensor(
    A: T.Tensor((3, 32, 2, 24), "float16"),
    B: T.Tensor((3, 2, 24, 40), "float16"),
    C: T.Tensor((3, 2, 32, 40), "float32"),
):
    with T.Kernel(2, 3, threads=64) as (bx, by):
        sums = T.alloc_fragment((32, 40), "float32")
        a = T.alloc_shared((32, 24), "float16")
        T.copy(A[by, 0:32, bx, 0:24], a)
        T.clear(sums)
        T.gemm(a, B[by, bx, 0:24, 0:40], sums)
        T.copy(sums, C[by, bx, 0:32, 0:40])


@program(
    tags={"gemm"},
    parameters={"m": [100, 30, 64, 1], "n": [72, 40], "k": [36, 24, 64]},
    targets=[*TARGETS, METAL4],
    counts={METAL4: "tensor_multiplies > 0 and threadgroup_memory == threadgroup_barriers == 0"},
    fast=["metal"],
)
def gemm_of_ragged_tensors(
    A: T.Tensor((m, k), "float16"), B: T.Tensor((k, n), "float16"), C: T.Tensor((m, n), "float32")
):
    """Operands stay in device memory, which ends in the middle of a tile."""
    with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 64), threads=128) as (bx, by):
        sums = T.alloc_fragment((64, 32), "float32")
        T.clear(sums)
        for step in T.serial(T.ceildiv(k, 16)):
            T.gemm(
                A[by * 64 : by * 64 + 64, step * 16 : step * 16 + 16],
                B[step * 16 : step * 16 + 16, bx * 32 : bx * 32 + 32],
                sums,
            )
        T.copy(sums, C[by * 64, bx * 32])


@program(tags={"gemm"}, sizes=[{"K": 1}, {"K": 5}, {"K": 64}])
def gemm_of_tensors_of_any_depth(
    A: T.Tensor((16, K), "float32"),
    B: T.Tensor((K, 16), "float32"),
    C: T.Tensor((16, 16), "float32"),
):
    with T.Kernel(1):
        sums = T.alloc_fragment((16, 16), "float32")
        T.clear(sums)
        T.gemm(A, B, sums)
        T.copy(sums, C)


@program(tags={"gemm"}, targets=["llvm", "sm_80", "sm_90a", "gpu"], fast=["sm_80"])
def gemm_of_an_operand_scaled_by_columns(
    X: T.Tensor((64, 64), "float16"),
    S: T.Tensor((64,), "float32"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
):
    """What all threads hold, one element of S, does not decide which of them compute with it."""
    with T.Kernel(1, threads=128):
        x, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        rows, columns = T.alloc_fragment((64, 64), "float16"), T.alloc_fragment((64, 64), "float16")
        last = T.alloc_fragment((1,), "float32")
        given, scale = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64,), "float32")
        sums = T.alloc_fragment((64, 64), "float32")
        T.copy(X, x)
        T.copy(B, b)
        T.copy(S, given)
        last[0] = S[63]
        for j in T.Parallel(64):
            scale[j] = last[0] - given[j]
        T.copy(x, rows)
        for i, j in T.Parallel(64, 64):
            columns[i, j] = rows[j, i] * scale[j]
        T.gemm(columns, b, sums, clear_accum=True)
        T.copy(sums, C)


@program(tags={"gemm"}, fast=["sm_80"])
def gemm_of_an_operand_whose_squares_are_summed(
    X: T.Tensor((32, 64), "float32"),
    B: T.Tensor((32, 64), "float32"),
    C: T.Tensor((32, 32), "float32"),
    S: T.Tensor((32,), "float32"),
):
    """A few columns at a time."""
    with T.Kernel(1, threads=128):
        b = T.alloc_shared((32, 64), "float32")
        x = T.alloc_fragment((32, 64), "float32")
        part = T.alloc_fragment((32, 4), "float32")
        sums = T.alloc_fragment((32,), "float32")
        total = T.alloc_fragment((32, 32), "float32")
        T.copy(B, b)
        T.copy(X, x)
        T.clear(part)
        for step in T.serial(16):
            for i, j in T.Parallel(32, 4):
                part[i, j] += x[i, step * 4 + j] * x[i, step * 4 + j]
        T.gemm(x, b, total, transpose_B=True, clear_accum=True)
        T.reduce_sum(part, sums)
        T.copy(sums, S)
        T.copy(total, C)


@program(
    tags={"gemm"},
    parameters={
        "extents": [(17, 33, 5), (1, 1, 1), (40, 8, 24), (3, 40, 40)],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "at": st.tuples(*[st.integers(0, 5)] * 6),
        "stacked": [True, False],
    },
    examples=[{"at": (1, 2, 3, 4, 5, 0)}, {"at": (0, 5, 0, 1, 2, 3), "stacked": False}],
    drawn=10,
    targets=["llvm"],
)
def gemm_of_any_regions(
    A: T.Tensor((2, *whole_A), "int32"),
    B: T.Tensor((2, *whole_B), "int32"),
    C: T.Tensor((2, *whole_C), "int32"),
):
    """Operands that are parts of tiles of two or three axes; what is around the result stays."""
    m, n, k = extents
    rows_A, columns_A = (k, m) if transpose_A else (m, k)
    rows_B, columns_B = (n, k) if transpose_B else (k, n)
    whole_A = (at[0] + rows_A + at[1], at[1] + columns_A)
    whole_B = (at[2] + rows_B, at[3] + columns_B + at[2])
    whole_C = (at[4] + m + 1, at[5] + n + at[4])
    with T.Kernel(1, threads=32):
        if stacked:
            a, b = T.alloc_shared((2, *whole_A), "int32"), T.alloc_shared((2, *whole_B), "int32")
            c = T.alloc_fragment((2, *whole_C), "int32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(C, c)
            T.gemm(
                a[1:2, at[0] : at[0] + rows_A, at[1] : at[1] + columns_A],
                b[1:2, at[2] : at[2] + rows_B, at[3] : at[3] + columns_B],
                c[1:2, at[4] : at[4] + m, at[5] : at[5] + n],
                transpose_A,
                transpose_B,
            )
            T.copy(c, C)
        else:
            a, b = T.alloc_shared(whole_A, "int32"), T.alloc_shared(whole_B, "int32")
            c = T.alloc_fragment(whole_C, "int32")
            T.copy(A[0, 0, 0], a)
            T.copy(B[0, 0, 0], b)
            T.copy(C[0, 0, 0], c)
            T.gemm(
                a[at[0] : at[0] + rows_A, at[1] : at[1] + columns_A],
                b[at[2] : at[2] + rows_B, at[3] : at[3] + columns_B],
                c[at[4] : at[4] + m, at[5] : at[5] + n],
                transpose_A,
                transpose_B,
            )
            T.copy(c, C[0, 0, 0])


@program(
    tags={"gemm"},
    targets=["llvm", "metal", METAL4],
    counts={METAL4: "tensor_multiplies == 0"},
)
def gemm_that_takes_another_one_along(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 64), "float16"),
    C: T.Tensor((32, 64), "float32"),
):
    """The second product does not fit `matmul2d`, so the first one has no use of it."""
    with T.Kernel(1, threads=32):
        a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 64), "float16")
        sums = T.alloc_fragment((32, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(sums)
        T.gemm(a, b, sums)
        T.gemm(a[0:32, 0:8], b[0:8, 0:64], sums)
        T.copy(sums, C)


@program(
    tags={"gemm", "wgmma"},
    expects={
        "sm_90a": ["wait_group_sync_aligned_1();", "wait_group_sync_aligned_0();"],
        "sm_80": ["not wgmma"],
    },
    fast=["sm_90a"],
)
def gemm_that_goes_on_until_it_is_waited_for(
    A: T.Tensor((64, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
    D: T.Tensor((64, 64), "float32"),
):
    """C = A @ A and D = A @ B, C while D goes on."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c, d = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.wgmma_gemm(a, a, c, clear_accum=True)
        T.gemm(a, b, d, clear_accum=True, wg_wait=1)
        T.copy(c, C)
        T.wait_wgmma(0)
        T.copy(d, D)


@program(tags={"gemm", "wgmma", "pipelined"}, fast=["sm_90a"])
def gemm_that_a_pipeline_waits_for(
    A: T.Tensor((64, 256), "float16"),
    B: T.Tensor((256, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
):
    """A producer could not tell when a tile is free, and is none."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0:64, k * 64 : k * 64 + 64], a)
            T.copy(B[k * 64 : k * 64 + 64, 0:64], b)
            T.wgmma_gemm(a, b, c)
            T.wait_wgmma(0)
        T.copy(c, C)


@program(tags={"gemm", "wgmma"})
def gemm_in_batches_by_their_names_of_cuda(
    A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")
):
    """A batch that has no products counts: all but the latest one are the first product."""
    with T.Kernel(1, threads=128):
        a, c = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.warpgroup_fence_operand(c)
        T.warpgroup_arrive()
        T.wgmma_gemm(a, a, c, clear_accum=True)
        T.warpgroup_commit_batch()
        T.warpgroup_wait(1)
        T.warpgroup_fence_operand(c, num_regs=32)
        T.copy(c, C)
