"""Fragments that are used in unusual ways: every thread must still hold what it reads."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

# Extents that the threads divide, and that they don't.
EXTENTS = [(7, 13), (16, 64), (5, 100), (3, 257), (1, 1)]


@program(
    tags={"fragment"},
    parameters={
        "kind": [
            "plain",
            "transposed",
            "reversed rows",
            "outer product",
            "reduced both ways",
            "every element for two",
            "every second element",
            "halves exchanged",
        ],
        "extents": EXTENTS,
        "threads": [64, 32, 96, 256],
    },
    examples=[
        {},
        {"kind": "halves exchanged", "extents": (16, 64)},
        {"kind": "every element for two", "extents": (5, 100)},
        {"kind": "reversed rows", "extents": (3, 257)},
    ],
    where=lambda p: p.extents[1] % 2 == 0 or ("two" not in p.kind and "halves" not in p.kind),
    drawn=12,
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def registers_read_by_others(
    A: T.Tensor((M, N), "float32"), B: T.Tensor((N, M), "float32"), C: T.Tensor((M, N), "float32")
):
    M, N = extents
    with T.Kernel(1, threads=threads):
        a, b = T.alloc_fragment((M, N), "float32"), T.alloc_fragment((N, M), "float32")
        c = T.alloc_fragment((M, N), "float32")
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
        else:
            for i, j in T.Parallel(M, N // 2):
                c[i, j] = -a[i, j + N // 2]
                c[i, j + N // 2] = a[i, j]
        T.copy(c, C)


@program(
    tags={"fragment", "reduce"},
    parameters={"extents": EXTENTS, "threads": [64, 96]},
    targets=["llvm", "metal", "sm_80", "gpu"],
)
def registers_of_a_vector_along_both_axes(
    A: T.Tensor((M, N), "float32"), C: T.Tensor((M, M), "float32")
):
    M, N = extents
    with T.Kernel(1, threads=threads):
        a, sums = T.alloc_fragment((M, N), "float32"), T.alloc_fragment((M,), "float32")
        c = T.alloc_fragment((M, M), "float32")
        T.copy(A, a)
        T.reduce_sum(a, sums, dim=1)
        for i, j in T.Parallel(M, M):
            c[i, j] = sums[i] + 2 * sums[j]
        T.copy(c, C)


@program(
    tags={"fragment", "reduce"},
    parameters={"dim": [0, 1], "copied": [False, True]},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def registers_of_a_region_that_is_reduced(
    A: T.Tensor((32, 40), "float32"), C: T.Tensor((24 if dim == 0 else 16,), "float32")
):
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


@program(
    tags={"fragment", "copy"},
    parameters={"start": [3, 0, 4], "rows": [5, 4, 8]},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def registers_of_regions_that_are_copied(
    A: T.Tensor((12, 32), "float32"), C: T.Tensor((12, 48), "float32")
):
    with T.Kernel(1, threads=64):
        a, c = T.alloc_fragment((12, 32), "float32"), T.alloc_fragment((12, 48), "float32")
        T.copy(A, a)
        T.fill(c, 7)
        T.copy(a[start : start + rows, 0:16], c[1 : rows + 1, 16:32])
        T.copy(c, C)


@program(
    tags={"fragment", "copy"},
    parameters={"first": [4, 0, 14, 15], "second": [14, 4, 0], "count": [1, 2]},
    where=lambda p: p.first + p.count <= 16,
    targets=["llvm", "metal", "sm_80", "gpu"],
)
def registers_of_single_elements_that_are_copied(
    A: T.Tensor((16,), "float32"), B: T.Tensor((16,), "float32")
):
    with T.Kernel(1, threads=128):
        a, b = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.copy(a[first : first + count], b[second : second + count])
        T.copy(b, B)


@program(tags={"fragment", "copy"}, fast=["metal"])
def registers_of_an_element_that_is_filled_added_to_and_stored(
    A: T.Tensor((2, 16), "float32"), B: T.Tensor((3,), "float32")
):
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


@program(
    tags={"fragment", "reduce"},
    parameters={"shape": [(3, 5, 7), (4, 8, 16), (2, 1, 65)]},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def registers_of_three_axes(
    A: T.Tensor(shape, "float32"), C: T.Tensor((shape[2], shape[0], shape[1]), "float32")
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


@program(
    tags={"fragment"},
    parameters={"threads": [32, 128]},
    targets=["llvm", "metal", "sm_80", "gpu"],
    fast=["metal"],
)
def registers_that_all_threads_read_in_a_serial_loop(
    A: T.Tensor((10, 12), "float32"),
    B: T.Tensor((12, 30), "float32"),
    C: T.Tensor((10, 30), "float32"),
):
    with T.Kernel(1, threads=threads):
        a, b = T.alloc_fragment((10, 12), "float32"), T.alloc_fragment((12, 30), "float32")
        c = T.alloc_fragment((10, 30), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(c)
        for k in T.serial(12):
            for i, j in T.Parallel(10, 30):
                c[i, j] += a[i, k] * b[k, j]
        T.copy(c, C)


@program(tags={"fragment"}, targets=["llvm", "metal", "sm_80", "gpu"])
def registers_of_a_scale_that_is_read_by_one_index(
    A: T.Tensor((8, 32), "float32"), B: T.Tensor((4,), "float32"), C: T.Tensor((8, 32), "float32")
):
    with T.Kernel(1, threads=64):
        a, b = T.alloc_fragment((8, 32), "float32"), T.alloc_fragment((4,), "float32")
        c = T.alloc_fragment((8, 32), "float32")
        T.copy(A, a)
        T.copy(B, b)
        for i, j in T.Parallel(8, 32):
            c[i, j] = a[i, j] * b[0] + b[3]
        T.copy(c, C)


@program(tags={"fragment"}, fast=["metal"])
def registers_of_different_dtypes(
    A: T.Tensor((16, 64), "float16"),
    B: T.Tensor((16, 64), "int8"),
    C: T.Tensor((16, 64), "float32"),
):
    with T.Kernel(1, threads=64):
        a, b = T.alloc_fragment((16, 64), "float16"), T.alloc_fragment((16, 64), "int8")
        c = T.alloc_fragment((16, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        for i, j in T.Parallel(16, 64):
            c[i, j] = T.cast(a[i, j], "float32") * T.cast(b[i, j], "float32")
        T.copy(c, C)


@program(
    tags={"loop"},
    sizes=[{"n": 100}, {"n": 1}, {"n": 31}, {"n": 64}, {"n": 129}],
    fast=["metal", "sm_80"],
)
def loops_of_dynamic_extents(A: T.Tensor((n,), "float32"), C: T.Tensor((n, 3), "float32")):
    with T.Kernel(T.ceildiv(n, 64), threads=32) as bx:
        for i, j in T.Parallel(T.min(64, n - bx * 64), 3):
            C[bx * 64 + i, j] = A[bx * 64 + i] * j


@program(tags={"loop", "copy"}, fast=["metal"])
def causal_mask_in_a_vectorised_loop(
    A: T.Tensor((70, 70), "float16"), C: T.Tensor((70, 70), "float16")
):
    with T.Kernel(T.ceildiv(70, 32), T.ceildiv(70, 32), threads=64) as (bx, by):
        tile = T.alloc_shared((32, 32), "float16")
        T.copy(A[by * 32, bx * 32], tile)
        for i, j in T.Parallel(32, 32):
            visible = by * 32 + i >= bx * 32 + j
            tile[i, j] = T.if_then_else(visible, tile[i, j], T.float16(-1))
        T.copy(tile, C[by * 32, bx * 32])


@program(
    tags={"copy"},
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
