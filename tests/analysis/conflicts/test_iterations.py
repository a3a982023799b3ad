"""Iterations of a loop that stand for all of them."""

import pytest
from tvm import tirx
from tvm.tirx import floordiv, floormod

from tvmtile.analysis.conflicts.expressions import repetition

K, OTHER = tirx.Var("k", "int32"), tirx.Var("other", "int32")


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        ([OTHER], 1),
        ([floormod(K, 3)], 3),
        ([floormod(K * 5 - 2, 3) * 8 + OTHER, floormod(OTHER + K, 4)], 12),
        ([floormod(floormod(K, 6) + 1, 4)], 6),
        ([K], None),
        ([floormod(K, 3), K + 1], None),
        ([floordiv(K, 3)], None),
        ([floormod(floordiv(K, 2), 3)], None),
        ([floormod(K, OTHER)], None),
        ([floormod(tirx.Cast("int32", tirx.Cast("uint8", K)), 3)], None),
    ],
)
def test_expressions_repeat_with_the_remainders_in_them(expressions, expected):
    assert repetition(expressions, K) == expected
