"""Copies, fills and transpositions: over edges, between dtypes, of regions of any form."""

from __future__ import annotations

from hypothesis import strategies as st

import tvmtile.language as T
from tests.programs import program


@program(
    tags={"copy"},
    parameters={
        "tile": [(16, 32), (7, 5), (1, 64), (64, 1)],
        "scope": ["shared", "fragment", "local"],
        "dtype": ["float32", "float16", "int8"],
    },
    fast=["metal", "sm_80"],
)
def copy_ragged(
    A: T.Tensor((50, 70), dtype), C: T.Tensor((50, 70), dtype), D: T.Tensor((112, 128), dtype)
):
    """Zero is read outside of a tensor, and nothing is written there."""
    rows, columns = tile
    threads = 1 if scope == "local" else 64
    with T.Kernel(T.ceildiv(70, columns), T.ceildiv(50, rows), threads=threads) as (bx, by):
        held = getattr(T, "alloc_" + scope)(tile, dtype)
        T.fill(held, 7)
        T.copy(A[by * rows, bx * columns], held)
        T.copy(held, C[by * rows, bx * columns])
        T.copy(held, D[by * rows, bx * columns])


@program(
    tags={"copy"},
    parameters={
        "places": st.lists(
            st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9))
            .flatmap(lambda n: st.tuples(st.just(n), st.integers(-6, 14), st.integers(-6, 14)))
            .map(lambda p: (*p[0], *p[1:])),
            min_size=3,
            max_size=3,
        ).map(tuple)
    },
    examples=[{"places": ((5, 9, 4, -2, 7), (12, 1, 3, 0, -1), (8, 8, 8, 3, 14))}],
    inputs={"at": lambda rng, shape: [[p[3] for p in places], [p[4] for p in places]]},
)
def copy_any_tile_at_any_place(
    A: T.Tensor((places[0][0], places[1][0], places[2][0]), "int32"),
    C: T.Tensor((places[0][1], places[1][1], places[2][1]), "int32"),
    at: T.Tensor((2, 3), "int32"),
):
    """Of each axis: the extents of both tensors and of the tile, and where that begins in them."""
    with T.Kernel(1, threads=32):
        held = T.alloc_shared((places[0][2], places[1][2], places[2][2]), "int32")
        T.copy(A[at[0, 0], at[0, 1], at[0, 2]], held)
        T.copy(held, C[at[1, 0], at[1, 1], at[1, 2]])


@program(
    tags={"copy"},
    inputs={"at": lambda rng, shape: [-9, -2, 0, 7, 9, 100]},
    fast=["metal", "sm_80"],
)
def copy_from_rows_that_begin_anywhere(
    A: T.Tensor((10,), "float32"), at: T.Tensor((6,), "int32"), C: T.Tensor((6, 4), "float32")
):
    with T.Kernel(6, threads=32) as bx:
        tile = T.alloc_shared((4,), "float32")
        T.copy(A[at[bx]], tile)
        T.copy(tile, C[bx, 0])


CONVERSIONS = [
    ("float32", "float16"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float32", "bfloat16"),
    ("float32", "int32"),
    ("int32", "float32"),
    ("int8", "int32"),
    ("int32", "int8"),
    ("uint8", "float16"),
    ("bool", "float32"),
    ("int32", "bool"),
    ("float64", "float32"),
    ("int64", "float64"),
]


@program(
    tags={"copy"},
    parameters={"dtypes": CONVERSIONS, "scopes": [("shared", "fragment"), ("fragment", "shared")]},
    examples=[{"dtypes": dtypes} for dtypes in CONVERSIONS],
    where=lambda p: "float64" not in p.dtypes or p.scopes[0] == "shared",
    targets=lambda p: ["llvm", "gpu"] if "float64" in p.dtypes else ["llvm", "metal", "sm_80"],
)
def copy_converts(A: T.Tensor((9, 33), dtypes[0]), C: T.Tensor((9, 33), dtypes[1])):
    with T.Kernel(1, threads=32):
        first = getattr(T, "alloc_" + scopes[0])((9, 33), dtypes[0])
        second = getattr(T, "alloc_" + scopes[1])((9, 33), dtypes[1])
        T.copy(A, first)
        T.copy(first, second)
        T.copy(second, C)


@program(
    tags={"copy"},
    parameters={
        "dtypes": [
            ("float32", "float16"),
            ("float32", "bfloat16"),
            ("float16", "bfloat16"),
            ("bfloat16", "float32"),
            ("int32", "int8"),
            ("uint16", "float16"),
            ("float32", "float8_e4m3fn"),
            ("float8_e5m2", "float32"),
            ("float32", "bool"),
        ]
    },
    examples=[{}, {"dtypes": ("float32", "bfloat16")}],
    inputs="extreme",
    fast=["metal", "sm_80"],
)
def copy_converts_extremes(A: T.Tensor((64, 64), dtypes[0]), C: T.Tensor((64, 64), dtypes[1])):
    """To nearest even; NaN and infinities stay, integers keep their low bits."""
    with T.Kernel(1, threads=64) as bx:
        tile = T.alloc_shared((64, 64), dtypes[1])
        T.copy(A[bx * 64, 0], tile)
        T.copy(tile, C[bx * 64, 0])


@program(tags={"copy"}, fast=["metal", "sm_80"])
def copy_axes_of_extent_one(
    A: T.Tensor((2, 3, 8, 5), "float32"), C: T.Tensor((2, 3, 5, 8), "float32")
):
    """They don't count: a matrix of a tensor of four axes to a tile with units, and its columns."""
    with T.Kernel(2, 3, threads=32) as (bx, by):
        tile = T.alloc_shared((8, 1, 5), "float32")
        row = T.alloc_shared((8,), "float32")
        T.copy(A[bx, by, 0:8, 0:5], tile)
        for k in T.serial(5):
            T.copy(tile[0:8, 0, k], row)
            T.copy(row, C[bx, by, k, 0:8])


@program(tags={"copy"}, fast=["metal", "sm_80"])
def copy_between_tensors_and_between_tiles(
    A: T.Tensor((20, 30), "float32"), C: T.Tensor((20, 30), "float32")
):
    with T.Kernel(1, threads=64):
        first = T.alloc_shared((10, 30), "float32")
        second = T.alloc_fragment((30, 10, 1), "float32")
        T.copy(A[0:10, :], C[10:20, :])
        T.copy(A[10:20, :], first)
        T.copy(first[:, 0:10], second[10:20, :, 0])
        T.copy(second[10:20, 0:10, 0:1], C[0:10, 5:15])


@program(tags={"copy"})
def copy_elements(
    A: T.Tensor((50,), "float32"), C: T.Tensor((50,), "float16"), D: T.Tensor((8,), "float16")
):
    """One by one, also over the edge in T.Parallel."""
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(16):
            T.copy(A[bx * 16 + i], C[bx * 16 + i])
        if bx == 0:
            for i in T.serial(8):
                T.copy(A[7 - i], D[i])


@program(tags={"copy"}, parameters={"strides": [((1, 12), (40, 2)), ((16, 1), (1, 12))]})
def copy_strided(
    A: T.StridedTensor((12, 10), strides[0], "float32"),
    C: T.StridedTensor((12, 10), strides[1], "float32"),
    D: T.Tensor((12,), "float32"),
):
    with T.Kernel(2, threads=32) as bx:
        tile = T.alloc_shared((8, 10), "float32")
        T.copy(A[bx * 8, 0], tile)
        T.copy(tile, C[bx * 8, 0])
        if bx == 0:
            T.reduce_sum(A, D, dim=1)


@program(tags={"copy"}, fast=["sm_80"])
def copy_asynchronous(A: T.Tensor((4, 32), "float32"), C: T.Tensor((4, 32), "float32")):
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((2, 32), "float32")
        T.async_copy(A[0, :], tile[0, :])
        for i in T.serial(1, 5):
            if i < 4:
                T.async_copy(A[i, :], tile[i % 2, :])
                T.ptx_commit_group()
                T.ptx_wait_group(1)
            else:
                T.ptx_wait_group(0)
            for j in T.Parallel(32):
                C[i - 1, j] = tile[(i - 1) % 2, j] * 2


@program(
    tags={"copy"},
    parameters={
        "value": [
            ("float32", 1.5), ("float16", -2), ("bfloat16", 0.5), ("int8", -128), ("uint8", 255),
            ("int64", 2**40), ("bool", True), ("float64", 0.1),
        ],
        "shape": [(7, 33), (1, 1), (64,)],
        "scope": ["fragment", "shared"],
    },
    targets=lambda p: ["llvm", "gpu"] if p.value[0] == "float64" else ["llvm", "metal", "sm_80"],
)  # fmt: skip
def fill(C: T.Tensor(shape, value[0])):
    with T.Kernel(1, threads=32):
        tile = getattr(T, "alloc_" + scope)(shape, value[0])
        T.fill(tile, value[1])
        T.copy(tile, C)


@program(tags={"copy"}, parameters={"dtype": ["float16", "float32", "bfloat16"]}, fast=["metal"])
def fill_regions(
    A: T.Tensor((3,), "float32"),
    C: T.Tensor((6, 9), dtype),
    D: T.Tensor((3, 40), "int32"),
    E: T.Tensor((50, 30), dtype),
):
    """Infinities, regions, one element, a number of the running kernel, over the edge of a tensor."""
    with T.Kernel(2, 4, threads=32) as (bx, by):
        T.fill(E[by * 16 : by * 16 + 16, bx * 16 : bx * 16 + 16], 1 + by)
        if bx == 1 and by < 3:
            T.fill(D[by, 0:40], A[by] * 2 + by)
        if bx + by == 0:
            tile = T.alloc_shared((6, 9), dtype)
            T.fill(tile, 1)
            T.fill(tile[1:4, 2:7], T.infinity(dtype))
            T.fill(tile[5, 8], 3)
            T.fill(tile[4, 0:9], -T.infinity(dtype))
            T.clear(tile[2:3, :])
            T.copy(tile, C)


@program(
    tags={"transpose"},
    parameters={
        "shape": [(5, 33), (16, 16), (1, 7), (7, 1), (32, 48)],
        "dtypes": [("float32", "float16"), ("float32", "float32"), ("int8", "float16")],
        "scopes": [("fragment", "fragment"), ("shared", "shared"), ("shared", "fragment")],
    },
    examples=[{}, {"shape": (32, 48)}],
    fast=["metal", "sm_80"],
)
def transpose(
    A: T.Tensor(shape, dtypes[0]),
    C: T.Tensor((shape[1], shape[0]), dtypes[1]),
    S: T.Tensor((shape[1],), dtypes[0]),
):
    """Elements of fragments lie in other threads than those that need them."""
    with T.Kernel(1, threads=128):
        tile = getattr(T, "alloc_" + scopes[0])(shape, dtypes[0])
        total = T.alloc_fragment((shape[1],), dtypes[0])
        turned = getattr(T, "alloc_" + scopes[1])((shape[1], shape[0]), dtypes[1])
        T.copy(A, tile)
        T.reduce_max(tile, total, dim=0)
        T.copy(total, S)
        T.clear(turned)
        T.transpose(tile, turned)
        T.copy(turned, C)


@program(tags={"transpose"}, fast=["metal"])
def transpose_over_the_edge(A: T.Tensor((50, 70), "float32"), C: T.Tensor((70, 50), "float32")):
    with T.Kernel(T.ceildiv(70, 16), T.ceildiv(50, 16), threads=64) as (bx, by):
        T.transpose(
            A[by * 16 : by * 16 + 16, bx * 16 : bx * 16 + 16],
            C[bx * 16 : bx * 16 + 16, by * 16 : by * 16 + 16],
        )


@program(
    tags={"transpose"},
    parameters={
        "shapes": [
            ((2, 3, 4), (2, 4, 3)),
            ((2, 3, 1, 5), (2, 3, 5, 1)),
            ((1, 2, 3, 4), (2, 4, 3)),
            ((3, 4), (1, 1, 4, 3)),
        ]
    },
)
def transpose_several_matrices(
    A: T.Tensor(shapes[0], "float32"),
    C: T.Tensor(shapes[1], "float32"),
    B: T.Tensor((3, 4, 6), "float32"),
    D: T.Tensor((3, 6, 4), "float32"),
):
    with T.Kernel(3, threads=32) as bx:
        T.transpose(B[bx, 0:4, 0:6], D[bx, 0:6, 0:4])
        if bx == 0:
            T.transpose(A, C)
