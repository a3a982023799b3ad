"""Indices are compared as the machine computes them."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx

from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate

TX = tirx.Var("tx", "int32")
THREADS = np.arange(512)
N = tirx.Var("n", "int32")


def cast(dtype, expression):
    return tirx.Cast(dtype, expression)


def number(dtype, value):
    return tirx.const(value, dtype)


def evaluated(expression):
    return evaluate(expression, {TX: THREADS}, N.same_as, 0)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (cast("int32", cast("uint8", TX * 4)), (THREADS * 4).astype("uint8")),
        (cast("int32", cast("int8", TX)), THREADS.astype("int8")),
        (cast("int32", cast("int16", TX * 100)), (THREADS * 100).astype("int16")),
        (cast("uint32", 5 - TX), (5 - THREADS).astype("uint32")),
        (cast("int32", cast("uint32", 5 - TX)), 5 - THREADS),
        (cast("uint16", cast("int64", TX) - 7), (THREADS - 7).astype("uint16")),
        (cast("uint32", TX) * number("uint32", 2654435761), THREADS * 2654435761 % 2**32),
        (cast("uint32", TX) - number("uint32", 9), (THREADS - 9) % 2**32),
        (
            (cast("uint32", TX) * number("uint32", 2654435761)) >> number("uint32", 26),
            THREADS * 2654435761 % 2**32 >> 26,
        ),
        (TX << 28, (THREADS << 28).astype("int32")),
        (cast("int64", TX - 5) << number("int64", 40), (THREADS - 5) << 40),
        (cast("uint64", TX) << number("uint64", 50), THREADS << 50),
        ((5 - TX) >> 2, (5 - THREADS) >> 2),
        (tirx.floordiv(5 - TX, 4), (5 - THREADS) // 4),
        (tirx.floormod(5 - TX, 4), (5 - THREADS) % 4),
        (cast("int32", TX < 7) + cast("int32", TX < 9), (THREADS < 7) * 1 + (THREADS < 9)),
        (cast("int32", cast("bool", TX)) - 1, (THREADS > 0) * 1 - 1),
        (cast("uint8", TX) + number("uint8", 0), THREADS.astype("uint8")),
    ],
)
def test_numbers_are_those_of_the_machine(expression, expected):
    value = evaluated(expression)
    assert value.term is None
    np.testing.assert_array_equal(value.numbers, expected.astype("int64"))


@pytest.mark.parametrize(
    "expression",
    [
        cast("uint8", TX) * number("uint8", 4),  # C++ promotes to int, LLVM does not
        cast("int16", TX) << number("int16", 12),
        cast("uint64", TX - 4),
        cast("uint64", TX) * cast("uint64", TX),
        cast("uint8", N),
        cast("uint32", N) + number("uint32", 1),
        cast("int32", cast("float16", TX)),
        tirx.floordiv(TX, TX - 5),
        TX << (TX - 5),
        cast("int64", TX) << number("int64", 60),  # bits are lost
        cast("uint64", TX) << number("uint64", 55),  # numpy has signs there
        tirx.truncdiv(TX - 5, 4),
    ],
)
def test_what_targets_compute_differently_is_unknown(expression):
    with pytest.raises(NotSeparable):
        evaluated(expression)


@pytest.mark.parametrize(
    "expression",
    [cast("int32", cast("int8", TX)), cast("uint8", TX * 4), TX << TX, cast("int64", TX) << 40],
)
def test_no_points_have_no_numbers(expression):
    """As where conditions leave out all threads that an access could be of."""
    value = evaluate(expression, {TX: THREADS[:0]}, N.same_as, 0)
    assert value.term is None
    assert np.size(value.numbers) == 0


def test_a_wider_dtype_keeps_a_uniform_term():
    value = evaluated(cast("int64", TX + N * 8))
    np.testing.assert_array_equal(value.numbers, THREADS)
    assert value.term is not None
