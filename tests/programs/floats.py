"""Floats of few bits, functions of floats, and integers that become floats."""

from __future__ import annotations

import tvmtile.language as T
from tests.gpu.machine import HAS_GPU
from tests.programs import program

EIGHT = "float8_e5m2"
BRAIN = "bfloat16"


@program(tags={"floats"}, inputs="extreme", targets=["llvm"])
def floats_that_are_rounded_once(
    A: T.Tensor((16, 8), BRAIN),
    B: T.Tensor((16, 8), BRAIN),
    C: T.Tensor((16, 8), BRAIN),
    S: T.Tensor((16, 8), BRAIN),
    D: T.Tensor((16, 8), BRAIN),
    Q: T.Tensor((16, 8), BRAIN),
    M: T.Tensor((16, 8), BRAIN),
    N: T.Tensor((16, 8), BRAIN),
    I: T.Tensor((16, 8), BRAIN),
    J: T.Tensor((16, 8), BRAIN),
    R: T.Tensor((16, 8), BRAIN),
    K: T.Tensor((16, 8), BRAIN),
    W: T.Tensor((16, 8), "float32"),
    U: T.Tensor((16, 8), "uint16"),
    P: T.Tensor((16, 8), BRAIN),
):
    """Each operation, what names hold, and an expression that uses each name several times."""
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(16, 8):
            S[i, j] = A[i, j] * B[i, j] + C[i, j]
            D[i, j] = A[i, j] - B[i, j]
            Q[i, j] = A[i, j] / B[i, j]
            M[i, j] = T.max(A[i, j], B[i, j])
            N[i, j] = T.min(-A[i, j], B[i, j])
            I[i, j] = T.if_then_else(A[i, j] < B[i, j], A[i, j], B[i, j] * B[i, j])
            J[i, j] = T.Select(A[i, j] >= B[i, j], B[i, j], A[i, j])
            R[i, j] = T.sqrt(T.abs(A[i, j]))
            K[i, j] = A[i, j] + T.bfloat16(1.1)
            wide = T.cast(B[i, j], "float32")
            product = A[i, j] * T.cast(wide, BRAIN)
            W[i, j] = T.cast(product, "float32") + wide
            U[i, j] = T.reinterpret(A[i, j], "uint16")
            a = A[i, j]
            for _ in (0,) * 6:
                a = T.max(a / (T.abs(a * B[i, j]) + T.bfloat16(1)), C[i, j])
            P[i, j] = a


@program(
    tags={"floats"},
    parameters={"dtype": [BRAIN, "float8_e4m3fn", EIGHT]},
    examples=[{"dtype": dtype} for dtype in (BRAIN, "float8_e4m3fn", EIGHT)],
    inputs="extreme",
    targets=["llvm"],
)
def floats_of_few_bits(
    A: T.Tensor((16, 8), "float32"),
    B: T.Tensor((16, 8), dtype),
    C: T.Tensor((16, 8), dtype),
    U: T.Tensor((16, 8), "uint8"),
    D: T.Tensor((16, 8), "float32"),
    E: T.Tensor((16, 8), "float32"),
    F: T.Tensor((16, 8), dtype),
    G: T.Tensor((16, 8), "float32"),
):
    """A tile and a conversion round, a choice moves bits, bits become a float."""
    with T.Kernel(1, threads=32) as bx:
        tile = T.alloc_fragment((16, 8), dtype)
        T.copy(A[bx * 16, 0], tile)
        T.copy(tile, D[bx * 16, 0])
        for i, j in T.Parallel(16, 8):
            E[i, j] = T.cast(T.cast(A[i, j], dtype), "float32")
            F[i, j] = T.if_then_else(i % 2 == 0, B[i, j], C[i, j])
            G[i, j] = T.cast(T.reinterpret(U[i, j], EIGHT), "float32")


CASTS = [
    *(
        (source, to)
        for source in (BRAIN, "float8_e4m3fn")
        for to in ("float64", "float16", "int32")
    ),
    *((source, BRAIN) for source in ("float64", "float16", "int32", "float8_e4m3fn")),
    (BRAIN, EIGHT),
    ("float8_e4m3fn", EIGHT),
]


@program(
    tags={"floats"},
    parameters={"dtypes": CASTS},
    examples=[{"dtypes": dtypes} for dtypes in CASTS],
    targets=["llvm"],
)
def floats_converted(A: T.Tensor((128,), dtypes[0]), B: T.Tensor((128,), dtypes[1])):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(128):
            B[i] = T.cast(A[i], dtypes[1])


@program(
    tags={"floats"},
    inputs={"P": lambda rng, shape: [0, 1, 2, 3, 7, 8, 1 << 30, 5]},
    targets=["llvm"],
)
def floats_in_variables_and_under_guards(
    A: T.Tensor((8,), BRAIN),
    P: T.Tensor((8,), "int32"),
    H: T.Tensor((8,), "float16"),
    B: T.Tensor((8,), BRAIN),
    C: T.Tensor((8,), BRAIN),
    D: T.Tensor((64,), BRAIN),
    E: T.Tensor((8,), "float32"),
    F: T.Tensor((8,), "float16"),
):
    """What a condition guards is not computed before it; a value is computed once; vectors; an edge."""
    with T.Kernel(1, threads=32):
        total = T.alloc_var(BRAIN, 0.0)
        squares = T.alloc_local((8,), BRAIN)
        tile = T.alloc_shared((8,), BRAIN)
        wide = T.alloc_shared((64,), BRAIN)
        for j in T.vectorized(8):
            squares[j] = A[j] * A[j]
        for i in T.serial(8):
            total = total + squares[i]
            B[i] = total
        T.copy(A, tile)
        for i in T.Parallel(8):
            C[i] = T.if_then_else(
                P[i] < 8, (tile[P[i]] + T.bfloat16(1)) * T.bfloat16(3), T.bfloat16(0)
            )
            E[i] = T.exp(T.cast(A[i], "float32")) + T.cast(T.exp2(A[i]), "float32")
            F[i] = T.cast(T.tanh(T.cast(H[i], BRAIN)), "float16")
        T.copy(A[0], wide)
        T.copy(wide, D)


@program(tags={"floats"}, targets=["llvm", "sm_90a", "gpu"], fast=["sm_90a"])
def floats_of_two_tiles_decoded_before_one_loop(
    A: T.Tensor((16, 16), "float8_e4m3fn"), B: T.Tensor((16, 16), "float32")
):
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((16, 16), "float8_e4m3fn")
        b = T.alloc_shared((16, 16), "float8_e4m3fn")
        c = T.alloc_shared((16, 16), "float8_e4m3fn")
        T.copy(A, a)
        T.copy(A, b)
        for i, j in T.Parallel(16, 16):
            c[i, j] = T.cast(a[i, j], "float32") - T.cast(b[i, j], "float32") * 2
        T.copy(c, B)


@program(
    tags={"floats", "integers"},
    parameters={"is_named": [False, True]},
    examples=[{}, {"is_named": True}],
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
    A: T.Tensor((4096,), "uint8"),
    B: T.Tensor((4096,), "int8"),
    H: T.Tensor((4096,), "uint16"),
    I: T.Tensor((4096,), "int32"),
    C: T.Tensor((7, 4096), "float32"),
    D: T.Tensor((2, 4096), "float32"),
):
    """Every one of a small range."""
    with T.Kernel(4, threads=128) as bx:
        for q in T.Parallel(1024):
            i = bx * 1024 + q
            bits = (T.cast(A[i], "int32") >> 4) & 15
            small = (I[i] & 15) - 8
            wrapped = T.cast((I[i] & 511) - 200, "uint8")
            C[0, i] = T.cast(T.cast(A[i], "float16"), "float32")
            C[1, i] = T.cast(T.cast(B[i], "float16"), "float32")
            C[3, i] = T.cast(T.cast(((T.cast(A[i], "int32") >> 4) & 15) - 8, "float16"), "float32")
            C[4, i] = T.cast(T.cast(I[i] & 1023, "float16"), "float32")
            C[5, i] = T.cast(T.cast(T.cast(H[i], "int8"), "float16"), "float32")
            D[1, i] = T.cast(T.cast(I[i] & 127, BRAIN), "float32")
            if is_named:
                C[2, i] = T.cast(T.cast(bits, "float16"), "float32")
                C[6, i] = T.cast(T.cast(wrapped, "float16"), "float32")
                D[0, i] = T.cast(T.cast(small, BRAIN), "float32")
            else:
                C[2, i] = T.cast(T.cast((T.cast(A[i], "int32") >> 4) & 15, "float16"), "float32")
                C[6, i] = T.cast(T.cast(T.cast((I[i] & 511) - 200, "uint8"), "float16"), "float32")
                D[0, i] = T.cast(T.cast((I[i] & 15) - 8, BRAIN), "float32")


FUNCTIONS = ("cos", "exp", "exp10", "log", "log10", "log2", "sin", "tan", "tanh")
FAST = [f"__{name}f(" for name in FUNCTIONS[:-1]] + ["tvmtile_fast_tanh("]
EXACT = [f"{before}{name}f(" for name in (*FUNCTIONS, "pow") for before in ("= ", "(", "+ ")]


@program(
    tags={"floats"},
    parameters={"dtype": ["float32", "float16", BRAIN], "is_fast": [True, False]},
    examples=[
        {"dtype": dtype, "is_fast": is_fast}
        for is_fast in (True, False)
        for dtype in ("float32", "float16", BRAIN)
    ],
    inputs={"A": lambda rng, shape: np.linspace(0.1, 1.4, 64)},
    options=lambda p: {"pass_configs": {"tl.enable_fast_math": True}} if p.is_fast else {},
    expects=lambda p: {
        "sm_90a": FAST + [f"not {text}" for text in EXACT]
        if p.is_fast
        else [f"not {text}" for text in FAST]
    },
    targets=lambda p: [
        *("llvm", "metal", "sm_90a"),
        *(["gpu"] if not p.is_fast or not HAS_GPU else []),  # which compiles what it doesn't run
    ],
    fast=["sm_90a"],
)
def functions_of_floats(
    A: T.Tensor((64,), dtype), C: T.Tensor((9, 64), dtype), D: T.Tensor((16, 4), dtype)
):
    """They are approximations on CUDA where a kernel asks for it, also lane by lane of a vector."""
    with T.Kernel(1, threads=32):
        for n in (0, 1, 2, 3, 4, 5, 6, 7, 8):
            for i in T.Parallel(64):
                C[n, i] = getattr(T, FUNCTIONS[n])(A[i])
        for i in T.Parallel(16):
            for k in T.vectorized(4):
                D[i, k] = T.exp(A[i * 4 + k]) + T.tanh(A[i * 4 + k])
