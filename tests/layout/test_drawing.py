"""Layouts as people see them in messages."""

import textwrap

from tvmtile.layout.drawing import drawn, first_difference
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, FragmentLayout, replicated, spread

ACCUMULATOR = FragmentLayout(
    32,
    (
        (Digit(2, REGISTER, 2), Digit(8, THREAD, 4)),
        (Digit(4, THREAD, 1), Digit(2, REGISTER, 1)),
    ),
)


def picture(text):
    return textwrap.dedent(text).strip()


def test_an_accumulator_is_drawn():
    assert drawn(ACCUMULATOR) == picture(
        """
        0:0   0:1   1:0   1:1   2:0   2:1   3:0   3:1
        4:0   4:1   5:0   5:1   6:0   6:1   7:0   7:1
        8:0   8:1   9:0   9:1   10:0  10:1  11:0  11:1
        12:0  12:1  13:0  13:1  14:0  14:1  15:0  15:1
        ...
        """
    )


def test_a_later_corner_and_what_follows_it():
    assert drawn(spread((8, 64), 32, 4), (4, 56)) == picture(
        """
        14:8   14:9   14:10  14:11  15:8   15:9   15:10  15:11
        30:8   30:9   30:10  30:11  31:8   31:9   31:10  31:11
        14:12  14:13  14:14  14:15  15:12  15:13  15:14  15:15
        30:12  30:13  30:14  30:15  31:12  31:13  31:14  31:15
        """
    )


def test_copies_are_marked():
    assert drawn(replicated((3,), 64)) == "0+:0  0+:1  0+:2"


def test_the_first_element_in_another_thread_is_found():
    other = FragmentLayout(
        32,
        (
            (Digit(8, THREAD, 4), Digit(2, REGISTER, 2)),
            (Digit(4, THREAD, 1), Digit(2, REGISTER, 1)),
        ),
    )
    assert first_difference(ACCUMULATOR, other) == (1, 0)
    assert first_difference(ACCUMULATOR, ACCUMULATOR) == (0, 0)
    assert first_difference(ACCUMULATOR, replicated((3,), 32)) == (0, 0)
