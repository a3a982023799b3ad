"""LowerParallelOnCpu: what LLVM makes of elementwise loops."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T

ROWS, COLUMNS = T.dynamic("ROWS, COLUMNS")


def copies(tile, shape, threads=64):
    """A tile of every block, in and out."""

    @T.prim_func
    def main(A: T.Tensor(shape, "float32"), B: T.Tensor(shape, "float32")):
        with T.Kernel(
            T.ceildiv(shape[1], tile[1]), T.ceildiv(shape[0], tile[0]), threads=threads
        ) as (bx, by):
            own = T.alloc_shared(tile, "float32")
            T.copy(A[by * tile[0], bx * tile[1]], own)
            for i, j in T.Parallel(*tile):
                own[i, j] = own[i, j] + A[by * tile[0] + i - 1, bx * tile[1] + j + 1]
            T.copy(own, B[by * tile[0], bx * tile[1]])

    return main


def kilobytes(tile, shape):
    return len(tvmtile.compile(copies(tile, shape), target="llvm").get_kernel_source()) / 1000


@pytest.mark.full(but=1)
@pytest.mark.parametrize("tile", [(16, 32), (16, 64), (64, 64), (8, 128)])
@pytest.mark.parametrize("shape", [(1024, 1000), (1024, COLUMNS), (ROWS, COLUMNS)])
def test_code_grows_with_the_text_of_a_kernel(tile, shape):
    assert kilobytes(tile, shape) < 3 * kilobytes(tile, (1024, 1024))


@pytest.mark.parametrize("shape", [(1024, 1024), (1024, COLUMNS)])
def test_code_does_not_grow_with_a_tile(shape):
    assert kilobytes((64, 64), shape) < 2 * kilobytes((16, 64), shape)
    assert kilobytes((16, 64), shape) < 250


def chosen(tile):
    """Some elements of a tile are replaced, which takes a branch."""

    @T.prim_func
    def main(A: T.Tensor((1024, 1024), "uint8"), B: T.Tensor((1024, 1024), "float16")):
        with T.Kernel(1024 // tile[1], 1024 // tile[0], threads=64) as (bx, by):
            own = T.alloc_shared(tile, "uint8")
            T.copy(A[by * tile[0], bx * tile[1]], own)
            for i, j in T.Parallel(*tile):
                if T.cast(own[i, j], "float32") < 2 or bx > 0:
                    own[i, j] = T.cast(T.cast(own[i, j], "int32") % 7, "uint8")
            T.copy(own, B[by * tile[0], bx * tile[1]])

    return main


@pytest.mark.full(but=2)
@pytest.mark.parametrize("columns", [8, 16, 32, 64])
def test_short_rows_with_branches_are_not_written_out(columns):
    """LLVM wrote them out, and made vectors of what is a row apart: half a megabyte for 32 columns."""
    source = tvmtile.compile(chosen((64, columns)), target="llvm").get_kernel_source()
    assert len(source) < 130_000
