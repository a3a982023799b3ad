"""Warnings where Metal does otherwise than was asked for; the numbers are the catalogue's."""

from __future__ import annotations

import pytest

import tvmtile
from tests.fuzz.run import loaded
from tests.programs import catalogue
from tvmtile import errors
from tvmtile.errors import TileWarning

METAL, SM80 = "metal", {"kind": "cuda", "arch": "sm_80"}
HALF, BRAIN = "float16", "bfloat16"
MIXED = "differ in dtype|float16 and bfloat16 matrices are not"


@pytest.mark.full(but=4)
@pytest.mark.parametrize(
    ("name", "parameters", "target", "message"),
    [
        ("gemm_of_two_dtypes", {"dtypes": (HALF, HALF, BRAIN, BRAIN)}, METAL, MIXED),
        ("gemm_of_two_dtypes", {"dtypes": (HALF, BRAIN, "float32", "float32")}, METAL, MIXED),
        (
            "gemm_by_threads_too_few_for_a_matrix_unit",
            {},
            METAL,
            "element by element.* 48 threads are not whole simdgroups of 32",
        ),
        (
            "gemm_by_threads_too_few_for_a_matrix_unit",
            {},
            SM80,
            "element by element.* 48 threads are not whole warps of 32",
        ),
        ("attention_whose_scores_take_memory", {"stages": 3}, METAL, "has 2 stages in place of 3"),
        ("attention_whose_scores_take_memory", {"stages": 4}, METAL, "has 2 stages in place of 4"),
    ],
)
def test_warning_says_what_is_done_instead(name, parameters, target, message, tmp_path):
    case = catalogue()[name].case(**parameters)
    errors._SHOWN_WARNINGS.clear()
    with pytest.warns(TileWarning, match=message):
        tvmtile.compile(loaded(case, tmp_path).main, target=target, execution_backend="emulator")
