"""Blocks of any number of threads, whose last warp may be partial."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

TARGETS = ["llvm", "metal", "sm_80", "gpu"]


@program(
    tags={"threads"},
    parameters={
        "kind": [
            "sums of rows",
            "copied",
            "sums of columns",
            "scanned",
            "pipelined",
            "transposed",
            "by a reducer",
        ],
        "block": [(24, 3, 48), (1, 5, 7), (48, 8, 16), (100, 16, 32)],
    },
    examples=[
        {"kind": kind, "block": block}
        for kind, block in (
            ("sums of rows", (24, 3, 48)),
            ("copied", (100, 16, 32)),
            ("sums of columns", (48, 8, 16)),
            ("scanned", (100, 16, 32)),
            ("pipelined", (24, 3, 48)),
            ("transposed", (48, 8, 16)),
            ("by a reducer", (24, 3, 48)),
            ("sums of rows", (1, 5, 7)),
        )
    ],
    drawn=8,
    targets=TARGETS,
    fast=["metal"],
)
def threads_of_any_number(
    A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")
):
    threads, rows, columns = block
    with T.Kernel(1, threads=threads):
        shared, tile = (
            T.alloc_shared((rows, columns), "float32"),
            T.alloc_fragment((rows, columns), "float32"),
        )
        row, total = T.alloc_shared((1, columns), "float32"), T.alloc_fragment((rows,), "float32")
        turned = T.alloc_fragment((columns, rows), "float32")
        column, sums = (
            T.alloc_fragment((columns,), "float32"),
            T.alloc_shared((columns,), "float32"),
        )
        if kind == "pipelined":
            T.clear(column)
            for k in T.Pipelined(rows, num_stages=2):
                T.copy(A[k, 0], row)
                for j in T.Parallel(columns):
                    column[j] = column[j] + row[0, columns - 1 - j]
                for j in T.Parallel(columns):
                    C[k, j] = column[j]
        elif kind == "by a reducer":
            reducer = T.alloc_reducer((columns,), "float32", "sum")
            T.clear(reducer)
            for i, j in T.Parallel(rows, columns):
                reducer[j] += A[i, j]
            T.finalize_reducer(reducer)
            for i, j in T.Parallel(rows, columns):
                C[i, j] = reducer[j]
        else:
            T.copy(A, shared)
            T.copy(shared, tile)
            if kind == "copied":
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = tile[i, j] * 2 + shared[rows - 1 - i, columns - 1 - j]
            elif kind == "sums of rows":
                T.reduce_sum(tile, total, dim=1)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = tile[i, j] - total[i]
            elif kind == "sums of columns":
                T.reduce_sum(shared, sums, dim=0)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = shared[i, j] - sums[j]
            elif kind == "scanned":
                T.cumsum(shared, dim=1)
                T.cumsum(shared, dim=0)
                T.copy(shared, tile)
            else:
                T.transpose(tile, turned)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = turned[j, i] * 2
            T.copy(tile, C)


@program(
    tags={"threads", "reduce"},
    parameters={
        "shape": [(8, 4, 3), (2, 8, 3), (2, 4, 5)],
        "threads": [96, 48, 40],
        "dim": [0, 1, 2],
    },
    targets=TARGETS,
    drawn=4,
    fast=["metal"],
)
def threads_that_lie_no_power_of_two_apart(
    A: T.Tensor(shape, "float32"), C: T.Tensor(left, "float32")
):
    """Shuffles exchange by the bits of a lane's number."""
    left = ((shape[1], shape[2]), (shape[0], shape[2]), (shape[0], shape[1]))[dim]
    with T.Kernel(1, threads=threads):
        T.reduce_sum(A, C, dim=dim)


@program(tags={"threads", "gemm"}, parameters={"threads": [48]}, targets=TARGETS)
def threads_too_few_for_a_matrix_unit(
    A: T.Tensor((16, 16), "float16"), C: T.Tensor((16, 16), "float32")
):
    with T.Kernel(1, threads=threads):
        tile, sums = T.alloc_shared((16, 16), "float16"), T.alloc_fragment((16, 16), "float32")
        T.copy(A, tile)
        T.clear(sums)
        T.gemm(tile, tile, sums)
        T.copy(sums, C)
