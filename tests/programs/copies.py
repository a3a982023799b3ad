"""Copies, fills and transpositions: over edges, between dtypes, of regions of any form."""

from __future__ import annotations

from hypothesis import strategies as st

import tvmtile.language as T
from tests.programs import program
from tests.programs.text import Name

CONVERSIONS = [
    *(("float32", "float16"), ("float16", "float32"), ("bfloat16", "float32")),
    *(("float32", "bfloat16"), ("float32", "int32"), ("int32", "float32"), ("int8", "int32")),
    *(("int32", "int8"), ("uint8", "float16"), ("bool", "float32"), ("int32", "bool")),
    *(("float64", "float32"), ("int64", "float64"), ("bfloat16", "float8_e5m2")),
    *((source, to) for source in ("bfloat16", "float8_e4m3fn") for to in ("float64", "int32")),
    *((source, "bfloat16") for source in ("float64", "float16", "int32", "float8_e4m3fn")),
    *((source, "float16") for source in ("bfloat16", "float8_e4m3fn")),
    ("float8_e4m3fn", "float8_e5m2"),
]
EXTREME = [
    *(("float32", "float16"), ("float32", "bfloat16"), ("float16", "bfloat16")),
    *(("bfloat16", "float32"), ("int32", "int8"), ("uint16", "float16")),
    *(("float32", "float8_e4m3fn"), ("float8_e5m2", "float32"), ("float32", "bool")),
]


@program(
    parameters={
        "tile": [(16, 32), (7, 5), (1, 64), (64, 1)],
        "scope": ["shared", "fragment", "local"],
        "dtype": ["float32", "float16", "int8"],
    },
    fast=["metal", "sm_80"],
)
def copy_ragged(A: dtype[50, 70], C: dtype[50, 70], D: dtype[112, 128]):
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
    parameters={
        "rows": [100, 128, 60],
        "stages": [0, 2],
        "dtype": ["float16", "float32"],
    },
    examples=[{}, {"rows": 60, "stages": 2}],
    drawn=2,
    fast=["metal", "sm_90a"],
)
def copies_of_regions_longer_than_their_tensor(
    A: dtype[rows, 64], B: dtype[2, 48, 64], C: float32[rows, 48]
):
    """Regions begin inside a tensor and reach over its edge: a kernel's tiles, a small tensor."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((128, 32), dtype), T.alloc_shared((64, 32), dtype)
        c = T.alloc_fragment((128, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=stages):
            T.copy(A[0:128, k * 32 : k * 32 + 32], a)
            T.copy(B[1:2, 0:64, k * 32 : k * 32 + 32], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[0:128, 0:64])


@program(
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
    A: int32[places[0][0], places[1][0], places[2][0]],
    C: int32[places[0][1], places[1][1], places[2][1]],
    at: int32[2, 3],
):
    """`places` has, per axis, the extents of tensors and tile, and where it begins in them."""
    with T.Kernel(1, threads=32):
        held = T.alloc_shared((places[0][2], places[1][2], places[2][2]), "int32")
        T.copy(A[at[0, 0], at[0, 1], at[0, 2]], held)
        T.copy(held, C[at[1, 0], at[1, 1], at[1, 2]])


@program(
    parameters={"dtypes": CONVERSIONS, "scopes": [("shared", "fragment"), ("fragment", "shared")]},
    examples="dtypes",
    where=lambda p: "float64" not in p.dtypes or p.scopes[0] == "shared",
    targets=lambda p: ["llvm", "gpu"] if "float64" in p.dtypes else ["llvm", "metal", "sm_80"],
)
def copy_converts(A: dtypes[0][9, 33], C: dtypes[1][9, 33]):
    with T.Kernel(1, threads=32):
        first = getattr(T, "alloc_" + scopes[0])((9, 33), dtypes[0])
        second = getattr(T, "alloc_" + scopes[1])((9, 33), dtypes[1])
        T.copy(A, first)
        T.copy(first, second)
        T.copy(second, C)


@program(
    parameters={"dtypes": EXTREME},
    examples=[{}, {"dtypes": ("float32", "bfloat16")}],
    inputs="extreme",
    fast=["metal", "sm_80"],
)
def copy_converts_extremes(A: dtypes[0][64, 64], C: dtypes[1][64, 64]):
    """Floats are rounded to nearest even, NaN and infinities stay, integers keep their low bits."""
    with T.Kernel(1, threads=64) as bx:
        tile = T.alloc_shared((64, 64), dtypes[1])
        T.copy(A[bx * 64, 0], tile)
        T.copy(tile, C[bx * 64, 0])


@program(
    parameters={"strides": [((1, 12), (40, 2)), ((16, 1), (1, 12))]},
    inputs={"at": [-9, -2, 0, 7, 9, 100]},
    fast=["metal", "sm_80"],
)
def copies(
    A: float32[2, 3, 8, 5],
    B: float32[20, 30],
    S: T.StridedTensor((12, 10), strides[0], "float32"),
    V: float32[10],
    at: int32[6],
    C: float32[2, 3, 5, 8],
    D: float32[20, 30],
    E: T.StridedTensor((12, 10), strides[1], "float32"),
    F: float32[6, 4],
    G: float16[30],
    H: float16[8],
    K: float32[12],
    L: float32[4, 30],
):
    # Axes of extent one don't count: a matrix to a tile with units, and its columns.
    with T.Kernel(2, 3, threads=32) as (bx, by):
        matrix, row = T.alloc_shared((8, 1, 5), "float32"), T.alloc_shared((8,), "float32")
        T.copy(A[bx, by, 0:8, 0:5], matrix)
        for k in T.serial(5):
            T.copy(matrix[0:8, 0, k], row)
            T.copy(row, C[bx, by, k, 0:8])
    # Between tensors, and between tiles.
    with T.Kernel(1, threads=64):
        first, second = (
            T.alloc_shared((10, 30), "float32"),
            T.alloc_fragment((30, 10, 1), "float32"),
        )
        T.copy(B[0:10, :], D[10:20, :])
        T.copy(B[10:20, :], first)
        T.copy(first[:, 0:10], second[10:20, :, 0])
        T.copy(second[10:20, 0:10, 0:1], D[0:10, 5:15])
    # Of tensors with strides.
    with T.Kernel(2, threads=32) as bx:
        tile = T.alloc_shared((8, 10), "float32")
        T.copy(S[bx * 8, 0], tile)
        T.copy(tile, E[bx * 8, 0])
        if bx == 0:
            T.reduce_sum(S, K, dim=1)
    # From places that begin anywhere.
    with T.Kernel(6, threads=32) as bx:
        part = T.alloc_shared((4,), "float32")
        T.copy(V[at[bx]], part)
        T.copy(part, F[bx, 0])
    # Elements one by one, also over the edge in T.Parallel.
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(16):
            T.copy(B[0, bx * 16 + i], G[bx * 16 + i])
        if bx == 0:
            for i in T.serial(8):
                T.copy(B[1, 7 - i], H[i])
    # Asynchronous ones by hand.
    with T.Kernel(1, threads=32):
        ring = T.alloc_shared((2, 30), "float32")
        T.async_copy(B[0, :], ring[0, :])
        for i in T.serial(1, 5):
            if i < 4:
                T.async_copy(B[i, :], ring[i % 2, :])
                T.ptx_commit_group()
                T.ptx_wait_group(1)
            else:
                T.ptx_wait_group(0)
            for j in T.Parallel(30):
                L[i - 1, j] = ring[(i - 1) % 2, j] * 2


@program(
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


@program(
    parameters={"N": [Name("N")], "scope": ["shared", "fragment"]},
    sizes=[{"N": 1}, {"N": 7}, {"N": 40}],
    targets=["llvm", "metal", "sm_90a", "gpu"],
    fast=["metal"],
)
def copy_of_as_many_rows_as_the_kernel_knows(
    A: float16[N, 24], C: float32[3, 16, 16], D: float16[N, 24]
):
    """A tile gets zeros behind the end of the region, and a tensor keeps what it holds there."""
    with T.Kernel(1, threads=64):
        tile = getattr(T, "alloc_" + scope)((16, 16), "float32")
        T.copy(A[: N - 1, 3:19], tile)
        T.copy(tile, C[0, 0:16, 0:16])
        T.copy(tile, D[1 : N - 1, 8:24])
        T.copy(A[1:N, 0:16], tile)
        T.copy(tile, C[1, 0:16, 0:16])
        T.copy(A[0:16, 2 : N - 3], tile)
        T.copy(tile, C[2, 0:16, 0:16])


@program(
    parameters={"N": [Name("N")], "block": [1, 4]},
    sizes=[{"N": 2}, {"N": 1}, {"N": 4}],
    targets=["llvm", "metal", "sm_90a", "gpu"],
    fast=["metal"],
)
def copy_of_lengths_into_tiles_of_any_extent(A: int32[N], C: int32[N]):
    """A tile of one element, too, is as long as the copy."""
    with T.Kernel(1, threads=32):
        first, last = T.alloc_fragment((block,), "int32"), T.alloc_fragment((block,), "int32")
        T.copy(A[: N - 1], first)
        T.copy(A[1:], last)
        for i in T.Parallel(block):
            last[i] = last[i] - first[i]
        T.copy(last, C[: N - 1])


@program(parameters={"dtype": ["float16", "float32", "bfloat16"]}, fast=["metal"])
def fill_regions(A: float32[3], C: dtype[6, 9], D: int32[3, 40], E: dtype[50, 30]):
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
    parameters={
        "shape": [(5, 33), (16, 16), (1, 7), (7, 1), (32, 48)],
        "dtypes": [("float32", "float16"), ("float32", "float32"), ("int8", "float16")],
        "scopes": [("fragment", "fragment"), ("shared", "shared"), ("shared", "fragment")],
    },
    examples=[{}, {"shape": (32, 48)}],
    fast=["metal", "sm_80"],
)
def transpose(
    A: T.Tensor(shape, dtypes[0]), C: dtypes[1][shape[1], shape[0]], S: dtypes[0][shape[1]]
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


@program(
    parameters={
        "axis": [0, 1],
        "dtypes": [("float32", "float16"), ("int8", "float32")],
        "scopes": [("fragment", "fragment"), ("shared", "fragment"), ("shared", "shared")],
    },
    fast=["metal", "sm_80"],
)
def roll(A: dtypes[0][5, 33], C: dtypes[1][4, 5, 33]):
    """A tile is rolled by a number of the block, of any sign."""
    with T.Kernel(4, threads=64) as bx:
        tile = getattr(T, "alloc_" + scopes[0])((5, 33), dtypes[0])
        rolled = getattr(T, "alloc_" + scopes[1])((5, 33), dtypes[1])
        T.copy(A, tile)
        T.roll(tile, rolled, bx * 7 - 9, dim=axis)
        T.copy(rolled, C[bx, :, :])


MATRICES = [
    *(((2, 3, 4), (2, 4, 3)), ((2, 3, 1, 5), (2, 3, 5, 1)), ((1, 2, 3, 4), (2, 4, 3))),
    ((3, 4), (1, 1, 4, 3)),
]


@program(parameters={"shapes": MATRICES}, fast=["metal"])
def transpose_tensors(
    A: T.Tensor(shapes[0], "float32"),
    B: float32[3, 50, 70],
    C: T.Tensor(shapes[1], "float32"),
    D: float32[3, 70, 50],
):
    """Several matrices, also by regions over the edge."""
    with T.Kernel(T.ceildiv(70, 16), T.ceildiv(50, 16), threads=64) as (bx, by):
        T.transpose(
            B[1, by * 16 : by * 16 + 16, bx * 16 : bx * 16 + 16],
            D[1, bx * 16 : bx * 16 + 16, by * 16 : by * 16 + 16],
        )
        if bx + by == 0:
            T.transpose(A, C)
