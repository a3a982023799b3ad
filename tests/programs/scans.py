"""Scans along an axis: cumulative sums, products and maxima, also in place and in pipelined loops."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program
from tests.programs.reductions import DTYPES, GPUS, SAME, TENSORS, _numbers

SCANNED = [
    *(((37, 40), 0), ((5, 77), 1), ((100,), 0), ((3, 4, 21), -2), ((1, 9), 0), ((9, 1), 0)),
    *(((1,), 0), ((3, 100), 1), ((128, 4), 1), ((33, 7), 0), ((300, 6), 0)),
]
GROUPS = [
    (((3, 500), 1), 128),  # a row by one warp
    (((1000,), 0), 128),  # by several
    (((2, 3, 64), 1), 128),  # in steps that are no neighbours
    (((300, 4), 1), 64),  # several rows a thread
    (((5, 7), 0), 96),
    (((2, 4500), 1), 256),  # too long for a copy in threadgroup memory
]


@program(
    parameters={
        "kind": ["sum", "max"],
        "dtypes": [*DTYPES[:5], SAME["float64"], ("int8", "int32"), *DTYPES[11:15]],
        "tile": SCANNED,
        "reverse": [False, True],
        "scopes": [("shared", "fragment"), ("shared", "shared"), TENSORS],
        "threads": [32, 128, 96, 256],
        "nan": [False, True],
    },
    examples=[
        {"tile": GROUPS[-1][0], "threads": 256, "scopes": TENSORS},
        {},
        *({"dtypes": d, "tile": SCANNED[1 - n % 2]} for n, d in enumerate(DTYPES[2:5])),
        *({"dtypes": d} for d in (SAME["uint8"], ("bool", "int32"))),
        *({"dtypes": d, "tile": SCANNED[1]} for d in (("int8", "int32"), SAME["float64"])),
        {"dtypes": ("int64", "int64"), "tile": SCANNED[1]},
        *({"tile": tile, "reverse": True} for tile in SCANNED[1:7]),
        {"kind": "max", "dtypes": SAME["int32"], "tile": SCANNED[1]},
        *({"tile": tile, "threads": n, "scopes": TENSORS} for tile, n in GROUPS),
        *(
            {"kind": "max", "tile": tile, "threads": n, "scopes": TENSORS, "reverse": True}
            for tile, n in GROUPS
        ),
        {"dtypes": SAME["float16"], "tile": ((4096,), 0), "threads": 64, "scopes": TENSORS},
        {"kind": "max", "tile": ((64,), 0), "threads": 64, "scopes": TENSORS, "nan": True},
    ],
    where=lambda p: (
        (p.kind == "sum" or p.dtypes[0] == p.dtypes[1])
        and (not p.nan or (p.kind == "max" and p.dtypes == SAME["float32"]))
    ),
    inputs={"A": lambda rng, shape: _numbers(rng, shape, dtypes[0], kind, nan)},
    targets=lambda p: [*GPUS, *([] if "float64" in p.dtypes else ["metal"])],
    fast=["metal", "sm_80"],
)
def scan(A: T.Tensor(tile[0], dtypes[0]), C: T.Tensor(tile[0], dtypes[1])):
    with T.Kernel(1, threads=threads):
        if scopes[0] == "device":
            getattr(T, "cum" + kind)(A, C, dim=tile[1], reverse=reverse)
        else:
            src = getattr(T, "alloc_" + scopes[0])(tile[0], dtypes[0])
            totals = getattr(T, "alloc_" + scopes[1])(tile[0], dtypes[1])
            T.copy(A, src)
            getattr(T, "cum" + kind)(src, totals, dim=tile[1], reverse=reverse)
            T.copy(totals, C)


@program(
    parameters={"dim": [0, 1], "reverse": [False, True]},
    examples=[{}, {"dim": 1, "reverse": True}],
    sizes=[{"n": 33}, {"n": 1}],
    fast=["metal"],
)
def scan_in_place(A: float32[12, 45], B: float32[4, n], C: float32[4, n]):
    """A region of a tile, where it is; rows of a tensor, of an extent known at run time."""
    with T.Kernel(4, threads=32) as bx:
        T.cumsum(B[bx, 0:n], C[bx, 0:n], dim=1)
        if bx == 0:
            tile = T.alloc_shared((12, 45), "float32")
            T.copy(A, tile)
            T.cumsum(tile[2:9, 3:40], dim=dim, reverse=reverse)
            T.copy(tile, A)


@program(
    tags={"pipelined"},
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
    A: float16[2 * shape[0], shape[1]], C: float32[2 * shape[0], shape[1]]
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
