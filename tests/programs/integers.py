"""Arithmetic of integers: sums that wrap around, constants, quotients, conversions, arguments."""

from __future__ import annotations

import numpy as np

import tvmtile.language as T
from tests.programs import program


@program(
    parameters={"dtype": ["int8", "int16", "int32", "int64"]},
    examples=[{}, {"dtype": "int64"}],
    inputs="extreme",
    fast=["metal"],
)
def magnitudes_of_integers(A: dtype[16, 32], C: dtype[16, 32]):
    """The smallest integer has no magnitude."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(16, 32):
            C[i, j] = T.abs(A[i, j])


@program(
    parameters={"dtype": ["int32", "int8", "int16", "int64"]},
    examples="dtype",
    fast=["metal", "sm_80"],
)
def magnitudes_of_constants(C: dtype[16, 8], D: dtype[16, 8]):
    """Lowering comes to know the numbers, and TVM computes with them."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(16):
            for k in T.unroll(8):
                C[i, k] = T.abs(T.cast(k - 4, dtype))
                D[i, k] = T.abs(T.cast(1, dtype)) - T.cast(k, dtype)


@program(
    parameters={
        "dtype": ["uint32", "uint64", "uint8", "uint16"],
        "loop": ["unroll", "serial", "vectorized"],
    },
    examples=[
        {"dtype": "uint32", "loop": "unroll"},
        {"dtype": "uint64", "loop": "serial"},
        {"dtype": "uint64", "loop": "unroll"},
        {"dtype": "uint8", "loop": "unroll"},
        {"dtype": "uint16", "loop": "serial"},
    ],
    inputs="extreme",
    fast=["metal", "sm_80"],
)
def unsigned_constants_that_wrap(
    X: dtype[16, 8],
    Z: dtype[16, 8],
    C: dtype[14, 16, 8],
    D: bool[14, 16, 8],
    W: int64[3, 16, 8],
):
    """Lowering comes to know the numbers, or their ranges, and TVM computes with them."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(16):
            for k in getattr(T, loop)(8):
                known = T.cast(k, dtype)
                below = T.cast(k - 4, dtype)
                C[0, i, k] = T.cast(k - 4, dtype)
                C[1, i, k] = T.cast(0, dtype) - T.cast(k, dtype)
                C[2, i, k] = (T.cast(2, dtype) - known) // T.cast(3, dtype)
                C[3, i, k] = -T.cast(k, dtype)
                C[4, i, k] = -X[i, k]
                C[5, i, k] = X[i, k] - (X[i, k] + T.cast(1, dtype))
                C[6, i, k] = T.max(
                    known * T.cast(200, dtype) * T.cast(250, dtype), T.cast(100, dtype)
                )
                C[7, i, k] = (below >> 1) + (known << 5)
                C[8, i, k] = T.min(T.cast(2, dtype) - known, T.cast(100, dtype)) % T.cast(7, dtype)
                C[9, i, k] = T.cast((k ^ 5) - 7, dtype)
                C[10, i, k] = (X[i, k] - Z[i, k]) // T.cast(3, dtype)
                C[11, i, k] = T.cast(T.int32(-4), dtype) + known
                C[12, i, k] = T.if_then_else(
                    X[i, k] > T.cast(3, dtype), T.cast(0, dtype) - T.cast(1, dtype), below
                )
                C[13, i, k] = T.cast(T.cast(k - 4, "int8"), dtype)
                D[0, i, k] = T.cast(k, dtype) < T.cast(9, dtype)
                D[1, i, k] = T.cast(9, dtype) > known
                D[2, i, k] = below > T.cast(100, dtype)
                D[3, i, k] = T.cast(k, dtype) + T.cast(252, dtype) < T.cast(10, dtype)
                D[4, i, k] = T.cast(k, dtype) - T.cast(4, dtype) <= known
                D[5, i, k] = X[i, k] * Z[i, k] < X[i, k]
                D[6, i, k] = known * T.cast(64, dtype) == T.cast(0, dtype)
                D[7, i, k] = T.cast(k & 3, dtype) < known
                D[8, i, k] = T.cast(below, "int8") < 0
                D[9, i, k] = T.cast(below, "int32") < 0
                D[10, i, k] = T.cast(T.cast(255, dtype), "int8") < 0
                D[11, i, k] = T.cast(T.cast(k - 4, dtype), "int64") < 0
                D[12, i, k] = T.cast((known << T.cast(6, dtype)) + known, "int64") >= 256
                high = T.cast(100, "uint64") << T.cast(57, "uint64")
                D[13, i, k] = (high - T.cast(100, "uint64")) + T.cast(
                    known * known, "uint64"
                ) > high
                W[0, i, k] = T.cast(T.cast(2, dtype) - known, "int64") // 2
                W[1, i, k] = T.cast(X[i, k] - Z[i, k], "int64") // 2
                W[2, i, k] = T.cast(below + T.cast(2, dtype), "int64")


@program(
    parameters={"dtype": ["int8", "int16", "uint8", "uint16"]},
    examples="dtype",
    inputs="extreme",
    fast=["metal"],
)
def narrow_sums_that_wrap(
    X: dtype[16, 32], Z: dtype[16, 32], C: dtype[6, 16, 32], D: bool[3, 16, 32], W: int32[2, 16, 32]
):
    """Sums wrap, of what is read and of indices whose range is known."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(16, 32):
            C[0, i, j] = (X[i, j] + T.cast(100, dtype)) // T.cast(3, dtype)
            C[1, i, j] = (X[i, j] - Z[i, j]) // T.cast(3, dtype)
            C[2, i, j] = T.max(X[i, j] + T.cast(100, dtype), T.cast(0, dtype))
            C[3, i, j] = (X[i, j] * Z[i, j]) % T.cast(7, dtype)
            C[4, i, j] = (T.cast(j * 3, dtype) * T.cast(100, dtype)) // T.cast(7, dtype)
            C[5, i, j] = T.min(T.cast(j, dtype) * T.cast(64, dtype), T.cast(j, dtype))
            D[0, i, j] = X[i, j] + T.cast(100, dtype) < T.cast(0, dtype)
            D[1, i, j] = T.cast(j, dtype) * T.cast(64, dtype) < T.cast(j, dtype)
            D[2, i, j] = X[i, j] + T.cast(1, dtype) > X[i, j]
            W[0, i, j] = T.cast(X[i, j] - Z[i, j], "int32") // 2
            W[1, i, j] = T.cast(T.cast(j, dtype) * T.cast(100, dtype), "int32") // 2


@program(
    parameters={"dtype": ["uint32", "uint64"]},
    examples="dtype",
    inputs="extreme",
    fast=["metal", "sm_80"],
)
def unsigned_numbers_that_wrap(
    X: dtype[16, 32], Z: dtype[16, 32], C: dtype[12, 16, 32], D: bool[8, 16, 32]
):
    """A sum may be less than its terms, a difference more than what it is taken from."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(16, 32):
            x = X[i, j]
            z = Z[i, j]
            C[0, i, j] = T.max(x + z, z)
            C[1, i, j] = T.min(x + z, x)
            C[2, i, j] = T.max(X[i, j] + Z[i, j], Z[i, j])
            C[3, i, j] = T.max(x + 5, x)
            C[4, i, j] = T.min(x - 1, x)
            C[5, i, j] = T.max(x - z, x)
            C[6, i, j] = (x + 6) - 6
            C[7, i, j] = (x * 2) // 2
            C[8, i, j] = (x + z) // 2
            C[9, i, j] = (x * 4 + 4) % 4
            C[10, i, j] = T.max(x * z, x)
            C[11, i, j] = T.min(x + 7, 3)
            D[0, i, j] = x + z >= z
            D[1, i, j] = x + 5 > x
            D[2, i, j] = x - 1 < x
            D[3, i, j] = x - z <= x
            D[4, i, j] = x + z == z + x
            D[5, i, j] = x + 5 < 5
            D[6, i, j] = x * 2 >= x
            D[7, i, j] = X[i, j] + Z[i, j] < Z[i, j]


@program(
    parameters={"amount": [31, 32, 40, 63]},
    examples="amount",
    inputs={
        "X": lambda rng, shape: np.arange(-4, 4),
        "Z": lambda rng, shape: np.arange(8) * 1234567890123456789 & (2**63 - 1),
        "N": lambda rng, shape: np.full(shape, amount),
        "M": [0x1200000034, -1],
    },
    fast=["metal"],
)
def wide_numbers(X: int8[8], Z: uint64[8], N: int32[8], M: int64[2], Y: int64[5, 8], C: int32[5]):
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


@program(
    inputs={
        "A": lambda rng, shape: np.arange(4096) % 256,
        "B": lambda rng, shape: np.arange(4096) % 256 - 128,
        "H": lambda rng, shape: np.arange(4096) * 3,
        "I": lambda rng, shape: np.arange(4096) - 2048,
    },
    targets=["llvm", "sm_80", "gpu"],
    fast=["sm_80"],
)
def integers_that_become_floats(
    A: uint8[4096], B: int8[4096], H: uint16[4096], I: int32[4096], C: float32[12, 4096]
):
    """Every one of a small range, with a name and without."""
    with T.Kernel(4, threads=128) as bx:
        for q in T.Parallel(1024):
            i = bx * 1024 + q
            bits = (T.cast(A[i], "int32") >> 4) & 15
            small = (I[i] & 15) - 8
            wrapped = T.cast((I[i] & 511) - 200, "uint8")
            C[0, i] = T.cast(T.cast(A[i], "float16"), "float32")
            C[1, i] = T.cast(T.cast(B[i], "float16"), "float32")
            C[2, i] = T.cast(T.cast(((T.cast(A[i], "int32") >> 4) & 15) - 8, "float16"), "float32")
            C[3, i] = T.cast(T.cast(I[i] & 1023, "float16"), "float32")
            C[4, i] = T.cast(T.cast(T.cast(H[i], "int8"), "float16"), "float32")
            C[5, i] = T.cast(T.cast(I[i] & 127, "bfloat16"), "float32")
            C[6, i] = T.cast(T.cast(bits, "float16"), "float32")
            C[7, i] = T.cast(T.cast(wrapped, "float16"), "float32")
            C[8, i] = T.cast(T.cast(small, "bfloat16"), "float32")
            C[9, i] = T.cast(T.cast((T.cast(A[i], "int32") >> 4) & 15, "float16"), "float32")
            C[10, i] = T.cast(T.cast(T.cast((I[i] & 511) - 200, "uint8"), "float16"), "float32")
            C[11, i] = T.cast(T.cast((I[i] & 15) - 8, "bfloat16"), "float32")


SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]
WRAPPED = [
    *(("int32", "int8"), ("uint64", "int64"), ("int64", "uint32"), ("uint32", "int32")),
    *(("int16", "uint64"), ("uint16", "int16"), ("int8", "uint16"), ("uint8", "int8")),
    ("int64", "uint8"),
]


@program(
    parameters={"source": SIGNED[::-1] + UNSIGNED[::-1], "target": SIGNED + UNSIGNED},
    examples=[{"source": source, "target": target} for source, target in WRAPPED],
    where=lambda p: not np.can_cast(p.source, p.target),
    targets=["llvm", "metal", "sm_80", "gpu"],
    drawn=4,
    inputs="extreme",
    fast=["metal"],
)
def integers_that_wrap(
    A: source[64, 8], F: source[64, 8], B: int32[2, 64, 8], Q: target[2, 64, 8], W: int64[4, 64, 8]
):
    """Integers, read or of an index, wrap: compared, divided, chosen, widened and shifted."""
    half = 2 ** (int(target.removeprefix("uint")) - 1) - 1 if target[0] == "u" else 0
    with T.Kernel(1, threads=64):
        for i, j in T.Parallel(64, 8):
            wrapped = T.cast(A[i, j], target)
            other = T.cast(T.cast(F[i, j], target), "int64")
            index = T.cast(T.cast(i * 7 - 200, source), target)
            B[0, i, j] = T.if_then_else(
                T.cast(A[i, j], target) < getattr(T, target)(half), T.int32(1), T.int32(0)
            )
            if index < getattr(T, target)(half):
                B[1, i, j] = T.int32(1)
            else:
                B[1, i, j] = T.int32(0)
            Q[0, i, j] = T.cast(A[i, j], target) // getattr(T, target)(3)
            Q[1, i, j] = T.max(wrapped, getattr(T, target)(half))
            W[0, i, j] = T.cast(T.cast(A[i, j], target), "int64")
            W[1, i, j] = T.cast(wrapped, "int64") // 2 - other // 2
            W[2, i, j] = T.cast(T.cast(A[i, j], target) >> getattr(T, target)(3), "int64")
            W[3, i, j] = T.cast(index, "int64")


NARROW = [
    *(("int32", "int8"), ("int64", "int8"), ("int64", "int32"), ("int32", "int16")),
    *(("int16", "int8"), ("float32", "bfloat16"), ("int8", "float8_e5m2")),
]


@program(parameters={"dtypes": NARROW}, examples="dtypes", targets=["llvm"])
def elements_of_few_bits(A: dtypes[0][32, 24], C: dtypes[1][10, 17], D: dtypes[1][10, 24]):
    """Nothing behind them is written, at an edge and of one element of a row."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((32, 24), dtypes[0])
        T.copy(A, tile)
        T.copy(tile, C[0, 0])
        for i, j in T.Parallel(10, 24):
            if j * 5 % 24 == 19:
                D[i, j] = tile[i, j]


@program(parameters={"dtype": SIGNED[:3]}, targets=["llvm"], drawn=3)
def elements_of_a_part_of_a_vector(A: int64[5, 9], C: dtype[5, 9]):
    """LLVM masks the last of nine iterations where they are too long to be repeated."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((5, 9), "int64")
        T.copy(A, tile)
        for i, j in T.Parallel(5, 9):
            x = tile[i, j]
            for _ in (0,) * 20:
                x = (x * x + tile[i, j]) & 65535
            C[i, j] = x


@program(
    parameters={"dtype": ["int32", "int8", "int64", "int16"]},
    examples="dtype",
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def quotients_of_remainders(A: dtype[64], C: dtype[28, 64]):
    """TVM makes another expression of most of them, and of some a wrong one."""
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            row = 0
            for first, second in ((6, 3), (6, -3), (-6, 3), (-6, -3), (3, -3), (-1, 2), (2, -1)):
                C[row, i] = (A[i] % first) // second
                C[row + 1, i] = (A[i] // first) % second
                C[row + 2, i] = (A[i] % first) % second
                C[row + 3, i] = T.truncdiv(A[i] % first, second) + T.truncmod(A[i] // first, second)
                row = row + 4


INTEGERS = SIGNED + UNSIGNED


@program(
    parameters={"dtype": INTEGERS},
    examples="dtype",
    inputs="extreme",
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def operators_of_integers(A: dtype[64, 8], B: dtype[64, 8], C: dtype[23, 64, 8]):
    """Operators wrap around, but for signed integers of 32 bits and more."""
    half = 17 if dtype == "int32" else 33 if dtype == "int64" else 0
    least = -(2**31) if dtype == "int32" else -128 if dtype == "int8" else 0
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
            C[21, i, j] = T.cast(A[i, j] == T.cast(least, dtype), dtype)
            C[22, i, j] = T.cast(A[i, j] <= T.cast(least, dtype), dtype)


@program(
    inputs={"h": 2**40 + 3, "k": 2**63 + 5, "c": 200, "e": 60_000, "b": -128, "d": 5},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal", "sm_80"],
)
def numbers_of_a_call(
    a: T.bool,
    b: T.int8,
    c: T.uint8,
    d: T.int16,
    e: T.uint16,
    f: T.int32,
    g: T.uint32,
    h: T.int64,
    k: T.uint64,
    x: T.float16,
    y: T.float32,
    C: int64[11, 32],
    D: float32[2, 32],
):
    """TVM's runtime hands a kernel numbers of 32 and 64 bits; the grid and a loop depend on some."""
    with T.Kernel(c // T.uint8(100), threads=32):
        for i in T.Parallel(32):
            C[0, i] = T.cast(a, "int64")
            C[1, i] = T.cast(b, "int64")
            C[2, i] = T.cast(c, "int64")
            C[3, i] = T.cast(d, "int64")
            C[4, i] = T.cast(e, "int64")
            C[5, i] = T.cast(f, "int64")
            C[6, i] = T.cast(g, "int64")
            C[7, i] = h
            C[8, i] = T.cast(k, "int64")
            total = T.alloc_var("int64", init=0)
            for r in range(d):
                total += r
            C[9, i] = total
            C[10, i] = T.cast(k > T.uint64(4611686018427387904), "int64")
            D[0, i] = T.cast(x, "float32")
            D[1, i] = y


@program(inputs={"A": lambda rng, shape: np.arange(32)}, fast=["metal"])
def bits_of_a_narrow_integer_that_was_computed(A: uint8[32], C: int8[32]):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            C[i] = T.reinterpret((A[i] & T.uint8(15)) << T.uint8(4), "int8") >> T.int8(4)


TO_AND_FROM = [*INTEGERS, "float32", "float16", "bfloat16", "bool"]


@program(
    parameters={"dtype": TO_AND_FROM},
    examples="dtype",
    inputs={"A": lambda rng, shape: np.arange(64) % (2 if dtype == "bool" else 50)},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def conversions(A: dtype[64], C: float32[12, 64]):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            for row in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11):
                C[row, i] = T.cast(T.cast(A[i], TO_AND_FROM[row]), "float32")
