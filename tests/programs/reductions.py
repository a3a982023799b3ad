"""Reductions, reducers and quantifiers: kinds, axes, dtypes, regions, what was there before."""

from __future__ import annotations

import math

from hypothesis import strategies as st

import tvmtile.language as T
from tests.programs import program

KINDS = ["sum", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor"]
BITS = KINDS[5:]
DTYPES = [
    ("float32", "float32"),
    ("int32", "int32"),
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("float32", "bfloat16"),
    ("float64", "float64"),
    ("float64", "float32"),
    ("int8", "int8"),
    ("int8", "int32"),
    ("int8", "float32"),
    ("uint8", "uint8"),
    ("int64", "int64"),
    ("uint64", "uint64"),
    ("bool", "int32"),
    ("bool", "bool"),
]
PAIRS = list(zip(KINDS[:5] * 2 + ["sum"] * 4 + ["bitor"], DTYPES[1:], strict=True))
SHAPES = [
    ((5, 77), 1, (5,)),
    ((37, 21), 0, (21,)),
    ((37, 21), 0, (1, 21)),
    ((3, 4, 5, 6), 0, (4, 5, 6)),
    ((3, 4, 5, 6), 1, (3, 5, 6)),
    ((3, 4, 5, 6), 2, (3, 4, 1, 6)),
    ((3, 4, 5, 6), -1, (3, 4, 5)),
    ((1, 64), 1, (1,)),
    ((1, 64), 0, (64,)),
    ((64, 1), 0, (1,)),
    ((64, 1), 1, (64, 1)),
    ((1, 1), 0, (1,)),
    ((90,), 0, (1,)),
    ((4, 256), -1, (4,)),
    ((256, 4), 0, (4,)),
]
GPUS = ["sm_80", "sm_89", "sm_90a", "sm_100a", "gpu"]


@program(
    tags={"reduce"},
    parameters={
        "kind": KINDS,
        "dtypes": DTYPES,
        "tile": SHAPES,  # of the tile, the axis, and what is left
        "clear": [True, False],
        "scopes": [("shared", "fragment"), ("fragment", "fragment"), ("fragment", "shared")],
    },
    examples=[
        {},
        *({"kind": k, "dtypes": d, "tile": SHAPES[n % 2]} for n, (k, d) in enumerate(PAIRS)),
        *({"kind": k, "dtypes": ("int32", "int32"), "clear": False} for k in ("max", *BITS)),
    ],
    where=lambda p: (
        p.dtypes == ("bool", "bool") and p.kind == "bitor"
        if p.dtypes[1] == "bool"
        else p.kind == "sum"
        or p.dtypes[0] == "int32"
        or (p.kind not in BITS and p.dtypes[0] != "bool")
    ),
    inputs={"A": lambda rng, shape: _small(rng, shape, dtypes[0], kind)},
    targets=lambda p: ["llvm", *GPUS, *([] if "float64" in p.dtypes else ["metal"])],
    fast=["metal", "sm_80"],
)
def reduce(A: T.Tensor(tile[0], dtypes[0]), C: T.Tensor(tile[2], dtypes[1])):
    with T.Kernel(1, threads=32):
        src = getattr(T, "alloc_" + scopes[0])(tile[0], dtypes[0])
        total = getattr(T, "alloc_" + scopes[1])(tile[2], dtypes[1])
        T.copy(A, src)
        T.copy(C, total)
        getattr(T, "reduce_" + kind)(src, total, dim=tile[1], clear=clear)
        T.copy(total, C)


def _small(rng, shape, dtype, kind):
    """Sums fit into a byte; of extremes all have a sign, that one which begins with zero is found."""
    sign = {"max": -1, "min": 1}.get(kind)
    if dtype.startswith("float") or dtype == "bfloat16":
        numbers = rng.standard_normal(shape)
        return numbers if sign is None else sign * (1 + np.abs(numbers))
    if dtype in ("uint8", "uint64", "bool"):
        return rng.integers(0, 2, shape)
    return rng.integers(-1, 2, shape) if sign is None else sign * rng.integers(1, 100, shape)


@program(
    tags={"reduce"},
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
def reduce_a_region_of_a_tile(
    A: T.Tensor(
        (low[0] + n[0] + rest[0], low[1] + n[1] + rest[1], low[2] + n[2] + rest[2]), "int32"
    ),
    C: T.Tensor(((n[1], n[2]), (n[0], n[2]), (n[0], n[1]))[dim], "int32"),
):
    """Of three axes: where it begins, how long it is, and what is left behind it."""
    low, n, rest = spans
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared(
            (low[0] + n[0] + rest[0], low[1] + n[1] + rest[1], low[2] + n[2] + rest[2]), "int32"
        )
        T.copy(A, tile)
        T.reduce(
            tile[low[0] : low[0] + n[0], low[1] : low[1] + n[1], low[2] : low[2] + n[2]],
            C,
            kind,
            dim,
        )


@program(
    tags={"reduce"},
    parameters={
        "kind": ["max", "min", "absmax"],
        "dim": [1, 0],
        "dtype": ["float32", "float16", "bfloat16"],
        "propagate": [False, True],
    },
    examples=[{}, {"dtype": "float16", "propagate": True}, {"dim": 0, "dtype": "float16"}],
    inputs={
        "A": lambda rng, shape: np.where(
            rng.random(shape) < 0.05, np.nan, rng.choice([-np.inf, np.inf, 1, 2, -3, 0.5], shape)
        )
    },
    fast=["metal", "sm_80"],
)
def reduce_not_a_number(A: T.Tensor((16, 70), dtype), C: T.Tensor((16 if dim else 70,), dtype)):
    """It is left out, or it is the result."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((16, 70), dtype)
        largest = T.alloc_fragment((16 if dim else 70,), dtype)
        T.copy(A, tile)
        getattr(T, "reduce_" + kind)(tile, largest, dim=dim, nan_propagate=propagate)
        T.copy(largest, C)


@program(
    tags={"reduce"},
    parameters={"dtype": ["float16", "bfloat16"]},
    inputs={"A": lambda rng, shape: np.ones(shape)},
    fast=["metal"],
)
def reduce_a_long_row_of_narrow_floats(A: T.Tensor((1, 4096), dtype), C: T.Tensor((1,), dtype)):
    """Sums are rounded once: of float16 they would stop at 2048."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((1, 4096), dtype)
        total = T.alloc_fragment((1,), dtype)
        T.copy(A, tile)
        T.reduce_sum(tile, total, dim=1)
        T.copy(total, C)


@program(
    tags={"reduce"},
    parameters={"dim": [1, 0], "kind": ["sum", "max"]},
    sizes=[{"m": 7, "n": 19}, {"m": 1, "n": 3}],
    targets=["llvm"],
)
def reduce_extents_known_at_run_time(
    C: T.Tensor((m, n), "float32"), D: T.Tensor((m if dim else n,), "float32")
):
    with T.Kernel(1):
        getattr(T, "reduce_" + kind)(C, D, dim=dim)


@program(tags={"reduce"}, parameters={"kind": ["sum", "max"]}, fast=["metal"])
def reduce_tensors(
    A: T.Tensor((50, 70), "float32"), B: T.Tensor((50,), "float32"), E: T.Tensor((5,), "float32")
):
    """Over the edge, and a part of a row into a variable."""
    with T.Kernel(4, threads=32) as bx:
        getattr(T, "reduce_" + kind)(
            A[bx * 16 : bx * 16 + 16, 0:70], B[bx * 16 : bx * 16 + 16], dim=1
        )
        if bx == 0:
            for i in T.serial(5):
                total = T.alloc_var("float32", init=1)
                getattr(T, "reduce_" + kind)(A[i, 3:40], total, clear=False)
                E[i] = total


@program(
    tags={"reduce"},
    parameters={"op": ["sum", "max", "min", "bitand", "bitor", "bitxor"], "init": [None, 3]},
    examples=[{"op": op, "init": 3} for op in ("sum", "max", "min", "bitand", "bitor", "bitxor")],
    fast=["metal", "sm_80"],
)
def reducer_of_rows(A: T.Tensor((20, 33), "int32"), C: T.Tensor((20,), "int32")):
    with T.Kernel(1, threads=32):
        total = T.alloc_reducer((20,), "int32", op=op)
        result = T.alloc_fragment((20,), "int32")
        T.reducer_init(total, init)
        for i, j in T.Parallel(20, 33):
            T.reducer_update(total[i], A[i, j])
        T.finalize_reducer(total, result)
        T.copy(result, C)


@program(tags={"reduce"}, fast=["metal"])
def reducer_of_several_loops(
    A: T.Tensor((4, 3, 16), "float16"),
    B: T.Tensor((8, 16), "float32"),
    C: T.Tensor((4,), "float32"),
    D: T.Tensor((8,), "float32"),
):
    """Contributions are converted, an outer loop begins again; the older style has ordinary stores."""
    with T.Kernel(1, threads=32):
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


@program(
    tags={"reduce"},
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
def quantifiers(A: T.Tensor((5, 37), dtype), C: T.Tensor((5, 4), "int32")):
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
