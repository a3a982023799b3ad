"""`T.assume`: what holds of each call makes copies as wide as those of a static kernel."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program(
    tags={"assume", "gemm", "pipelined"},
    parameters={
        "multiple": [8, None],
        "tile": [64, 128],
        "persistent": [False, True],
    },
    examples=[{}, {"tile": 128, "persistent": True}, {"multiple": None}],
    sizes=lambda p: [
        {"m": 64, "n": 64},
        {"m": 77, "n": 136},
        {"m": 1, "n": 8 if p.multiple else 7},
        {"m": 130, "n": 72},
    ],
    expects=lambda p: {
        "sm_90a": [
            *(["two roles, persistent blocks"] if p.persistent and p.multiple else []),
            *(
                ["cp_async_bulk_tensor", "tma_copy of b: tma", "copy of C: tma_store"]
                if p.multiple
                else ["not cp_async_bulk_tensor", "T.assume(n % 8 == 0) says that they do"]
            ),
        ],
        "sm_80": ["not ] = B_ptr[" if p.multiple else "] = B_ptr["],
        "metal": ["not ] = B_ptr[" if p.multiple else "] = B_ptr["],
    },
    fast=["metal", "sm_90a"],
)
def product_of_assumed_extents(
    A: T.Tensor((m, 64), "float16"), B: T.Tensor((64, n), "float16"), C: T.Tensor((m, n), "float16")
):
    with T.Kernel(T.ceildiv(n, tile), T.ceildiv(m, tile), threads=2 * tile) as (bx, by):
        if persistent:
            T.annotate_persistent()
        if multiple:
            T.assume(n % multiple == 0)
        a, b = T.alloc_shared((tile, 32), "float16"), T.alloc_shared((32, tile), "float16")
        c = T.alloc_fragment((tile, tile), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[by * tile, k * 32], a)
            T.copy(B[k * 32, bx * tile], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * tile, bx * tile])


@program(
    tags={"assume"},
    parameters={"multiple": [64, 32, 16]},
    examples=[{}, {"multiple": 32}, {"multiple": 16}],
    sizes=[{"m": 64}, {"m": 192}],
    expects=lambda p: {"sm_90a": ["  if (" if p.multiple == 16 else "not   if ("]},
)
def guards_of_whole_tiles(A: T.Tensor((m, 64), "float32"), C: T.Tensor((m, 64), "float32")):
    with T.Kernel(T.ceildiv(m, 32), threads=64) as bx:
        T.assume(m % multiple == 0)
        for i, j in T.Parallel(32, 64):
            C[bx * 32 + i, j] = A[bx * 32 + i, j] + 1


@program(
    tags={"assume"},
    sizes=[{"n": 9}, {"n": 4}],
    inputs={"rows": lambda rng, shape: [3, 0, 3, 2]},
    fast=["metal", "sm_90a"],
)
def rows_that_are_promised(
    rows: T.Tensor((4,), "int32"), A: T.Tensor((n, 64), "float32"), C: T.Tensor((4, 64), "float32")
):
    """What only the kernel knows."""
    with T.Kernel(4, threads=32) as bx:
        row = rows[bx]
        T.assume(row >= 0 and row < n)
        T.assume(rows[bx] < n)
        for i in T.serial(2):
            T.assume(i < 2)
            for j in T.Parallel(32):
                C[bx, i * 32 + j] = A[row, i * 32 + j]


@program(
    tags={"assume", "pipelined"},
    sizes=[{"n": 64}, {"n": 72}, {"n": 200}],
    fast=["metal", "sm_90a"],
)
def columns_assumed_in_a_loop(A: T.Tensor((64, n), "float16"), C: T.Tensor((64, n), "float16")):
    """Where it is pipelined, and in T.Parallel."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), "float16")
        for k in T.Pipelined(T.ceildiv(n, 64), num_stages=2):
            T.assume(n % 8 == 0)
            T.copy(A[0, k * 64], tile)
            for i, j in T.Parallel(64, 64):
                T.assume(i < 64)
                if k * 64 + j < n:
                    C[i, k * 64 + j] = tile[i, j] * 2


@program(
    tags={"assume"},
    sizes=[{"m": 70, "n": 64, "s": 80}, {"m": 70, "n": 50, "s": 72}],
    fast=["metal", "sm_90a"],
)
def assumed_strides(A: T.StridedTensor((m, n), (s, 1), "float16"), C: T.Tensor((m, 64), "float16")):
    with T.Kernel(T.ceildiv(m, 64), threads=128) as bx:
        T.assume(s % 8 == 0)
        tile = T.alloc_shared((64, 64), "float16")
        T.copy(A[bx * 64, 0], tile)
        T.copy(tile, C[bx * 64, 0])


@program(tags={"assume"}, sizes=[{"n": 192}, {"n": 64}], fast=["metal", "sm_90a"])
def view_of_an_assumed_extent(A: T.Tensor((64, n), "float16"), C: T.Tensor((64 * n,), "float16")):
    with T.Kernel(T.ceildiv(n, 64), threads=128) as bx:
        T.assume(n % 64 == 0)
        out = T.view(C, (64, n))
        tile = T.alloc_shared((64, 64), "float16")
        T.copy(A[0, bx * 64], tile)
        T.copy(tile, out[0, bx * 64])


@program(tags={"assume"}, sizes=[{"n": 96}, {"n": 32}])
def assumptions_before_kernels(A: T.Tensor((n, 64), "float16"), C: T.Tensor((n, 64), "float16")):
    T.assume(n % 32 == 0)
    with T.Kernel(n // 32, threads=32) as bx:
        for i, j in T.Parallel(32, 64):
            C[bx * 32 + i, j] = A[bx * 32 + i, j] + 1
    with T.Kernel(n // 32, threads=32) as bx:
        for i, j in T.Parallel(32, 64):
            C[bx * 32 + i, j] += A[bx * 32 + i, j]


@program(tags={"assume"}, sizes=[{"n": 4}, {"n": 3}])
def assumptions_around_kernels(X: T.Tensor((n,), "float32")):
    for i in T.serial(3):
        T.assume(i < n)
        with T.Kernel(1, threads=32):
            X[i] = 1
    with T.Kernel(1, threads=32):
        X[0] = 2


@program(tags={"assume"}, sizes=[{"n": 48}, {"n": 16}])
def extents_in_expressions_only(A: T.Tensor((n * 2,), "float32"), C: T.Tensor((n * 2,), "float32")):
    with T.Kernel(T.ceildiv(n * 2, 32), threads=32) as bx:
        T.assume(n % 16 == 0)
        for i in T.Parallel(32):
            C[bx * 32 + i] = A[bx * 32 + i]
