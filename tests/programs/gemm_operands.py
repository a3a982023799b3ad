"""Products whose operands and sums lie anywhere: in tensors, tiles, regions, registers."""

from __future__ import annotations

from hypothesis import strategies as st

import tvmtile.language as T
from tests.programs import METAL4, TARGETS, program
from tests.programs.text import Name

FLAGS = [False, True]
HALF, BRAIN, SINGLE, DOUBLE = "float16", "bfloat16", "float32", "float64"
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
HALVES, BRAINS, BYTES = (HALF, HALF, SINGLE), (BRAIN, BRAIN, SINGLE), ("int8", "int8", "int32")
ON_CPU = [
    *((SINGLE,) * 3, HALVES, (HALF,) * 3, BRAINS, (BRAIN,) * 3, (DOUBLE,) * 3, BYTES),
    *(("uint8", "uint8", "int32"), ("uint8", "int8", "int32"), ("int8", "uint8", "int32")),
    *(("int16", "int16", "int32"), ("int8", "int8", SINGLE), (E4M3, E4M3, SINGLE)),
    *(("float8_e4m3fnuz", E5M2, SINGLE), (E5M2, "float8_e5m2fnuz", SINGLE)),
]
TILES, TENSORS = ("shared", "shared", "fragment"), ("device", "device", "fragment")
REGISTERS = ("fragment", "fragment", "fragment")
PLACES = [
    (a, b, c)
    for a in ("shared", "fragment", "device")
    for b in ("fragment", "device", "shared")
    for c in ("fragment", "shared", "device")
]
GPUS = ["llvm", "metal", "sm_80", "sm_90a", "gpu"]


def any_value(rng, shape, dtype):
    """Bytes of the whole range: instructions multiply those of one sign by those of the other."""
    if dtype == "int8":
        return rng.integers(-128, 128, shape)
    return rng.integers(0, 256, shape) if dtype == "uint8" else rng.standard_normal(shape)


def _space(**given):
    """Lists of values, of which most spaces have some."""
    usual = {
        "dtypes": [HALVES],
        "shape": [(64, 64, 32)],
        "places": [TILES],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "threads": [128],
        "clear": FLAGS,
        "k_pack": [1],
        "staged": [True],
    }
    return usual | given


@program(
    name="gemm_from_registers_by_wgmma",
    parameters=_space(
        dtypes=[HALVES, BRAINS, (SINGLE,) * 3, BYTES, (E4M3, E4M3, SINGLE)],
        shape=[(128, 64, 64)],
        places=[("fragment", "shared", "fragment")],
        transpose_A=[False],
        transpose_B=[True],
        threads=[128, 256],
        clear=[True],
        staged=[False],
    ),
    drawn=4,
    # Hopper keeps few bits of sums of float8: docs/emulator.md.
    targets=lambda p: ["sm_90a", *(["gpu"] if "8" not in p.dtypes[0] else [])],
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
    fast=["sm_90a"],
)
@program(
    name="gemm_from_registers_by_matmul2d",
    parameters=_space(places=[REGISTERS, TENSORS], staged=[False]),
    drawn=4,
    targets=[METAL4],
    expects={METAL4: ["tvmtile_matmul2d_"]},
    counts={METAL4: "tensor_multiplies == 16 and threadgroup_memory == 0"},
    fast=[METAL4],
)
@program(
    name="gemm_packed",
    parameters=_space(
        dtypes=[BYTES, BRAINS],
        shape=[(64, 64, 128), (64, 64, 64), (64, 64, 96)],
        places=[("fragment", "shared", "fragment"), ("shared", "fragment", "fragment"), REGISTERS],
        clear=[True],
        k_pack=[2, 3, 4],
    ),
    targets=["sm_80", "sm_90a", "gpu"],
    drawn=12,
    fast=["sm_80"],
)
@program(
    name="gemm_by_vectors",
    parameters=_space(
        dtypes=[(E4M3, E4M3, SINGLE), (E5M2, E5M2, SINGLE)],
        shape=[(1, 32, 128), (8, 34, 132), (2, 16, 4), (3, 4, 512)],
        transpose_A=[False],
        transpose_B=[True],
        threads=[64, 32],
    ),
    drawn=4,
    targets=["llvm", "metal"],
    expects={"metal": ["simd_sum"]},
    fast=["metal"],
)
@program(
    name="gemm_on_cpu",
    parameters=_space(
        dtypes=ON_CPU,
        shape=[
            (32, 64, 16), (7, 45, 13), (1, 33, 5), (33, 1, 5), (5, 3, 1), (13, 43, 19),
            (14, 33, 64), (8, 75, 35), (37, 17, 5), (64, 64, 32),
        ],
        places=[TILES, TENSORS],
    ),
    examples=[
        {},
        {"shape": (5, 3, 1), "transpose_A": True, "clear": True},
        {"shape": (13, 43, 19), "dtypes": BYTES, "transpose_B": True},
        {"shape": (14, 33, 64), "dtypes": (BRAIN,) * 3},
        {"shape": (8, 75, 35), "dtypes": (HALF,) * 3, "transpose_A": True, "transpose_B": True},
    ],
    inputs={
        "A": lambda rng, shape: any_value(rng, shape, dtypes[0]),
        "B": lambda rng, shape: any_value(rng, shape, dtypes[1]),
    },
    drawn=40,
    targets=["llvm"],
)  # fmt: skip
@program(
    name="gemm_of_tensors_of_any_depth",
    parameters=_space(dtypes=[(SINGLE,) * 3], shape=[(16, 16, Name("K"))], places=[TENSORS]),
    sizes=[{"K": 1}, {"K": 5}, {"K": 64}],
)
@program(
    name="gemm_by_threads_too_few_for_a_matrix_unit",
    parameters=_space(shape=[(16, 16, 16)], threads=[48]),
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["sm_80"],
)
@program(
    parameters=_space(
        dtypes=[HALVES, BRAINS, (SINGLE,) * 3, ("int32",) * 3],
        shape=[(32, 48, 24), (64, 64, 32), (32, 32, 16)],
        places=PLACES,
        threads=[64, 128],
        staged=[True, False],
    ),
    examples=[
        {},
        {"dtypes": ("int32",) * 3, "places": TILES},
        {"dtypes": (SINGLE,) * 3, "places": ("shared",) * 3},
    ],
    drawn=12,
    targets=GPUS,
    fast=["metal", "sm_80"],
)
def gemm_from_anywhere(
    A: T.Tensor(of_A, dtypes[0]), B: T.Tensor(of_B, dtypes[1]), C: dtypes[2][m, n]
):
    """Operands and sums in tensors, in shared memory and in fragments; sums that are added to."""
    m, n, k = shape
    of_A, of_B = (k, m) if transpose_A else (m, k), (n, k) if transpose_B else (k, n)
    with T.Kernel(1, threads=threads):
        a, b = A, B
        if places[0] == "shared" or (places[0] == "fragment" and staged):
            a_shared = T.alloc_shared(of_A, dtypes[0])
            T.copy(a, a_shared)
            a = a_shared
        if places[0] == "fragment":
            a_own = T.alloc_fragment(of_A, dtypes[0])
            T.copy(a, a_own)
            a = a_own
        if places[1] == "shared" or (places[1] == "fragment" and staged):
            b_shared = T.alloc_shared(of_B, dtypes[1])
            T.copy(b, b_shared)
            b = b_shared
        if places[1] == "fragment":
            b_own = T.alloc_fragment(of_B, dtypes[1])
            T.copy(b, b_own)
            b = b_own
        if places[2] == "device":
            T.gemm(a, b, C, transpose_A, transpose_B, clear_accum=clear, k_pack=k_pack)
        else:
            sums = getattr(T, "alloc_" + places[2])((m, n), dtypes[2])
            T.copy(C, sums)
            T.gemm(a, b, sums, transpose_A, transpose_B, clear_accum=clear, k_pack=k_pack)
            T.copy(sums, C)


@program(
    parameters={"along": ["m", "k", "n"], "transpose_A": FLAGS, "transpose_B": FLAGS},
    examples=[{}, {"along": "k", "transpose_A": True}, {"along": "n", "transpose_B": True}],
    targets=GPUS,
    drawn=4,
    expects={"sm_90a": ["wgmma.mma_async", "not mma.sync"]},
    fast=["sm_90a"],
)
def gemm_of_regions(
    A: T.Tensor((K, M) if transpose_A else (M, K), "float16"),
    B: T.Tensor((N, K) if transpose_B else (K, N), "float16"),
    C: float32[M, N],
):
    """Slices of tiles: they begin inside of a panel along K, and at panels and atoms along M and N."""
    M, N = 128 if along == "m" else 64, 128 if along == "n" else 64
    K, depth = (128, 32) if along == "k" else (64, 64)
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((K, M) if transpose_A else (M, K), "float16")
        b = T.alloc_shared((N, K) if transpose_B else (K, N), "float16")
        sums = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        for step in T.serial(4 if along == "k" else 2):
            m = step * 64 if along == "m" else 0
            n = step * 64 if along == "n" else 0
            k = step * 32 if along == "k" else 0
            T.gemm(
                a[k : k + depth, m : m + 64] if transpose_A else a[m : m + 64, k : k + depth],
                b[n : n + 64, k : k + depth] if transpose_B else b[k : k + depth, n : n + 64],
                sums,
                transpose_A,
                transpose_B,
                clear_accum=step == 0 if along == "k" else True,
            )
            if along != "k":
                T.copy(sums, C[m : m + 64, n : n + 64])
        if along == "k":
            T.copy(sums, C)


@program(
    parameters={"at": [4, 1, 2, 8, 36], "transpose_A": FLAGS, "transpose_B": FLAGS},
    fast=["sm_80"],
)
def gemm_of_columns_from_anywhere(A: float16[64, 128], C: float32[64, 64]):
    """Operands may begin among the eight columns that lie together in a swizzled tile."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 128), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.clear(c)
        T.gemm(a[0:64, at : at + 64], a[0:64, at : at + 64], c, transpose_A, transpose_B)
        T.copy(c, C)


@program(
    name="gemm_of_padded_rows",  # whose stride is not their length, nor a multiple of 4
    parameters={
        "dtypes": [("float16", "float32")],
        "extents": [(32, 32, 64)],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "at": [(0, 1, 0, 1, 0, 0), (0, 2, 0, 2, 0, 0), (0, 8, 0, 8, 0, 0)],
        "stacked": [False],
        "threads": [128],
    },
    fast=["metal"],
)
@program(
    parameters={
        "dtypes": [("int32", "int32")],
        "extents": [(17, 33, 5), (1, 1, 1), (40, 8, 24), (3, 40, 40)],
        "transpose_A": FLAGS,
        "transpose_B": FLAGS,
        "at": st.tuples(*[st.integers(0, 5)] * 6),
        "stacked": [True, False],
        "threads": [32],
    },
    examples=[{"at": (1, 2, 3, 4, 5, 0)}, {"at": (0, 5, 0, 1, 2, 3), "stacked": False}],
    drawn=10,
    targets=["llvm"],
)
def gemm_of_any_regions(
    A: T.Tensor((2, *whole_A), dtypes[0]),
    B: T.Tensor((2, *whole_B), dtypes[0]),
    C: T.Tensor((2, *whole_C), dtypes[1]),
):
    """Operands that are parts of tiles of two or three axes; what is around the result stays."""
    m, n, k = extents
    rows_A, columns_A = (k, m) if transpose_A else (m, k)
    rows_B, columns_B = (n, k) if transpose_B else (k, n)
    whole_A = (at[0] + rows_A + at[1], at[1] + columns_A)
    whole_B = (at[2] + rows_B, at[3] + columns_B + at[2])
    whole_C = (at[4] + m + 1, at[5] + n + at[4])
    with T.Kernel(1, threads=threads):
        a = T.alloc_shared((2, *whole_A) if stacked else whole_A, dtypes[0])
        b = T.alloc_shared((2, *whole_B) if stacked else whole_B, dtypes[0])
        c = T.alloc_fragment((2, *whole_C) if stacked else whole_C, dtypes[1])
        if stacked:
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


@program(fast=["metal"])
def gemm_of_batches_in_one_tensor(
    A: float16[3, 32, 2, 24], B: float16[3, 2, 24, 40], C: float32[3, 2, 32, 40]
):
    """Rows of A and of its tile are no neighbouring axis."""
    with T.Kernel(2, 3, threads=64) as (bx, by):
        sums = T.alloc_fragment((32, 40), "float32")
        a = T.alloc_shared((32, 24), "float16")
        T.copy(A[by, 0:32, bx, 0:24], a)
        T.clear(sums)
        T.gemm(a, B[by, bx, 0:24, 0:40], sums)
        T.copy(sums, C[by, bx, 0:32, 0:40])


@program(
    parameters={"m": [100, 30, 64, 1], "n": [72, 40], "k": [36, 24, 64]},
    targets=[*TARGETS, METAL4],
    counts={METAL4: "tensor_multiplies > 0 and threadgroup_memory == threadgroup_barriers == 0"},
    fast=["metal"],
)
def gemm_of_ragged_tensors(A: float16[m, k], B: float16[k, n], C: float32[m, n]):
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


@program(
    parameters={"form": ["scaled by columns", "squares are summed"]},
    examples="form",
    targets=lambda p: TARGETS if p.form == "squares are summed" else ["llvm", *GPUS[2:]],
    fast=["sm_80"],
)
def gemm_of_an_operand_in_registers(
    X: dtype[m, 64], S: float32[m], B: dtype[m, 64], C: float32[m, m]
):
    """An element of S, which all threads hold, does not decide which of them compute with it."""
    m, dtype = (64, "float16") if form == "scaled by columns" else (32, "float32")
    with T.Kernel(1, threads=128):
        x, b = T.alloc_shared((m, 64), dtype), T.alloc_shared((m, 64), dtype)
        rows = T.alloc_fragment((m, 64), dtype)
        sums = T.alloc_fragment((m, m), "float32")
        T.copy(B, b)
        if form == "scaled by columns":
            columns, last = T.alloc_fragment((64, 64), dtype), T.alloc_fragment((1,), "float32")
            given, scale = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64,), "float32")
            T.copy(X, x)
            T.copy(S, given)
            last[0] = S[63]
            for j in T.Parallel(64):
                scale[j] = last[0] - given[j]
            T.copy(x, rows)
            for i, j in T.Parallel(64, 64):
                columns[i, j] = rows[j, i] * scale[j]
            T.gemm(columns, b, sums, clear_accum=True)
        else:  # a few columns at a time
            part, total = T.alloc_fragment((m, 4), "float32"), T.alloc_fragment((m,), "float32")
            T.copy(X, rows)
            T.clear(part)
            for step in T.serial(16):
                for i, j in T.Parallel(m, 4):
                    part[i, j] += rows[i, step * 4 + j] * rows[i, step * 4 + j]
            T.gemm(rows, b, sums, transpose_B=True, clear_accum=True)
            T.reduce_sum(part, total)
            T.copy(total, S)
        T.copy(sums, C)


@program(
    parameters={"direct": [False, True], "out": ["float32", "float16"]},
    examples=[{}, {"direct": True}],
    fast=["metal"],
)
def products_of_tensors_with_gaps_in_rows(
    A: T.StridedTensor((32, 32), (70, 2), "float16"),
    B: T.StridedTensor((32, 32), (2, 70), "float16"),
    C: T.StridedTensor((32, 32), (72, 2), out),
):
    """Instructions that move matrices take elements of a row that are neighbours."""
    with T.Kernel(2, 2, threads=64) as (bx, by):
        a = T.alloc_shared((16, 32), "float16")
        b = T.alloc_shared((32, 16), "float16")
        c = T.alloc_fragment((16, 16), out)
        T.clear(c)
        T.copy(A[by * 16, 0], a)
        if direct:
            T.gemm(a, B[0:32, bx * 16 : bx * 16 + 16], c)
        else:
            T.copy(B[0, bx * 16], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 16, bx * 16])
