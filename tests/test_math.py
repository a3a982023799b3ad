"""Integer arithmetic of a kernel's host."""

from __future__ import annotations

import pytest

import tvmtile


@pytest.mark.parametrize(("a", "b", "result"), [(0, 4, 0), (1, 4, 1), (8, 4, 2), (9, 4, 3)])
def test_cdiv_rounds_up(a, b, result):
    assert tvmtile.cdiv(a, b) == result


@pytest.mark.parametrize(("n", "result"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_next_power_of_2_is_the_least_that_is_not_less(n, result):
    assert tvmtile.next_power_of_2(n) == result
