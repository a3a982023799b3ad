"""ReduceBehindLoops: which sums are exchanged behind a loop; what they are, the catalogue says."""

from __future__ import annotations

import pytest

from tests.fuzz.run import loaded
from tests.passes.tile.test_select_implementation import after
from tests.programs import catalogue
from tests.programs.loops import OTHER_SUMS, SUMS_OF_SUMS
from tvmtile.passes import ReduceBehindLoops

TARGETS = {"sm_80": {"kind": "cuda", "arch": "sm_80"}, "metal": "metal"}


@pytest.mark.full(but=14)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "given", "is_behind"),
    [
        *(("sums_of_rows_in_a_loop", {"form": form}, True) for form in SUMS_OF_SUMS),
        *(("sums_of_rows_in_a_loop", {"form": form}, False) for form in OTHER_SUMS),
        ("sums_of_rows_in_a_loop", {"dtype": "int32"}, True),
        ("sums_of_rows_in_a_loop", {"threads": 32, "start": 0}, True),
        ("sums_in_a_loop_in_a_loop", {"around": "while"}, True),
        ("sums_with_nothing_to_move", {"is_alone": False}, False),
        ("sums_with_nothing_to_move", {"is_alone": True}, False),
    ],
    ids=str,
)
def test_sums_of_which_a_loop_only_takes_sums_are_exchanged_behind_it(
    name, given, is_behind, target, tmp_path
):
    program = loaded(catalogue()[name].case(**given), tmp_path).main
    text = after(program, ReduceBehindLoops, TARGETS[target]).script()
    assert ("partial_reduce" in text) == is_behind
