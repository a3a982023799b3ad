"""Running totals."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

DTYPES = [
    ("float32", "float32"),
    ("int32", "int32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
    ("int8", "int32"),
    ("uint8", "uint8"),
    ("int64", "int64"),
    ("uint64", "uint64"),
    ("bool", "int32"),
    ("float64", "float64"),
]
SHAPES = [
    ((37, 40), 0),
    ((5, 77), 1),
    ((100,), 0),
    ((3, 4, 21), -2),
    ((1, 9), 0),
    ((9, 1), 0),
    ((1,), 0),
]
NO_METAL = ["llvm", "sm_80", "sm_89", "sm_90a", "sm_100a", "gpu"]


@program(
    tags={"scan"},
    parameters={
        "kind": ["sum", "max"],
        "dtypes": DTYPES,
        "tile": SHAPES,
        "reverse": [False, True],
        "scope": ["fragment", "shared"],
    },
    examples=[
        {},
        *({"dtypes": d, "tile": SHAPES[1 - n % 2]} for n, d in enumerate(DTYPES[2:])),
        *({"tile": tile, "reverse": True} for tile in SHAPES[1:]),
        {"kind": "max", "dtypes": ("int32", "int32"), "tile": SHAPES[1]},
    ],
    where=lambda p: p.kind == "sum" or p.dtypes[0] == p.dtypes[1],
    inputs={"A": lambda rng, shape: _small(rng, shape, dtypes[0], kind)},
    targets=lambda p: [*NO_METAL, *([] if "float64" in p.dtypes else ["metal"])],
    fast=["metal", "sm_80"],
)
def scan(A: T.Tensor(tile[0], dtypes[0]), C: T.Tensor(tile[0], dtypes[1])):
    with T.Kernel(1, threads=32):
        src = T.alloc_shared(tile[0], dtypes[0])
        totals = getattr(T, "alloc_" + scope)(tile[0], dtypes[1])
        T.copy(A, src)
        getattr(T, "cum" + kind)(src, totals, dim=tile[1], reverse=reverse)
        T.copy(totals, C)


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
    tags={"scan"},
    inputs={
        "A": lambda rng, shape: np.ones(shape),
        "B": lambda rng, shape: np.where(
            np.arange(64) % 3 == 1, np.nan, rng.integers(-9, 99, shape)
        ),
    },
    fast=["metal"],
)
def scan_narrow_floats_and_what_is_no_number(
    A: T.Tensor((4096,), "float16"),
    B: T.Tensor((64,), "float32"),
    C: T.Tensor((4096,), "float16"),
    D: T.Tensor((64,), "float32"),
):
    """Totals of float16 are kept in float32, beyond 2048; a maximum is of numbers."""
    with T.Kernel(1, threads=64):
        T.cumsum(A, C, dim=0)
        T.cummax(B, D, dim=0)


@program(
    tags={"scan"},
    parameters={"dim": [0, 1], "reverse": [False, True]},
    examples=[{}, {"dim": 1, "reverse": True}],
    sizes=[{"n": 33}, {"n": 1}],
    fast=["metal"],
)
def scan_in_place(
    A: T.Tensor((12, 45), "float32"), B: T.Tensor((4, n), "float32"), C: T.Tensor((4, n), "float32")
):
    """A region of a tile, where it is; rows of a tensor, of an extent known at run time."""
    with T.Kernel(4, threads=32) as bx:
        T.cumsum(B[bx, 0:n], C[bx, 0:n], dim=1)
        if bx == 0:
            tile = T.alloc_shared((12, 45), "float32")
            T.copy(A, tile)
            T.cumsum(tile[2:9, 3:40], dim=dim, reverse=reverse)
            T.copy(tile, A)


@program(
    tags={"scan"},
    parameters={
        "shape": [
            ((1000,), 0, 128),  # a row by several warps
            ((3, 500), 1, 128),  # a row by one
            ((2, 3, 64), 1, 128),  # a row in steps that are no neighbours
            ((300, 4), 1, 64),  # several rows a thread
            ((5, 7), 0, 96),
            ((2, 4500), 1, 256),  # too long for a copy in threadgroup memory
        ],
    },
    examples=[{"shape": ((3, 500), 1, 128)}, {}]
    + [
        {"shape": shape} for shape in [((2, 3, 64), 1, 128), ((300, 4), 1, 64), ((2, 4500), 1, 256)]
    ],
    fast=["metal"],
)
def scan_tensors_by_groups_of_threads(
    A: T.Tensor(shape[0], "float32"),
    C: T.Tensor(shape[0], "float32"),
    D: T.Tensor(shape[0], "float32"),
):
    with T.Kernel(1, threads=shape[2]):
        T.cumsum(A, C, dim=shape[1])
        T.cummax(A, D, dim=shape[1], reverse=True)


@program(
    tags={"scan", "pipelined"},
    parameters={
        "dim": [0, 1],
        "shape": [(8, 16, "shared"), (5, 16, "shared"), (1, 6000, "tensor")],
        "stages": [2, 3, 0],
    },
    examples=[
        {},
        {"shape": (5, 16, "shared"), "dim": 1, "stages": 3},
        {"shape": (1, 6000, "tensor"), "dim": 1},
    ],
    where=lambda p: p.shape[0] > 1 or p.stages == 2,
)
def scan_tiles_of_a_pipelined_loop(
    A: T.Tensor((2 * shape[0], shape[1]), "float16"),
    C: T.Tensor((2 * shape[0], shape[1]), "float32"),
):
    """The source has an axis of versions there, the target none; a long row is done in strips."""
    rows, columns, scope = shape
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((rows, columns), "float16")
        if scope == "shared":
            totals = T.alloc_shared((rows, columns), "float32")
        for k in T.Pipelined(2, num_stages=stages):
            T.copy(A[k * rows, 0], tile)
            if scope == "shared":
                T.cumsum(tile, totals, dim=dim)
                T.copy(totals, C[k * rows, 0])
            else:
                T.cumsum(tile, C[k * rows : (k + 1) * rows, 0:columns], dim=dim)
