"""Elementwise loops that accumulate over an axis, which threads reduce together."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

M, N = 24, 64


@program(
    tags={"reduction"},
    parameters={
        "form": ["along both axes", "names and conditions", "extrema", "iterations", "some"],
        "dtype": ["float32", "int32"],
        "threads": [64, 128],
    },
    examples=[
        *({"form": form} for form in ("along both axes", "names and conditions", "extrema")),
        *({"form": form} for form in ("iterations", "some")),
    ],
    fast=["metal"],
)
def accumulations_of_a_tile(
    A: T.Tensor((M, N), dtype),
    C: T.Tensor((M,), dtype),
    D: T.Tensor((N,), dtype),
    E: T.Tensor((1,), dtype),
):
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
    tags={"reduction"},
    parameters={"extents": [(2, 16384), (4, 20000)]},
    examples=[{}, {"extents": (4, 20000)}],
    inputs={
        "A": lambda rng, shape: rng.integers(-2, 3, shape),
        "B": lambda rng, shape: rng.integers(-2, 3, shape),
    },
)
def accumulation_piece_by_piece(
    A: T.Tensor(extents, "float32"),
    B: T.Tensor(extents, "float32"),
    C: T.Tensor((extents[0],), "float32"),
):
    """Of more terms than threads have registers for."""
    with T.Kernel(1, threads=32):
        total = T.alloc_fragment((extents[0],), "float32")
        T.fill(total, 3)
        for i, j in T.Parallel(extents[0], extents[1]):
            if A[i, j] > -1:
                total[i] += A[i, j] * B[i, j]
        T.copy(total, C)


@program(
    tags={"reduction"},
    expects={"sm_80": ["__shfl_xor_sync", "not __shared__"]},
    fast=["sm_80"],
)
def accumulation_in_other_threads_than_the_terms(
    A: T.Tensor((M, N), "float16"), C: T.Tensor((M,), "float32")
):
    with T.Kernel(1, threads=128):
        x = T.alloc_fragment((M, N), "float16")
        total = T.alloc_fragment((M,), "float32")
        T.copy(A, x)
        T.clear(total)
        for i, j in T.Parallel(M, N):
            total[i] += T.cast(x[i, j], "float32") * T.cast(x[i, j], "float32")
        T.copy(total, C)


@program(tags={"reduction", "pipelined"})
def accumulation_of_cosines(
    A: T.Tensor((40, 100), "float16"),
    B: T.Tensor((40, 100), "float16"),
    C: T.Tensor((40,), "float32"),
):
    """Of the angles between the rows of two matrices, tile by tile."""
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


@program(tags={"reduction"}, fast=["metal"])
def reducer_that_is_an_ordinary_tile_afterwards(
    A: T.Tensor((8, 16), "float32"), C: T.Tensor((8,), "float32")
):
    """Also where one thread contributes outside of a loop, and where the loop repeats iterations."""
    with T.Kernel(1, threads=128):
        total = T.alloc_reducer((8,), "float32", op="max")
        for step in T.serial(2):
            T.fill(total, -100)
            for i, j in T.Parallel(8, 8):
                total[i] = T.max(total[i], A[i, step * 8 + j])
            total[3] = T.max(total[3], 7 + step)
            T.finalize_reducer(total)
            for i in T.Parallel(8):
                total[i] = total[i] * 2
            for i in T.Parallel(8):
                C[i] += total[i]
