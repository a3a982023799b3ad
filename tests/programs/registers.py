"""Fragments that are used in unusual ways: every thread must still hold what it reads."""

from __future__ import annotations

from functools import partial

import tvmtile.language as T
from tests.programs import program

# Kinds whose result has as many columns as rows.
SQUARE = ["a vector along both axes", "a product"]

registers = partial(program, targets=["llvm", "metal", "sm_80", "gpu"])


@registers(
    parameters={
        "kind": [
            *("plain", "transposed", "reversed rows", "outer product", "reduced both ways"),
            *("every element for two", "every second element", "halves exchanged", "two scales"),
            *SQUARE,
        ],
        "extents": [(7, 13), (16, 64), (5, 100), (3, 257), (1, 1)],  # some the threads divide
        "threads": [64, 32, 96, 256],
    },
    examples=[
        {},
        {"kind": "halves exchanged", "extents": (16, 64)},
        {"kind": "every element for two", "extents": (5, 100)},
        {"kind": "reversed rows", "extents": (3, 257)},
        {"kind": "a product", "threads": 32},
        {"kind": "two scales"},
        {"kind": "a vector along both axes"},
    ],
    where=lambda p: p.extents[1] % 2 == 0 or ("for two" not in p.kind and "halves" not in p.kind),
    drawn=18,
    fast=["metal"],
)
def registers_read_by_others(A: float32[M, N], B: float32[N, M], C: float32[M, columns_of_c]):
    M, N = extents
    columns_of_c = M if kind in SQUARE else N
    with T.Kernel(1, threads=threads):
        a, b = T.alloc_fragment((M, N), "float32"), T.alloc_fragment((N, M), "float32")
        c = T.alloc_fragment((M, columns_of_c), "float32")
        rows, columns = T.alloc_fragment((M,), "float32"), T.alloc_fragment((N,), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(c)
        if kind == "plain":
            for i, j in T.Parallel(M, N):
                c[i, j] = a[i, j] * 2 + 1
        elif kind == "transposed":
            for i, j in T.Parallel(M, N):
                c[i, j] = b[j, i]
        elif kind == "reversed rows":
            for i, j in T.Parallel(M, N):
                c[i, j] = a[M - 1 - i, j]
        elif kind == "outer product":
            T.copy(A[0:M, 0], rows)
            T.copy(A[0, 0:N], columns)
            for i, j in T.Parallel(M, N):
                c[i, j] = rows[i] * columns[j]
        elif kind == "reduced both ways":
            T.reduce_sum(a, rows, dim=1)
            T.reduce_max(b, columns, dim=1)
            for i, j in T.Parallel(M, N):
                c[i, j] = rows[i] - columns[j]
        elif kind == "every element for two":
            for i, j in T.Parallel(M, N):
                c[i, j] = a[i, j // 2]
        elif kind == "every second element":
            for i, j in T.Parallel(M, N // 2):
                c[i, j] = a[i, j * 2 + 1] - a[i, j * 2]
        elif kind == "halves exchanged":
            for i, j in T.Parallel(M, N // 2):
                c[i, j] = -a[i, j + N // 2]
                c[i, j + N // 2] = a[i, j]
        elif kind == "two scales":
            T.copy(A[0, 0:N], columns)
            for i, j in T.Parallel(M, N):
                c[i, j] = a[i, j] * columns[0] + columns[N - 1]
        elif kind == "a product":
            for k in T.serial(N):
                for i, j in T.Parallel(M, M):
                    c[i, j] += a[i, k] * b[k, j]
        else:
            T.reduce_sum(a, rows, dim=1)
            for i, j in T.Parallel(M, M):
                c[i, j] = rows[i] + 2 * rows[j]
        T.copy(c, C)


@registers(parameters={"dim": [0, 1], "copied": [False, True]}, fast=["metal"])
def registers_of_a_region_that_is_reduced(A: float32[32, 40], C: float32[24 if dim == 0 else 16]):
    with T.Kernel(1, threads=64):
        a, part = T.alloc_fragment((32, 40), "float32"), T.alloc_fragment((16, 24), "float32")
        c = T.alloc_fragment((24 if dim == 0 else 16,), "float32")
        T.copy(A, a)
        if copied:
            T.copy(a[8:24, 8:32], part)
            T.reduce_sum(part, c, dim=dim)
        else:
            T.reduce_max(a[8:24, 8:32], c, dim=dim)
        T.copy(c, C)


@registers(parameters={"start": [3, 0, 4], "rows": [5, 4, 8]}, fast=["metal"])
def registers_of_regions_that_are_copied(A: float32[12, 32], C: float32[12, 48]):
    with T.Kernel(1, threads=64):
        a, c = T.alloc_fragment((12, 32), "float32"), T.alloc_fragment((12, 48), "float32")
        T.copy(A, a)
        T.fill(c, 7)
        T.copy(a[start : start + rows, 0:16], c[1 : rows + 1, 16:32])
        T.copy(c, C)


@registers(
    parameters={"first": [4, 0, 14, 15], "second": [14, 4, 0], "count": [1, 2]},
    examples=[{}, {"first": 0, "count": 1}],  # a thread of eight wrote what all hold
    where=lambda p: p.first + p.count <= 16,
)
def registers_of_single_elements_that_are_copied(A: float32[16], B: float32[16]):
    with T.Kernel(1, threads=128):
        a, b = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.copy(a[first : first + count], b[second : second + count])
        T.copy(b, B)


@program(fast=["metal"])
def registers_of_an_element_that_is_filled_added_to_and_stored(A: float32[2, 16], B: float32[3]):
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((2, 16), "float32")
        T.copy(A, a)
        T.copy(a[1:2, 4:5], B[0:1])
        T.fill(a[1:2, 4:5], 9)
        T.copy(a[1:2, 4:5], B[1:2])
        for i in T.Parallel(1):
            a[1, i + 5] += 0.5
        T.copy(a[1:2, 5:6], B[2:3])
        T.copy(a, A)


@registers(parameters={"shape": [(3, 5, 7), (4, 8, 16), (2, 1, 65)]}, fast=["metal"])
def registers_of_three_axes(
    A: T.Tensor(shape, "float32"), C: float32[shape[2], shape[0], shape[1]]
):
    with T.Kernel(1, threads=64):
        a = T.alloc_fragment(shape, "float32")
        c = T.alloc_fragment((shape[2], shape[0], shape[1]), "float32")
        sums = T.alloc_fragment((shape[0], shape[2]), "float32")
        T.copy(A, a)
        for i, j, k in T.Parallel(shape[0], shape[1], shape[2]):
            a[i, j, k] = a[i, j, k] + i * 100 + j * 10 + k
        T.reduce_sum(a, sums, dim=1)
        for i, j, k in T.Parallel(shape[0], shape[1], shape[2]):
            c[k, i, j] = a[i, j, k] / shape[1] + sums[i, k]
        T.copy(c, C)


@program(fast=["metal"])
def registers_of_different_dtypes(A: float16[16, 64], B: int8[16, 64], C: float32[16, 64]):
    with T.Kernel(1, threads=64):
        a, b = T.alloc_fragment((16, 64), "float16"), T.alloc_fragment((16, 64), "int8")
        c = T.alloc_fragment((16, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        for i, j in T.Parallel(16, 64):
            c[i, j] = T.cast(a[i, j], "float32") * T.cast(b[i, j], "float32")
        T.copy(c, C)


@program(sizes=[{"n": 100}, {"n": 1}, {"n": 31}, {"n": 64}, {"n": 129}], fast=["metal", "sm_80"])
def loops_of_dynamic_extents(A: float32[n], C: float32[n, 3]):
    with T.Kernel(T.ceildiv(n, 64), threads=32) as bx:
        for i, j in T.Parallel(T.min(64, n - bx * 64), 3):
            C[bx * 64 + i, j] = A[bx * 64 + i] * j


@program(fast=["metal"])
def causal_mask_in_a_vectorised_loop(A: float16[70, 70], C: float16[70, 70]):
    with T.Kernel(T.ceildiv(70, 32), T.ceildiv(70, 32), threads=64) as (bx, by):
        tile = T.alloc_shared((32, 32), "float16")
        T.copy(A[by * 32, bx * 32], tile)
        for i, j in T.Parallel(32, 32):
            visible = by * 32 + i >= bx * 32 + j
            tile[i, j] = T.if_then_else(visible, tile[i, j], T.float16(-1))
        T.copy(tile, C[by * 32, bx * 32])


@program(
    parameters={"stride": [33, 34, 36, 40], "dtype": ["float16", "float32", "int8"]},
    fast=["metal", "sm_80"],
)
def rows_whose_stride_is_no_multiple_of_a_vector(
    A: T.StridedTensor((20, 32), (stride, 1), dtype),
    C: T.StridedTensor((20, 32), (stride, 1), dtype),
):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((20, 32), dtype)
        T.copy(A, tile)
        for i, j in T.Parallel(20, 32):
            C[i, j] = tile[i, j] + tile[19 - i, j]
