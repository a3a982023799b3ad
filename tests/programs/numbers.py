"""Arithmetic: functions, roundings, conversions of constants, and numbers that are none."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

FLOATS = ["float32", "float16", "bfloat16"]
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


@program(
    tags={"numbers"},
    parameters={"dtype": [*FLOATS, "float64"], "which": [0, 1]},
    examples=[{"dtype": d, "which": w} for w in (0, 1) for d in (*FLOATS, "float64")],
    inputs={
        "A": lambda rng, shape: np.concatenate([np.logspace(-4, 0, 64), -np.logspace(-4, 0, 64)]),
        "B": lambda rng, shape: rng.uniform(-2, 2, shape),
    },
    targets=lambda p: ["llvm", "sm_80", "gpu", *(["metal"] if p.dtype != "float64" else [])],
    fast=["metal"],
)
def functions(
    A: T.Tensor((128,), dtype), B: T.Tensor((128,), dtype), C: T.Tensor((36, 256), dtype)
):
    """In a loop over T.vectorized, alone and in T.Parallel; nothing is lost of small arguments."""
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
    tags={"numbers"},
    inputs={
        "A": lambda rng, shape: [9, 50, 1e30, math.inf, -math.inf, -100, math.nan, 0],
        "B": lambda rng, shape: rng.integers(-50, 50, shape),
    },
    fast=["metal"],
)
def functions_of_some_numbers(
    A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "int32"), C: T.Tensor((13, 8), "float32")
):
    """Of what is no number, of several, of integers and of Python's."""
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


@program(
    tags={"numbers"},
    parameters={"dtype": LIMITED},
    examples=[{"dtype": dtype} for dtype in LIMITED],
    targets=["llvm"],
)
def ends_of_a_dtype(A: T.Tensor((4,), dtype)):
    with T.Kernel(1):
        A[0] = T.max_value(dtype)
        A[1] = T.min_value(dtype)
        if not dtype.startswith("float8_e4") and not dtype.endswith("fnuz"):
            A[2] = T.infinity(dtype)
            if not dtype.startswith("float8") and "int" not in dtype:
                A[3] = -T.infinity(dtype)


@program(
    tags={"numbers"},
    parameters={"dtype": ["float8_e4m3fn", "float32", "float16", "bfloat16", "float8_e5m2"]},
    examples=[{}, {"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "float8_e5m2"}],
    inputs={
        "A": lambda rng, shape: [
            *(-3.5, -2.5, -1.5, -0.5, -0.25, -0.2, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2.5, 3),
            *(3.5, 7, 0.49999997, 100.0, 5, 3.7, 8, -0.75, 9.5),
        ]
    },
    targets=["llvm", "metal", "sm_90a", "gpu"],
    fast=["metal", "sm_90a"],
)
def roundings(A: T.Tensor((24,), dtype), B: T.Tensor((2, 24), dtype)):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(24):
            B[0, i] = T.round(A[i])
            B[1, i] = T.round(A[i], "ties-away-from-zero")


@program(
    tags={"numbers"},
    parameters={"dtype": FLOATS},
    examples=[{}, {"dtype": "float16"}, {"dtype": "bfloat16"}],
    inputs="extreme",
    fast=["metal", "sm_80"],
)
def floats_that_are_extreme(
    X: T.Tensor((16, 32), dtype),
    Z: T.Tensor((16, 32), dtype),
    C: T.Tensor((16, 32), dtype),
    D: T.Tensor((16, 32), dtype),
    E: T.Tensor((16, 32), dtype),
    F: T.Tensor((16, 32), dtype),
    G: T.Tensor((16, 32), dtype),
    H: T.Tensor((16, 32), dtype),
    K: T.Tensor((16, 32), dtype),
    S: T.Tensor((16,), dtype),
    U: T.Tensor((16,), dtype),
    V: T.Tensor((16,), dtype),
    W: T.Tensor((16,), dtype),
):
    """Differences keep what a sum has lost; a number is larger and smaller than none."""
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 32), dtype)
        rows = T.alloc_fragment((16,), dtype)
        T.copy(X, tile)
        for i, j in T.Parallel(16, 32):
            C[i, j] = ((X[i, j] + Z[i, j]) - X[i, j]) - Z[i, j]
            D[i, j] = X[i, j] - (Z[i, j] + X[i, j])
            E[i, j] = T.if_then_else(T.isnan(X[i, j]), Z[i, j], X[i, j] - X[i, j])
            F[i, j] = T.max(X[i, j], Z[i, j])
            G[i, j] = T.min(X[i, j], Z[i, j])
            H[i, j] = T.max(1.0, T.max(X[i, j], -1.0))
            K[i, j] = T.clamp(X[i, j], -1.0, 1.0)
        T.reduce_max(tile, rows, dim=1)
        T.copy(rows, S)
        T.reduce_min(tile, rows, dim=1)
        T.copy(rows, U)
        T.reduce_absmax(tile, rows, dim=1)
        T.copy(rows, V)
        T.reduce_max(tile, rows, dim=1, nan_propagate=True)
        T.copy(rows, W)


@program(
    tags={"numbers"},
    parameters={"dtype": FLOATS},
    inputs={
        "X": lambda rng, shape: np.where(rng.random(shape) < [[0.4]] * 7 + [[1]], math.nan, -3),
    },
    fast=["metal"],
)
def largest_numbers_among_none(X: T.Tensor((8, 8), dtype), Y: T.Tensor((2, 8), dtype)):
    """A loop over elements and an operator; the last row has no number."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((8, 8), dtype)
        rows = T.alloc_fragment((8,), dtype)
        T.copy(X, tile)
        T.reduce_max(tile, rows, dim=1)
        T.copy(rows, Y[0, :])
        T.fill(rows, -T.infinity(dtype))
        for i, j in T.Parallel(8, 8):
            rows[i] = T.max(rows[i], tile[i, j])
        T.copy(rows, Y[1, :])


@program(
    tags={"numbers"},
    parameters={"dtype": ["float16", "float8_e4m3fn", "float8_e5m2"]},
    examples=[{}, {"dtype": "float8_e4m3fn"}, {"dtype": "float8_e5m2"}],
    inputs="extreme",
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    fast=["metal"],
)
def constants_beyond_a_narrow_float(
    A: T.Tensor((1, 4), "float32"),
    B: T.Tensor((1, 4), "float32"),
    C: T.Tensor((1, 4), "float32"),
    D: T.Tensor((1, 4), "float32"),
    E: T.Tensor((1, 4), "float32"),
    F: T.Tensor((1, 4), "float32"),
    G: T.Tensor((1, 4), "float32"),
    H: T.Tensor((1, 4), "float32"),
):
    """They become what they do at run time."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(1, 4):
            A[i, j] = T.cast(T.cast(T.int32(65504), dtype), "float32")
            B[i, j] = T.cast(T.cast(T.int32(65519), dtype), "float32")
            C[i, j] = T.cast(T.cast(T.int32(65520), dtype), "float32")
            D[i, j] = T.cast(T.cast(T.int32(2147483647), dtype), "float32")
            E[i, j] = T.cast(T.cast(T.int32(-65519), dtype), "float32")
            F[i, j] = T.cast(T.cast(T.cast(T.int32(-65520), "float32"), dtype), "float32")
            G[i, j] = T.cast(T.cast(T.int32(448), dtype), "float32")
            H[i, j] = T.cast(T.cast(T.cast(T.int32(-449), "float32"), dtype), "float32")


@program(
    tags={"numbers"},
    parameters={"dtype": ["int8", "int16", "int32", "int64"]},
    examples=[{}, {"dtype": "int64"}],
    inputs="extreme",
    fast=["metal"],
)
def magnitudes_of_integers(A: T.Tensor((16, 32), dtype), C: T.Tensor((16, 32), dtype)):
    """The smallest one has none."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(16, 32):
            C[i, j] = T.abs(A[i, j])


@program(
    tags={"numbers"},
    parameters={"amount": [31, 32, 40, 63]},
    examples=[{}, {"amount": 32}, {"amount": 40}, {"amount": 63}],
    inputs={
        "X": lambda rng, shape: np.arange(-4, 4),
        "Z": lambda rng, shape: np.arange(8) * 1234567890123456789 & (2**63 - 1),
        "N": lambda rng, shape: np.full(shape, amount),
        "M": lambda rng, shape: [0x1200000034, -1],
    },
    fast=["metal"],
)
def wide_numbers(
    X: T.Tensor((8,), "int8"),
    Z: T.Tensor((8,), "uint64"),
    N: T.Tensor((8,), "int32"),
    M: T.Tensor((2,), "int64"),
    Y: T.Tensor((5, 8), "int64"),
    C: T.Tensor((5,), "int32"),
):
    """Shifts of 32 bits in 64, by a constant and by what is known at run time only; wide masks."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            by = T.cast(N[i], "int64")
            Y[0, i] = T.cast(X[i], "int64") >> amount
            Y[1, i] = T.cast(Z[i] >> amount, "int64")
            Y[2, i] = T.cast(X[i], "int64") >> by
            Y[3, i] = (T.cast(i - 4, "int64") >> by) & 7
            Y[4, i] = (T.cast(X[i], "int64") << by) >> by
        C[0] = M[0] & 0xFFFFFFFF
        C[1] = (M[0] & 0xFF00000000) >> 32
        low = M[1]
        low &= 0xFFFFFFFF
        C[2] = low == 0xFFFFFFFF
        C[3] = (M[1] ^ 0xFFFFFFFFFF) | 0x10
        C[4] = (0x1200000000 >> T.cast(32 + N[0] * 0, "int64")) & 0xFF


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@program(
    tags={"numbers", "integers"},
    parameters={"dtype": INTEGERS},
    examples="dtype",
    inputs="extreme",
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def operators_of_integers(
    A: T.Tensor((64, 8), dtype), B: T.Tensor((64, 8), dtype), C: T.Tensor((21, 64, 8), dtype)
):
    """They wrap around, but those of 32 bits and more that have a sign."""
    half = 17 if dtype == "int32" else 33 if dtype == "int64" else 0
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(64, 8):
            a = A[i, j] >> half
            b = B[i, j] >> half
            divisor = T.if_then_else(b > 3, b & 7 | 1, ~(b & 7 | 1))
            C[0, i, j] = a + b
            C[1, i, j] = a - b
            C[2, i, j] = a * b
            C[3, i, j] = T.max(a + b, b)
            C[4, i, j] = T.min(a - b, b)
            C[5, i, j] = T.if_then_else(a > b, a + b, b)
            C[6, i, j] = T.Select(a > b, a + b, b)
            C[7, i, j] = T.clamp(a, 1, b)
            C[8, i, j] = T.cast(a + b > a - b, dtype)
            C[9, i, j] = T.cast((a > b and a < b + b) or not b > a, dtype)
            C[10, i, j] = a // divisor
            C[11, i, j] = a % divisor
            C[12, i, j] = T.truncdiv(a, divisor)
            C[13, i, j] = T.truncmod(a, divisor)
            C[14, i, j] = (a + b) // divisor
            C[15, i, j] = T.max(a & b, a ^ b) | 1
            C[16, i, j] = T.min(~a, b)
            C[17, i, j] = T.max(a << (b & 1), b)
            C[18, i, j] = (a + b) >> (b & 1)
            C[19, i, j] = T.max(T.abs(a), b)
            C[20, i, j] = T.popcount(a & b) + b


TO_AND_FROM = [*INTEGERS, *FLOATS, "bool"]


@program(
    tags={"numbers"},
    parameters={"dtype": TO_AND_FROM},
    examples="dtype",
    inputs={"A": lambda rng, shape: np.arange(64) % (2 if dtype == "bool" else 50)},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def conversions(A: T.Tensor((64,), dtype), C: T.Tensor((12, 64), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            for row in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11):
                C[row, i] = T.cast(T.cast(A[i], TO_AND_FROM[row]), "float32")


@program(
    tags={"numbers"},
    inputs={"C": lambda rng, shape: [1]},
    targets=["llvm", "metal", "sm_80"],
    fast=["metal"],
)
def constants_that_fewer_digits_would_change(
    A: T.Tensor((6,), "float32"), B: T.Tensor((2,), "bfloat16"), C: T.Tensor((1,), "int32")
):
    with T.Kernel(1, threads=32):
        for i, value in (
            *((0, 16777216.0), (1, 0.1), (2, 1.0000001), (3, -math.inf)),
            *((4, 1e-42), (5, 3.4028234663852886e38)),
        ):
            A[i] = T.float32(value)
        B[0] = T.bfloat16(1e30)
        B[1] = T.if_then_else(C[0] > 0, T.bfloat16(2e30), T.bfloat16(-math.inf))
        C[0] = T.min(C[0], -(2**31))


@program(tags={"numbers"}, inputs={"A": lambda rng, shape: np.arange(32)}, fast=["metal"])
def bits_of_a_narrow_integer_that_was_computed(
    A: T.Tensor((32,), "uint8"), C: T.Tensor((32,), "int8")
):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            C[i] = T.reinterpret((A[i] & T.uint8(15)) << T.uint8(4), "int8") >> T.int8(4)
