"""Reductions, running totals, reducers and quantifiers: kinds, axes, dtypes, regions, threads."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

import tvmtile.language as T
from tests.programs import program
from tests.programs.text import Name

KINDS = ["sum", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor"]
BITS = KINDS[5:]
EXTREMES = ["max", "min", "absmax"]
SAME = {d: (d, d) for d in ("float32", "int32", "float16", "bfloat16", "float64", "int8", "uint8")}
DTYPES = [
    *(SAME["float32"], SAME["int32"], SAME["float16"], ("float16", "float32"), SAME["bfloat16"]),
    *(("float32", "bfloat16"), SAME["float64"], ("float64", "float32"), SAME["int8"]),
    *(
        ("int8", "int32"),
        ("int8", "float32"),
        SAME["uint8"],
        ("int64", "int64"),
        ("uint64", "uint64"),
    ),
    *(("bool", "int32"), ("bool", "bool"), ("uint32", "int32")),
]
PAIRS = list(zip(KINDS[:5] * 2 + ["sum"] * 4 + ["bitor"], DTYPES[1:16], strict=True))


# Of the tile, the axis, and what is left.
SHAPES = [
    *(((5, 77), 1, (5,)), ((37, 21), 0, (21,)), ((37, 21), 0, (1, 21))),
    *(((3, 4, 5, 6), 0, (4, 5, 6)), ((3, 4, 5, 6), 1, (3, 5, 6)), ((3, 4, 5, 6), -1, (3, 4, 5))),
    *(((3, 4, 5, 6), 2, (3, 4, 1, 6)), ((1, 64), 1, (1,)), ((1, 64), 0, (64,)), ((64, 1), 0, (1,))),
    *(((64, 1), 1, (64, 1)), ((1, 1), 0, (1,)), ((90,), 0, (1,)), ((4, 256), -1, (4,))),
    *(((256, 4), 0, (4,)), ((5, 6, 20), 0, (6, 20)), ((5, 6, 20), 1, (5, 20)), ((9, 130), 1, (9,))),
    *(((8, 4, 3), 0, (4, 3)), ((2, 8, 3), 1, (2, 3)), ((2, 4, 5), 2, (2, 4))),
]
LONG, OVER_WARPS = ((1, 4096), 1, (1,)), ((3, 300), 1, (3,))
GPUS = ["llvm", "sm_80", "sm_89", "sm_90a", "sm_100a", "gpu"]
TILES, TENSORS = ("fragment", "fragment"), ("device", "device")


def _numbers(rng, shape, dtype, kind, has_none):
    """Sums fit into a byte; of extremes all have a sign, that one which begins with zero is found."""
    if has_none:
        numbers = rng.choice([-np.inf, np.inf, 1, 2, -3, 0.5], shape)
        return np.where(np.arange(numbers.size).reshape(shape) % 4 == 1, np.nan, numbers)
    if max(shape) == 4096:
        return np.ones(shape)  # a sum that is kept in float16 stops at 2048
    sign = {"max": -1, "min": 1}.get(kind)
    if dtype.startswith("float") or dtype == "bfloat16":
        numbers = rng.standard_normal(shape)
        return numbers if sign is None else sign * (1 + np.abs(numbers))
    if dtype[0] == "u" or dtype == "bool":
        return rng.integers(0, 2, shape)
    if sign is None:
        return rng.integers(-1, 2, shape) * (rng.random(shape) < 0.3)
    return sign * rng.integers(1, 100, shape)


def _fits_dtype(p):
    if p.nan is not None:
        return p.kind in EXTREMES and p.dtypes[0] == p.dtypes[1] and "float" in p.dtypes[0]
    if p.dtypes[1] == "bool":
        return p.dtypes[0] == "bool" and p.kind == "bitor"
    is_word = p.dtypes[0] == "int32"
    return p.kind == "sum" or is_word or (p.kind not in BITS and p.dtypes[0] != "bool")


@program(
    inputs={
        "A": lambda rng, shape: -np.arange(math.prod(shape)).reshape(shape),
        "B": lambda rng, shape: np.arange(math.prod(shape)),
    },
    targets=["llvm", "metal", "sm_80"],
)
def few_extrema(A: bfloat16[8, 7], B: T.Tensor((13,), "float8_e4m3fn"), O: float32[2]):
    """The last ones of fewer than 16, which LLVM does with a mask."""
    with T.Kernel(1, threads=32):
        a = T.alloc_fragment((8, 7), "int32")
        least = T.alloc_fragment((1,), "float32")
        T.copy(A, a)
        T.clear(least)
        for i, j in T.Parallel(8, 7):
            least[0] = T.min(least[0], T.cast(T.cast(a[i, j], "bfloat16"), "float32"))
        O[0] = least[0]
        largest = T.alloc_var("float32", init=0)
        for j in T.serial(13):
            largest = T.max(largest, T.cast(B[j], "float32") * 2)
        O[1] = largest


@program(
    name="reduce_extents_known_at_run_time",
    parameters={
        "kind": ["sum", "max"],
        "dtypes": [SAME["float32"]],
        "tile": [
            ((Name("m"), Name("n")), 1, (Name("m"),)),
            ((Name("m"), Name("n")), 0, (Name("n"),)),
        ],
        "clear": [True],
        "scopes": [TENSORS],
        "threads": [128],
        "nan": [None],
    },
    sizes=[{"m": 7, "n": 19}, {"m": 1, "n": 3}],
    targets=["llvm"],
)
@program(
    parameters={
        "kind": KINDS,
        "dtypes": DTYPES,
        "tile": SHAPES,
        "clear": [True, False],
        "scopes": [("shared", "fragment"), TILES, ("fragment", "shared"), TENSORS],
        "threads": [32, 96, 48, 40, 64, 128, 256],  # lanes lie no power of two apart
        "nan": [None, False, True],  # it is left out, or it is the result
    },
    examples=[
        {},
        *({"kind": k, "dtypes": d, "tile": SHAPES[n % 2]} for n, (k, d) in enumerate(PAIRS)),
        *({"kind": k, "dtypes": SAME["int32"], "clear": False} for k in ("max", *BITS)),
        *({"kind": k, "tile": OVER_WARPS, "threads": 256, "scopes": TILES} for k in ("max", "min")),
        *({"dtypes": SAME[d], "tile": LONG, "threads": 128} for d in ("float16", "bfloat16")),
        {"tile": SHAPES[-3], "threads": 96, "scopes": TENSORS},
        *({"kind": "max", "dtypes": SAME[d], "nan": False} for d in ("float32", "bfloat16")),
        {"kind": "max", "dtypes": SAME["float16"], "nan": True},
        {"kind": "max", "dtypes": SAME["float16"], "nan": False, "tile": SHAPES[1]},
        {"dtypes": ("uint32", "int32"), "tile": ((9, 130), 1, (9,)), "scopes": TILES},
    ],
    where=_fits_dtype,
    inputs={"A": lambda rng, shape: _numbers(rng, shape, dtypes[0], kind, nan is not None)},
    targets=lambda p: [*GPUS, *([] if "float64" in p.dtypes else ["metal"])],
    drawn=12,
    fast=["metal", "sm_80"],
)
def reduce(A: T.Tensor(tile[0], dtypes[0]), C: T.Tensor(tile[2], dtypes[1])):
    with T.Kernel(1, threads=threads):
        src, total = A, C
        if scopes[0] != "device":
            source = getattr(T, "alloc_" + scopes[0])(tile[0], dtypes[0])
            T.copy(A, source)
            src = source
        if scopes[1] != "device":
            result = getattr(T, "alloc_" + scopes[1])(tile[2], dtypes[1])
            T.copy(C, result)
            total = result
        if nan is None:
            getattr(T, "reduce_" + kind)(src, total, dim=tile[1], clear=clear)
        else:
            getattr(T, "reduce_" + kind)(src, total, dim=tile[1], clear=clear, nan_propagate=nan)
        if scopes[1] != "device":
            T.copy(total, C)


@program(
    parameters={
        "spans": st.tuples(
            st.tuples(*[st.integers(0, 20)] * 3),
            st.tuples(*[st.integers(1, 20)] * 3),
            st.tuples(*[st.integers(0, 5)] * 3),
        ),
        "dim": [0, 1, 2],
        "kind": ["sum", "max", "bitxor"],
    },
    examples=[{"spans": ((2, 0, 1), (9, 37, 1), (3, 1, 0))}],
    where=lambda p: math.prod(map(sum, zip(*p.spans, strict=True))) <= 8 << 10,  # Metal's memory
    fast=["metal"],
)
def reduce_a_region_of_a_tile(A: T.Tensor(whole, "int32"), C: T.Tensor(left, "int32")):
    """`spans` says per axis where the region begins, how long it is, and what is left behind it."""
    (x, y, z), (a, b, c), rest = spans
    whole = (x + a + rest[0], y + b + rest[1], z + c + rest[2])
    left = ((b, c), (a, c), (a, b))[dim]
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared(whole, "int32")
        T.copy(A, tile)
        T.reduce(tile[x : x + a, y : y + b, z : z + c], C, kind, dim)


@program(parameters={"kind": ["sum", "max"]}, fast=["metal"])
def reduce_tensors(A: float32[50, 70], B: float32[50], E: float32[5]):
    """Regions reach over the edge, and a part of a row is reduced into a variable."""
    with T.Kernel(4, threads=32) as bx:
        getattr(T, "reduce_" + kind)(
            A[bx * 16 : bx * 16 + 16, 0:70], B[bx * 16 : bx * 16 + 16], dim=1
        )
        if bx == 0:
            for i in T.serial(5):
                total = T.alloc_var("float32", init=1)
                getattr(T, "reduce_" + kind)(A[i, 3:40], total, clear=False)
                E[i] = total


REDUCERS = [kind for kind in KINDS if not kind.startswith("abs")]


@program(
    parameters={"op": REDUCERS, "init": [None, 3]},
    examples=[{"op": op, "init": 3} for op in REDUCERS],
    fast=["metal", "sm_80"],
)
def reducer_of_rows(A: int32[20, 33], C: int32[20]):
    with T.Kernel(1, threads=32):
        total = T.alloc_reducer((20,), "int32", op=op)
        result = T.alloc_fragment((20,), "int32")
        T.reducer_init(total, init)
        for i, j in T.Parallel(20, 33):
            T.reducer_update(total[i], A[i, j])
        T.finalize_reducer(total, result)
        T.copy(result, C)


@program(fast=["metal", "sm_80"])
def reducer_that_a_group_adds_to(A: float32[64, 32], C: float32[8]):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        total = T.alloc_reducer((8,), "float32")
        result = T.alloc_fragment((8,), "float32")
        T.reducer_init(total, 1)
        if tx < 32:
            for i, j in T.Parallel(8, 32):
                T.reducer_update(total[i], A[i, j])
        T.finalize_reducer(total, result)
        T.copy(result, C)


@program(fast=["metal"])
def reducer_of_several_loops(
    A: float16[4, 3, 16], B: float32[8, 16], C: float32[4], D: float32[8], E: float32[8]
):
    """Contributions are converted, an outer loop begins again; the older style has ordinary stores,
    also of one thread and of iterations that repeat, and its reducer is an ordinary tile afterwards.
    """
    with T.Kernel(1, threads=128):
        total = T.alloc_reducer((1,), "float32")
        result = T.alloc_fragment((1,), "float32")
        for n in T.serial(4):
            T.reducer_init(total, 1)
            for k in T.serial(3):
                for i in T.Parallel(16):
                    T.reducer_update(total[0], A[n, k, i])
            T.finalize_reducer(total, result)
            C[n] = result[0]
        rows = T.alloc_reducer(8, "float32", op="sum")
        T.clear(rows)
        for i, j in T.Parallel(8, 16):
            rows[i] += B[i, j]
        T.finalize_reducer(rows)
        T.copy(rows, D)
        largest = T.alloc_reducer((8,), "float32", op="max")
        for step in T.serial(2):
            T.fill(largest, -100)
            for i, j in T.Parallel(8, 8):
                largest[i] = T.max(largest[i], B[i, step * 8 + j])
            largest[3] = T.max(largest[3], 7 + step)
            T.finalize_reducer(largest)
            for i in T.Parallel(8):
                largest[i] = largest[i] * 2
            for i in T.Parallel(8):
                E[i] += largest[i]


@program(
    parameters={
        "kind": ["any_of", "all_of"],
        "dtype": ["float32", "bool", "int8", "float16"],
        "scope": ["shared", "fragment"],
    },
    inputs={
        "A": lambda rng, shape: [
            [0] * 37, [0] * 36 + [1], [0] * 19 + [1] + [0] * 17, [1] * 37, [0] + [1] * 36,
        ]
    },
    fast=["metal", "sm_80"],
)  # fmt: skip
def quantifiers(A: dtype[5, 37], C: int32[5, 4]):
    """Rows with no, some and only true elements; an answer is that of its place."""
    with T.Kernel(5, threads=64) as bx:
        tile = getattr(T, "alloc_" + scope)((37,), dtype)
        other = T.alloc_shared((8,), "int32")
        T.copy(A[bx, 0], tile)
        if getattr(T, kind)(tile):
            C[bx, 0] = 1
        C[bx, 1] = T.if_then_else(getattr(T, kind)(A[bx, 3:20]), 1, 2)
        T.clear(other)
        before = getattr(T, kind)(other)
        T.fill(other, 1)
        after = getattr(T, kind)(other)
        C[bx, 2] = T.cast(before, "int32")
        C[bx, 3] = T.cast(after, "int32")


M, N = 24, 64


@program(
    parameters={
        "form": ["along both axes", "names and conditions", "extrema", "iterations", "some"],
        "dtype": ["float32", "int32"],
        "threads": [64, 128],
    },
    examples="form",
    fast=["metal"],
)
def accumulations_of_a_tile(A: dtype[M, N], C: dtype[M], D: dtype[N], E: dtype[1]):
    with T.Kernel(1, threads=threads):
        x = T.alloc_shared((M, N), dtype)
        rows, columns = T.alloc_fragment((M,), dtype), T.alloc_fragment((N,), dtype)
        all = T.alloc_fragment((1,), dtype)
        T.copy(A, x)
        T.fill(rows, 3)
        T.clear(columns)
        T.clear(all)
        if form == "along both axes":
            for i, j in T.Parallel(M, N):
                rows[i] += x[i, j] * x[i, j]
            for i, j in T.Parallel(M, N):
                columns[j] += x[i, j]
            for i, j in T.Parallel(M, N):
                all[0] += x[i, j]
        elif form == "names and conditions":
            for i, j in T.Parallel(M, N):
                value = x[i, j] * 2
                rows[i] += value * value
            for i, j in T.Parallel(M, N):
                if x[i, j] > 0:
                    columns[j] += x[i, j]
        elif form == "extrema":
            for i, j in T.Parallel(M, N):
                rows[i] = T.max(rows[i], x[i, j])
            for i, j in T.Parallel(M, N):
                if j >= 5:
                    all[0] = T.min(all[0], x[i, j])
        elif form == "iterations":
            for k in T.serial(4):
                for i, j in T.Parallel(M, 16):
                    rows[i] += x[i, k * 16 + j]
            for k in T.serial(2):
                for l in T.serial(2):
                    for i, j in T.Parallel(M, 16):
                        if x[i, j] > 0:
                            all[0] += x[i, (k * 2 + l) * 16 + j]
        else:
            for k in T.serial(4):
                for i, j in T.Parallel(M, 16):
                    rows[i] = T.max(rows[i], x[i, k * 16 + j])
            for k in T.serial(4):
                if k % 2 == 0:
                    for i, j in T.Parallel(M, 16):
                        all[0] += x[i, k * 16 + j]
        T.copy(rows, C)
        T.copy(columns, D)
        T.copy(all, E)


@program(
    parameters={"extents": [(2, 16384), (4, 20000)]},
    examples="extents",
    inputs={
        "A": lambda rng, shape: rng.integers(-2, 3, shape),
        "B": lambda rng, shape: rng.integers(-2, 3, shape),
    },
)
def accumulation_piece_by_piece(
    A: T.Tensor(extents, "float32"), B: T.Tensor(extents, "float32"), C: float32[extents[0]]
):
    """The sum has more terms than threads have registers for."""
    with T.Kernel(1, threads=32):
        total = T.alloc_fragment((extents[0],), "float32")
        T.fill(total, 3)
        for i, j in T.Parallel(extents[0], extents[1]):
            if A[i, j] > -1:
                total[i] += A[i, j] * B[i, j]
        T.copy(total, C)


@program(expects={"sm_80": ["__shfl_xor_sync", "not __shared__"]}, fast=["sm_80"])
def accumulation_in_other_threads_than_the_terms(A: float16[M, N], C: float32[M]):
    with T.Kernel(1, threads=128):
        x = T.alloc_fragment((M, N), "float16")
        total = T.alloc_fragment((M,), "float32")
        T.copy(A, x)
        T.clear(total)
        for i, j in T.Parallel(M, N):
            total[i] += T.cast(x[i, j], "float32") * T.cast(x[i, j], "float32")
        T.copy(total, C)


@program(
    tags={"pipelined"},
)
def accumulation_of_cosines(A: float16[40, 100], B: float16[40, 100], C: float32[40]):
    """Cosines of the angles between the rows of two matrices are accumulated tile by tile."""
    with T.Kernel(T.ceildiv(40, 32), threads=64) as bx:
        a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
        product = T.alloc_fragment((32,), "float32")
        lengths = T.alloc_fragment((2, 32), "float32")
        T.clear(product)
        T.clear(lengths)
        for k in T.Pipelined(T.ceildiv(100, 32), num_stages=3):
            T.copy(A[bx * 32, k * 32], a)
            T.copy(B[bx * 32, k * 32], b)
            for i, j in T.Parallel(32, 32):
                x, y = T.cast(a[i, j], "float32"), T.cast(b[i, j], "float32")
                product[i] += x * y
                lengths[0, i] += x * x
            for i, j in T.Parallel(32, 32):
                y = T.cast(b[i, j], "float32")
                lengths[1, i] += y * y
        for i in T.Parallel(32):
            if bx * 32 + i < 40:
                C[bx * 32 + i] = product[i] * T.rsqrt(lengths[0, i] * lengths[1, i])
