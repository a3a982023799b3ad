"""Single rows, columns and elements of fragments that a product reads: some threads hold them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileWarning

ROWS, COLUMNS = 64, 32


def row_to_tile_of_one_row(a, c):
    row = T.alloc_fragment((1, COLUMNS), "float32")
    T.copy(a[58:59, 0:COLUMNS], row)
    T.copy(row, c[36:37, 0:COLUMNS])


def row_to_vector(a, c):
    row = T.alloc_fragment((COLUMNS,), "float32")
    T.copy(a[58, 0:COLUMNS], row)
    T.copy(row, c[36, 0:COLUMNS])


def row_to_row(a, c):
    T.copy(a[58:59, 0:COLUMNS], c[36:37, 0:COLUMNS])


@T.macro
def rows_in_reverse(a, c):
    for k in T.serial(ROWS):
        T.copy(a[k : k + 1, 0:COLUMNS], c[63 - k : 64 - k, 0:COLUMNS])


@T.macro
def rows_to_shared_vectors(a, c):
    row = T.alloc_shared((COLUMNS,), "float32")
    for k in T.serial(ROWS):
        T.copy(a[k, 0:COLUMNS], row)
        T.copy(row, c[63 - k, 0:COLUMNS])


def column_to_column(a, c):
    T.copy(a[0:ROWS, 5:6], c[0:ROWS, 8:9])


def element_to_element(a, c):
    T.copy(a[58:59, 3:4], c[36:37, 8:9])


def row_filled(a, c):
    T.fill(a[58:59, 0:COLUMNS], 7)
    T.copy(a, c)


def row_transposed(a, c):
    column = T.alloc_fragment((COLUMNS, 1), "float32")
    T.transpose(a[58:59, 0:COLUMNS], column)
    T.transpose(column, c[36:37, 0:COLUMNS])


def row_expected(a, c):
    c[36] = a[58]


def reverse_expected(a, c):
    c[:] = a[::-1]


def column_expected(a, c):
    c[:, 8] = a[:, 5]


def element_expected(a, c):
    c[36, 8] = a[58, 3]


def filled_expected(a, c):
    a[58] = 7
    c[:] = a


CASES = {
    row_to_tile_of_one_row: row_expected,
    row_to_vector: row_expected,
    row_to_row: row_expected,
    rows_in_reverse: reverse_expected,
    rows_to_shared_vectors: reverse_expected,
    column_to_column: column_expected,
    element_to_element: element_expected,
    row_filled: filled_expected,
    row_transposed: row_expected,
}
NAMES = [move.__name__ for move in CASES]


def program(move, to):
    """What is moved from a fragment that a product reads by rows of threads, to another or a tensor."""
    allocate = {"fragment": T.alloc_fragment, "shared": T.alloc_shared}[to]

    @T.prim_func
    def main(
        A: T.Tensor((ROWS, COLUMNS), "float16"),
        B: T.Tensor((COLUMNS, 64), "float16"),
        C: T.Tensor((ROWS, COLUMNS), "float32"),
        D: T.Tensor((ROWS, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_fragment((ROWS, COLUMNS), "float16")
            b = T.alloc_shared((COLUMNS, 64), "float16")
            c = allocate((ROWS, COLUMNS), "float32")
            d = T.alloc_fragment((ROWS, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.clear(d)
            T.gemm(a, b, d)
            T.copy(d, D)
            move(a, c)
            T.copy(c, C)

    return main


@pytest.mark.parametrize(("move", "expected"), CASES.items(), ids=NAMES)
@pytest.mark.parametrize("to", ["fragment", "shared"])
def test_values(move, expected, to, compiled_everywhere):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((ROWS, COLUMNS), (COLUMNS, 64)))
    c, d = torch.empty(ROWS, COLUMNS), torch.empty(ROWS, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TileWarning)
        kernel = compiled_everywhere(program(move, to))
    kernel(torch.from_numpy(a), torch.from_numpy(b), c, d)
    wanted, held = np.zeros((ROWS, COLUMNS), np.float32), a.astype(np.float32)
    expected(held, wanted)
    np.testing.assert_array_equal(c.numpy(), wanted)
    np.testing.assert_array_equal(d.numpy(), a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("move", [row_to_row, column_to_column, row_filled])
def test_the_fragment_stays_in_registers(move):
    """The threads that hold a row write it; before, all of the fragment was kept in shared memory."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = tvmtile.compile(program(move, "shared"), target={"kind": "cuda", "arch": "sm_80"})
    assert not [str(each.message) for each in caught]
    shared = (COLUMNS * 64 * 2, ROWS * COLUMNS * 4)  # bytes of b and c
    assert sum(each.shared for each in kernel.resources()) == sum(shared)
