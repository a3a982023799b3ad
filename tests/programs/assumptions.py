"""`T.assume`: what holds of each call makes copies as wide as those of a static kernel."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program(
    parameters={"multiple": [64, 32, 16]},
    examples="multiple",
    sizes=[{"m": 64}, {"m": 192}],
    expects=lambda p: {"sm_90a": ["  if (" if p.multiple == 16 else "not   if ("]},
)
def guards_of_whole_tiles(A: float32[m, 64], C: float32[m, 64]):
    with T.Kernel(T.ceildiv(m, 32), threads=64) as bx:
        T.assume(m % multiple == 0)
        for i, j in T.Parallel(32, 64):
            C[bx * 32 + i, j] = A[bx * 32 + i, j] + 1


@program(sizes=[{"n": 9}, {"n": 4}], inputs={"rows": [3, 0, 3, 2]}, fast=["metal", "sm_90a"])
def rows_that_are_promised(rows: int32[4], A: float32[n, 64], C: float32[4, 64]):
    """The kernel alone knows that the rows it reads are in bounds, and promises it."""
    with T.Kernel(4, threads=32) as bx:
        row = rows[bx]
        T.assume(row >= 0 and row < n)
        T.assume(rows[bx] < n)
        for i in T.serial(2):
            T.assume(i < 2)
            for j in T.Parallel(32):
                C[bx, i * 32 + j] = A[row, i * 32 + j]


@program(tags={"pipelined"}, sizes=[{"n": 64}, {"n": 72}, {"n": 200}], fast=["metal", "sm_90a"])
def columns_assumed_in_a_loop(A: float16[64, n], C: float16[64, n]):
    """Assumptions stand in a pipelined loop and in T.Parallel."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), "float16")
        for k in T.Pipelined(T.ceildiv(n, 64), num_stages=2):
            T.assume(n % 8 == 0)
            T.copy(A[0, k * 64], tile)
            for i, j in T.Parallel(64, 64):
                T.assume(i < 64)
                if k * 64 + j < n:
                    C[i, k * 64 + j] = tile[i, j] * 2


@program(sizes=[{"m": 70, "n": 64, "s": 80}, {"m": 70, "n": 50, "s": 72}], fast=["metal", "sm_90a"])
def assumed_strides(A: T.StridedTensor((m, n), (s, 1), "float16"), C: float16[m, 64]):
    with T.Kernel(T.ceildiv(m, 64), threads=128) as bx:
        T.assume(s % 8 == 0)
        tile = T.alloc_shared((64, 64), "float16")
        T.copy(A[bx * 64, 0], tile)
        T.copy(tile, C[bx * 64, 0])


@program(sizes=[{"n": 192}, {"n": 64}], fast=["metal", "sm_90a"])
def view_of_an_assumed_extent(A: float16[64, n], C: float16[64 * n]):
    with T.Kernel(T.ceildiv(n, 64), threads=128) as bx:
        T.assume(n % 64 == 0)
        out = T.view(C, (64, n))
        tile = T.alloc_shared((64, 64), "float16")
        T.copy(A[0, bx * 64], tile)
        T.copy(tile, out[0, bx * 64])


@program(sizes=[{"n": 96}, {"n": 32}])
def assumptions_before_kernels(A: float16[n, 64], C: float16[n, 64]):
    T.assume(n % 32 == 0)
    with T.Kernel(n // 32, threads=32) as bx:
        for i, j in T.Parallel(32, 64):
            C[bx * 32 + i, j] = A[bx * 32 + i, j] + 1
    with T.Kernel(n // 32, threads=32) as bx:
        for i, j in T.Parallel(32, 64):
            C[bx * 32 + i, j] += A[bx * 32 + i, j]


@program(sizes=[{"n": 4}, {"n": 3}])
def assumptions_around_kernels(X: float32[n]):
    for i in T.serial(3):
        T.assume(i < n)
        with T.Kernel(1, threads=32):
            X[i] = 1
    with T.Kernel(1, threads=32):
        X[0] = 2


@program(sizes=[{"n": 48}, {"n": 16}])
def extents_in_expressions_only(A: float32[n * 2], C: float32[n * 2]):
    with T.Kernel(T.ceildiv(n * 2, 32), threads=32) as bx:
        T.assume(n % 16 == 0)
        for i in T.Parallel(32):
            C[bx * 32 + i] = A[bx * 32 + i]
