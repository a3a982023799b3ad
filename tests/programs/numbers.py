"""Arithmetic of floats: functions, roundings, conversions, numbers that are none."""

from __future__ import annotations

import math

import numpy as np

import tvmtile.language as T
from tests.gpu.machine import HAS_GPU
from tests.programs import program

FLOATS = ["float32", "float16", "bfloat16"]
BRAIN, E4M3, E5M2 = "bfloat16", "float8_e4m3fn", "float8_e5m2"
LIMITED = [
    *("float64", "float32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("int8", "uint8", "int32", "int64"),
]
FUNCTIONS = (
    *((0, "erf"), (1, "log1p"), (2, "sin"), (3, "sinh"), (4, "tan"), (5, "tanh"), (6, "abs")),
    *((7, "cos"), (8, "cosh"), (9, "exp10"), (10, "floor"), (11, "sigmoid"), (12, "exp")),
    *((13, "acos"), (14, "rsqrt"), (15, "log2"), (16, "log"), (17, "log10"), (18, "sqrt")),
    *((19, "exp2"), (20, "asin"), (21, "atan"), (22, "asinh"), (23, "atanh"), (24, "acosh")),
    *((25, "ceil"), (26, "trunc"), (27, "round"), (28, "nearbyint")),
)
OF_TWO = (
    (29, "pow"),
    (30, "fmod"),
    (31, "atan2"),
    (32, "hypot"),
    (33, "copysign"),
    (34, "nextafter"),
)
OF_POSITIVE = ("rsqrt", "log", "log2", "log10", "sqrt")
WITH_FAST = ("cos", "exp", "exp10", "log", "log10", "log2", "sin", "tan", "exp2", "tanh")
FAST = [*(f"__{name}f(" for name in WITH_FAST[:-2]), "tvmtile_fast_exp2(", "tvmtile_fast_tanh("]
FAST += ["tvmtile_fast_math();"]
EXACT = [f"{before}{name}f(" for name in (*WITH_FAST, "pow") for before in ("= ", "(", "+ ")]


@program(
    parameters={"dtype": [*FLOATS, "float64"], "which": [0, 1]},
    examples=[{"dtype": d, "which": w} for w in (0, 1) for d in (*FLOATS, "float64")],
    inputs={
        "A": lambda rng, shape: np.concatenate([np.logspace(-4, 0, 64), -np.logspace(-4, 0, 64)]),
        "B": lambda rng, shape: rng.uniform(-2, 2, shape),
    },
    targets=lambda p: ["llvm", "sm_80", "gpu", *(["metal"] if p.dtype != "float64" else [])],
    fast=["metal"],
)
def functions(A: dtype[128], B: dtype[128], C: dtype[36, 256]):
    """Functions lose nothing of small arguments, in T.vectorized alone and in T.Parallel."""
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        for row, function in FUNCTIONS:
            if row % 2 == which:
                for i in T.Parallel(32):
                    for v in T.vectorized(4):
                        if function in OF_POSITIVE:
                            C[row, i * 4 + v] = getattr(T, function)(T.max(A[i * 4 + v], 0.125))
                        elif function == "acosh":
                            C[row, i * 4 + v] = T.acosh(T.max(B[i * 4 + v], 1))
                        elif function == "atanh":
                            C[row, i * 4 + v] = T.atanh(T.clamp(A[i * 4 + v], -0.75, 0.75))
                        else:
                            C[row, i * 4 + v] = getattr(T, function)(A[i * 4 + v])
                for v in T.vectorized(4):
                    if function in (*OF_POSITIVE, "log1p"):
                        C[row, 128 + thread * 4 + v] = getattr(T, function)(
                            T.abs(B[thread * 4 + v])
                        )
                    elif function == "acosh":
                        C[row, 128 + thread * 4 + v] = T.acosh(T.max(B[thread * 4 + v], 1))
                    elif function in ("acos", "asin", "atanh"):
                        C[row, 128 + thread * 4 + v] = getattr(T, function)(
                            B[thread * 4 + v] * 0.25
                        )
                    else:
                        C[row, 128 + thread * 4 + v] = getattr(T, function)(B[thread * 4 + v])
        for row, function in OF_TWO:
            if row % 2 == which:
                for i in T.Parallel(32):
                    for v in T.vectorized(4):
                        x = T.abs(B[i * 4 + v])
                        C[row, i * 4 + v] = getattr(T, function)(x, A[i * 4 + v])
                for v in T.vectorized(4):
                    C[row, 128 + thread * 4 + v] = getattr(T, function)(B[thread * 4 + v], 2.0)
        for i in T.Parallel(128):
            C[35, i] = T.ldexp(A[i], T.int32(3))
            C[35, 128 + i] = T.ldexp(B[i], T.int32(-1))


@program(
    parameters={"dtype": FLOATS, "is_fast": [True, False]},
    examples=[{"dtype": d, "is_fast": is_fast} for is_fast in (True, False) for d in FLOATS],
    inputs={"A": lambda rng, shape: np.linspace(0.1, 1.4, 64)},
    options=lambda p: {"pass_configs": {"tl.enable_fast_math": True}} if p.is_fast else {},
    expects=lambda p: {
        "sm_90a": [*FAST, *(f"not {text}" for text in EXACT)]
        if p.is_fast
        else [f"not {text}" for text in FAST]
    },
    targets=lambda p: [
        *("llvm", "metal", "sm_90a"),
        *(["gpu"] if not p.is_fast or not HAS_GPU else []),  # which compiles what it doesn't run
    ],
    fast=["sm_90a"],
)
def functions_that_are_fast(A: dtype[64], C: dtype[10, 64], D: dtype[16, 4]):
    """Functions are approximations on CUDA where a kernel asks for it, also lane by lane."""
    with T.Kernel(1, threads=32):
        for n, function in tuple(enumerate(WITH_FAST)):
            for i in T.Parallel(64):
                C[n, i] = getattr(T, function)(A[i])
        for i in T.Parallel(16):
            for k in T.vectorized(4):
                D[i, k] = T.exp(A[i * 4 + k]) + T.tanh(A[i * 4 + k])


@program(
    parameters={"dtype": ["float32", "float64", "bfloat16"]},
    examples="dtype",
    inputs={"A": lambda rng, shape: np.float64([1, 3, -1e-3, 6e-39, -2e-45, 0, 2, 1e-40])},
    targets=["llvm", "sm_90a", "gpu"],
    fast=["sm_90a"],
)
def numbers_below_the_normal_ones(A: dtype[8], C: dtype[4, 8]):
    """Subnormal numbers are constants and results as others are."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            for n, tiny in tuple(enumerate((1e-40, -6e-39))):
                C[n, i] = T.if_then_else(A[i] > 0, T.cast(tiny, dtype), A[i])
            C[2, i] = (A[i] + T.cast(1e-40, dtype)) * T.cast(2.0**100, dtype)
            C[3, i] = A[i] * T.cast(0.25, dtype) * T.cast(2.0**100, dtype)


@program(
    inputs={
        "A": [9, 50, 1e30, math.inf, -math.inf, -100, math.nan, 0],
        "B": lambda rng, shape: rng.integers(-50, 50, shape),
    },
    fast=["metal"],
)
def functions_of_some_numbers(A: float32[8], B: int32[8], C: float32[13, 8]):
    """Functions take NaN and infinities, several arguments, integers and Python's numbers."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            C[0, i] = T.tanh(A[i])
            C[1, i] = T.max(A[i], A[7 - i], 1.0)
            C[2, i] = T.min(1.0, A[i], A[7 - i])
            C[3, i] = T.clamp(A[i], -20.5, 20)
            C[4, i] = T.Select(True, A[i], A[i] * A[i])
            C[5, i] = T.Select(False, A[i] * A[i], A[i])
            C[6, i] = T.if_then_else(B[i] & 4, 2, 3)
            C[7, i] = T.Select(B[i] & 1, 2, 3)
            C[11, i] = T.if_then_else(T.isnan(A[i]), 1, T.if_then_else(T.isinf(A[i]), 2, 3))
            C[12, i] = T.if_then_else(T.isfinite(A[i]), A[i], 0)
            for row, multiple in ((8, 1), (9, 7), (10, 32)):
                C[row, i] = T.ceildiv(B[i], multiple) * 1000 + T.align_up(B[i], multiple)


@program(parameters={"dtype": LIMITED}, examples="dtype", targets=["llvm"])
def ends_of_a_dtype(A: dtype[4]):
    with T.Kernel(1):
        A[0] = T.max_value(dtype)
        A[1] = T.min_value(dtype)
        if not dtype.startswith("float8_e4") and not dtype.endswith("fnuz"):
            A[2] = T.infinity(dtype)
            if not dtype.startswith("float8") and "int" not in dtype:
                A[3] = -T.infinity(dtype)


@program(
    parameters={"dtype": [E4M3, *FLOATS, E5M2]},
    examples="dtype",
    inputs={
        "A": lambda rng, shape: [
            *(-3.5, -2.5, -1.5, -0.5, -0.25, -0.2, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2.5, 3),
            *(3.5, 7, 0.49999997, 100.0, 5, 3.7, 8, -0.75, 9.5),
        ]
    },
    targets=["llvm", "metal", "sm_90a", "gpu"],
    fast=["metal", "sm_90a"],
)
def roundings(A: dtype[24], B: dtype[2, 24]):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(24):
            B[0, i] = T.round(A[i])
            B[1, i] = T.round(A[i], "ties-away-from-zero")


@program(parameters={"dtype": FLOATS}, examples="dtype", inputs="extreme", fast=["metal", "sm_80"])
def floats_that_are_extreme(
    X: dtype[16, 32], Z: dtype[16, 32], C: dtype[13, 16, 32], R: dtype[4, 16]
):
    """Differences keep what a sum has lost; a number is larger and smaller than none."""
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 32), dtype)
        rows = T.alloc_fragment((16,), dtype)
        T.copy(X, tile)
        for i, j in T.Parallel(16, 32):
            C[0, i, j] = ((X[i, j] + Z[i, j]) - X[i, j]) - Z[i, j]
            C[1, i, j] = X[i, j] - (Z[i, j] + X[i, j])
            C[2, i, j] = T.if_then_else(T.isnan(X[i, j]), Z[i, j], X[i, j] - X[i, j])
            C[3, i, j] = T.max(X[i, j], Z[i, j])
            C[4, i, j] = T.min(X[i, j], Z[i, j])
            C[5, i, j] = T.max(1.0, T.max(X[i, j], -1.0))
            C[6, i, j] = T.clamp(X[i, j], -1.0, 1.0)
            C[7, i, j] = X[i, j] * 0.0 + 1.0
            C[8, i, j] = 0.0 / X[i, j]
            C[9, i, j] = X[i, j] / 0.0
            C[10, i, j] = 1.0 / (X[i, j] + 0.0)
            C[11, i, j] = 1.0 / T.Select(X[i, j] > Z[i, j], 0.0, -0.0)
            C[12, i, j] = 1.0 / T.if_then_else(X[i, j] > Z[i, j], -0.0, 0.0)
        T.reduce_max(tile, rows, dim=1)
        T.copy(rows, R[0, :])
        T.reduce_min(tile, rows, dim=1)
        T.copy(rows, R[1, :])
        T.reduce_absmax(tile, rows, dim=1)
        T.copy(rows, R[2, :])
        T.reduce_max(tile, rows, dim=1, nan_propagate=True)
        T.copy(rows, R[3, :])


@program(
    parameters={"dtype": FLOATS},
    inputs={
        "X": lambda rng, shape: np.where(rng.random(shape) < [[0.4]] * 7 + [[1]], math.nan, -3)
    },
    fast=["metal"],
)
def largest_numbers_among_none(X: dtype[8, 8], Y: dtype[4, 8], Z: dtype[8, 8]):
    """A loop over elements and an operator; the last row has no number."""
    with T.Kernel(1, threads=32):
        tile, rows = T.alloc_shared((8, 8), dtype), T.alloc_fragment((8,), dtype)
        T.copy(X, tile)
        T.reduce_max(tile, rows, dim=1)
        T.copy(rows, Y[0, :])
        T.fill(rows, -T.infinity(dtype))
        for i, j in T.Parallel(8, 8):
            rows[i] = T.max(rows[i], tile[i, j])
        T.copy(rows, Y[1, :])
        T.reduce_min(tile, rows, dim=1)
        T.copy(rows, Y[2, :])
        T.reduce_absmax(tile, rows, dim=1)
        T.copy(rows, Y[3, :])
        T.cummax(tile, Z, dim=1)


@program(
    parameters={"dtype": ["float16", E4M3, E5M2]},
    examples="dtype",
    inputs="extreme",
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    fast=["metal"],
)
def constants_beyond_a_narrow_float(C: float32[8, 1, 4]):
    """Constants become what the same conversion gives at run time."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(1, 4):
            for n, value in tuple(enumerate((65504, 65519, 65520, 2147483647, -65519, 448))):
                C[n, i, j] = T.cast(T.cast(T.int32(value), dtype), "float32")
            for n, value in ((6, -65520), (7, -449)):
                C[n, i, j] = T.cast(T.cast(T.cast(T.int32(value), "float32"), dtype), "float32")


@program(
    parameters={"dtype": ["float16", BRAIN, E4M3, E5M2]},
    examples="dtype",
    inputs="extreme",
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def known_numbers_that_are_rounded(X: float32[16, 4], C: float32[7, 16, 4], D: int32[16, 4]):
    """TVM computes with numbers that lowering comes to know; some are beyond what a float holds."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(16):
            for k in T.unroll(4):
                C[0, i, k] = T.cast(T.cast(k * 30000, dtype), "float32")
                C[1, i, k] = T.cast(
                    T.cast(T.cast(k, "float32") * T.float32(1.5e38), dtype), "float32"
                )
                C[2, i, k] = T.cast(-T.cast(k * -30000, dtype), "float32")
                C[3, i, k] = T.cast(T.cast(T.cast(k * 20000, BRAIN), dtype), "float32")
                C[4, i, k] = T.cast(T.cast(T.cast(T.int32(2147483392), BRAIN), dtype), "float32")
                C[5, i, k] = X[i, k] / T.cast(k - 1, "float32")
                C[6, i, k] = T.cast(T.cast(0.1, dtype), "float32")
                D[i, k] = T.cast(T.cast(k + 16777215, "float32"), "int32")


@program(inputs="extreme", targets=["llvm"])
def floats_that_are_rounded_once(
    A: BRAIN[16, 8],
    B: BRAIN[16, 8],
    C: BRAIN[16, 8],
    D: BRAIN[10, 16, 8],
    W: float32[16, 8],
    U: uint16[16, 8],
):
    """Each operation, what names hold, and an expression that uses each name several times."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(16, 8):
            D[0, i, j] = A[i, j] * B[i, j] + C[i, j]
            D[1, i, j] = A[i, j] - B[i, j]
            D[2, i, j] = A[i, j] / B[i, j]
            D[3, i, j] = T.max(A[i, j], B[i, j])
            D[4, i, j] = T.min(-A[i, j], B[i, j])
            D[5, i, j] = T.if_then_else(A[i, j] < B[i, j], A[i, j], B[i, j] * B[i, j])
            D[6, i, j] = T.Select(A[i, j] >= B[i, j], B[i, j], A[i, j])
            D[7, i, j] = T.sqrt(T.abs(A[i, j]))
            D[8, i, j] = A[i, j] + T.bfloat16(1.1)
            wide = T.cast(B[i, j], "float32")
            product = A[i, j] * T.cast(wide, BRAIN)
            W[i, j] = T.cast(product, "float32") + wide
            U[i, j] = T.reinterpret(A[i, j], "uint16")
            a = A[i, j]
            for _ in (0,) * 6:
                a = T.max(a / (T.abs(a * B[i, j]) + T.bfloat16(1)), C[i, j])
            D[9, i, j] = a


@program(inputs="extreme", targets=["llvm", "metal", "sm_80", "gpu"], fast=["metal", "sm_80"])
def reinterpreted_constants(
    A: int32[1, 32],
    C: float32[6, 1, 32],
    D: float16[2, 1, 32],
    E: int32[4, 1, 32],
    F: uint8[2, 1, 32],
    G: int64[4, 1, 32],
):
    """Numbers that have no address in C; and values that have one."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(1, 32):
            C[0, i, j] = T.reinterpret(T.int32(-2147483648), "float32")
            C[1, i, j] = T.reinterpret(T.int32(-5), "float32")
            C[2, i, j] = T.reinterpret(T.uint32(3000000000), "float32")
            C[3, i, j] = T.reinterpret(A[i, j], "float32")
            C[4, i, j] = T.max(
                T.cast(A[i, j], "float32"), T.reinterpret(T.int32(-2147483648), "float32")
            )
            C[5, i, j] = T.reinterpret(T.if_then_else(A[i, j] > 3, A[i, j], 0), "float32")
            D[0, i, j] = T.reinterpret(T.int16(-5), "float16")
            D[1, i, j] = T.reinterpret(T.cast(A[i, j], "int16"), "float16")
            E[0, i, j] = T.reinterpret(T.float32(-1.5), "int32")
            E[1, i, j] = T.reinterpret(T.float32(float("inf")), "int32")
            E[2, i, j] = T.reinterpret(T.float32(1e-40), "int32")
            E[3, i, j] = T.reinterpret(T.uint32(3000000000), "int32")
            F[0, i, j] = T.reinterpret(T.int8(-5), "uint8")
            F[1, i, j] = T.reinterpret(T.cast(T.float32(1.5), E4M3), "uint8")
            G[0, i, j] = T.cast(T.reinterpret(T.float16(1.5), "int16"), "int64")
            G[1, i, j] = T.cast(T.reinterpret(T.bfloat16(-1.5), "int16"), "int64")
            G[2, i, j] = T.cast(T.reinterpret(T.uint64(9223372036854775813), "int64"), "int64")
            G[3, i, j] = T.cast(T.reinterpret(T.int32(-5), "uint32"), "int64")


@program(
    parameters={"dtype": [BRAIN, E4M3, E5M2]}, examples="dtype", inputs="extreme", targets=["llvm"]
)
def floats_of_few_bits(
    A: float32[16, 8],
    B: dtype[16, 8],
    C: dtype[16, 8],
    U: uint8[16, 8],
    D: float32[16, 8],
    E: float32[2, 16, 8],
    F: dtype[16, 8],
):
    """A tile and a conversion round, a choice moves bits, bits become a float."""
    with T.Kernel(1, threads=32) as bx:
        tile = T.alloc_fragment((16, 8), dtype)
        T.copy(A[bx * 16, 0], tile)
        T.copy(tile, D[bx * 16, 0])
        for i, j in T.Parallel(16, 8):
            E[0, i, j] = T.cast(T.cast(A[i, j], dtype), "float32")
            F[i, j] = T.if_then_else(i % 2 == 0, B[i, j], C[i, j])
            E[1, i, j] = T.cast(T.reinterpret(U[i, j], E5M2), "float32")


@program(inputs={"P": [0, 1, 2, 3, 7, 8, 1 << 30, 5]}, targets=["llvm"])
def floats_in_variables_and_under_guards(
    A: BRAIN[8],
    P: int32[8],
    H: float16[8],
    B: BRAIN[2, 8],
    D: BRAIN[64],
    E: float32[8],
    F: float16[8],
):
    """Values are computed once, and under their guard: in variables, in vectors, at an edge."""
    with T.Kernel(1, threads=32):
        total = T.alloc_var(BRAIN, 0.0)
        squares = T.alloc_local((8,), BRAIN)
        tile, wide = T.alloc_shared((8,), BRAIN), T.alloc_shared((64,), BRAIN)
        for j in T.vectorized(8):
            squares[j] = A[j] * A[j]
        for i in T.serial(8):
            total = total + squares[i]
            B[0, i] = total
        T.copy(A, tile)
        for i in T.Parallel(8):
            B[1, i] = T.if_then_else(
                P[i] < 8, (tile[P[i]] + T.bfloat16(1)) * T.bfloat16(3), T.bfloat16(0)
            )
            E[i] = T.exp(T.cast(A[i], "float32")) + T.cast(T.exp2(A[i]), "float32")
            F[i] = T.cast(T.tanh(T.cast(H[i], BRAIN)), "float16")
        T.copy(A[0], wide)
        T.copy(wide, D)


@program(targets=["llvm", "sm_90a", "gpu"], fast=["sm_90a"])
def floats_of_two_tiles_decoded_before_one_loop(A: E4M3[16, 16], B: float32[16, 16]):
    with T.Kernel(1, threads=64):
        a, b = T.alloc_shared((16, 16), E4M3), T.alloc_shared((16, 16), E4M3)
        c = T.alloc_shared((16, 16), E4M3)
        T.copy(A, a)
        T.copy(A, b)
        for i, j in T.Parallel(16, 16):
            c[i, j] = T.cast(a[i, j], "float32") - T.cast(b[i, j], "float32") * 2
        T.copy(c, B)


@program(
    parameters={"dtype": [*FLOATS, E4M3, E5M2]},
    examples="dtype",
    inputs="extreme",
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal", "sm_80"],
)
def floats_that_become_simple(
    A: dtype[64], C: float32[11, 64, 2], B: int8[64], E: int8[64], D: int32[3, 64]
):
    """TVM folds what has become a constant, or one expression, when names and indices have values."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            for k in T.unroll(2):
                number = T.cast(k, dtype)
                zero = T.cast(0, dtype)
                again = T.cast(T.cast(A[i + T.min(k, 0)], "float32"), dtype)
                C[0, i, k] = T.cast(A[i] * number, "float32")
                C[1, i, k] = T.float32(1) / T.cast(A[i] + number, "float32")
                C[2, i, k] = T.cast(number / A[i], "float32")
                C[3, i, k] = T.cast(zero * A[i], "float32")
                C[4, i, k] = T.float32(1) / T.cast(zero + A[i], "float32")
                C[5, i, k] = T.cast(zero / A[i], "float32")
                C[6, i, k] = T.cast(A[i] - again, "float32")
                C[7, i, k] = T.cast((again + A[i]) - A[i + T.min(k, 0)], "float32")
                C[8, i, k] = T.if_then_else(A[i] != again, T.float32(1), T.float32(2))
                C[9, i, k] = T.Select(A[i] <= again, T.float32(1), T.float32(2))
                C[10, i, k] = T.if_then_else(
                    A[i] < again or again <= A[i], T.float32(1), T.float32(2)
                )
        for i in T.Parallel(64):
            D[0, i] = T.max(
                T.min(
                    T.cast(T.cast(B[i], "float32") / (T.abs(T.cast(E[i], "float32")) + 1), "int32")
                    * T.cast(B[i], "int32"),
                    4,
                ),
                -4,
            )
            D[1, i] = T.if_then_else(
                T.cast(T.cast(B[i], "float32") / (T.abs(T.cast(E[i], "float32")) + 1), "int32")
                == 0,
                1,
                2,
            )
            D[2, i] = T.min(T.cast(T.cast(T.cast(i + 2017, "float16"), "float32"), "int32"), 2080)


@program(inputs={"C": [1]}, targets=["llvm", "metal", "sm_80"], fast=["metal"])
def constants_that_fewer_digits_would_change(A: float32[6], B: bfloat16[2], C: int32[1]):
    with T.Kernel(1, threads=32):
        for i, value in (
            *((0, 16777216.0), (1, 0.1), (2, 1.0000001), (3, -math.inf)),
            *((4, 1e-42), (5, 3.4028234663852886e38)),
        ):
            A[i] = T.float32(value)
        B[0] = T.bfloat16(1e30)
        B[1] = T.if_then_else(C[0] > 0, T.bfloat16(2e30), T.bfloat16(-math.inf))
        C[0] = T.min(C[0], -(2**31))
