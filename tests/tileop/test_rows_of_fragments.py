"""Rows of a fragment that a product reads; what they hold is tested by the program of that name."""

from __future__ import annotations

import warnings

import pytest

import tvmtile
from tests.fuzz.run import loaded
from tests.programs import catalogue


@pytest.mark.parametrize("moves", [("fill",), ("column",), ("to a row",)])
def test_the_threads_that_hold_a_row_write_it(moves, tmp_path):
    """Before, all of the fragment was kept in shared memory."""
    case = catalogue()["rows_of_a_fragment"].case(moves=moves, to="shared")
    program = loaded(case, tmp_path).main
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_80"})
    assert not [str(each.message) for each in caught]
    shared = 32 * 64 * 2 + 64 * 32 * 4  # bytes of b and c
    assert sum(each.shared for each in kernel.resources()) == shared
