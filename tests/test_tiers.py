"""Tests, and those of their parameters, that run in a tier."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tests.conftest import TIERS, _covering, _of_part, _of_tier

FULL, NIGHTLY = pytest.mark.full, pytest.mark.nightly
SKIP, EMULATED = pytest.mark.skip, pytest.mark.emulated


class Case(NamedTuple):
    dtype: str
    rows: int

    def __str__(self):
        return f"{self.dtype}-{self.rows}"


class Item:
    """A test with a name for each of its parameters."""

    def __init__(self, *names, value=None, marks=()):
        self.nodeid = f"test[{'-'.join(names)}]"
        params = {} if value is None else {"case": value}
        self.callspec = SimpleNamespace(_idlist=names, params=params) if names else None
        self._marks = marks

    def get_closest_marker(self, name):
        return next((mark.mark for mark in self._marks if mark.name == name), None)


def kept(items):
    return sorted(name.removeprefix("test[").rstrip("]") for name in _covering(items))


def test_each_value_comes_once_and_others_are_spread():
    items = [Item(*names) for names in product("abc", "xyz")]
    assert kept(items) == ["a-x", "b-y", "c-z"]
    items = [Item(*names) for names in product("abcd", "xy")]
    assert [name[-1] for name in kept(items)].count("x") == 2
    assert [name[0] for name in kept(items)] == list("abcd")


def test_what_is_skipped_covers_only_what_never_runs():
    items = [
        Item(a, b, marks=[SKIP] if "gpu" in b else ()) for a, b in product("ab", ["cpu", "gpu"])
    ]
    assert kept(items) == ["a-cpu", "a-gpu", "b-cpu"]


def test_what_is_emulated_is_preferred():
    items = [Item(a, b, marks=[EMULATED] if a == b else ()) for a, b in product("xyz", "xyz")]
    assert kept(items) == ["x-x", "y-y", "z-z"]
    items = [Item(a, b, marks=[EMULATED] if a != b else ()) for a, b in product("xy", "xy")]
    assert kept(items) == ["x-y", "y-x"]


def test_a_parameter_with_named_fields_is_one_of_each():
    cases = [Case(*fields) for fields in product(["float16", "int8"], [1, 2])]
    assert kept([Item(str(case), value=case) for case in cases]) == ["float16-1", "int8-2"]


def test_a_test_without_parameters_runs():
    assert _covering([Item()]) == {"test[]"}


def test_a_mark_names_the_first_tier_that_a_test_runs_in():
    marks = {"a": [], "b": [FULL], "c": [NIGHTLY], "d": [FULL, NIGHTLY]}
    items = [Item(name, marks=those) for name, those in marks.items()]
    names = {tier: sorted(name[5] for name in _of_tier(items, tier)) for tier in TIERS}
    assert names == {"fast": ["a"], "full": ["a", "b"], "nightly": ["a", "b", "c", "d"]}


def test_all_parameters_run_in_the_tier_full():
    items = [Item(*names) for names in product("abc", "xyz")]
    assert [len(_of_tier(items, tier)) for tier in TIERS] == [3, 9, 9]


def test_each_case_is_in_one_part_of_about_equal_size():
    names = {
        f"tests/test_it.py::test_{name}[{number}]" for name in range(40) for number in range(3)
    }
    parts = [_of_part(names, f"{number}/4") for number in (1, 2, 3, 4)]
    assert set().union(*parts) == names
    assert sum(map(len, parts)) == len(names)
    assert all(20 < len(part) < 40 for part in parts)
    assert _of_part(names, "1/1") == names


def test_some_cases_of_a_test_run_in_the_tier_fast():
    items = [Item(*names, marks=[FULL(but=2)]) for names in product("abc", "xyz")]
    assert kept(items) == ["a-x", "b-y"]
    assert [len(_of_tier(items, tier)) for tier in TIERS] == [2, 9, 9]
