"""In which iterations two accesses are, and which threads meet there."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["SIMDGROUP", "Meeting", "Order"]

SIMDGROUP = 32
"""The threads of a simdgroup, or a warp."""


class Order(IntEnum):
    """In which iterations of a loop two accesses are, the earlier and the later one.

    `SAME`, `NEXT` and `LATER` are of a loop around both, `FIRST` of one around the later access only,
    which is in its first iteration, and `LAST` of one around the earlier access only.
    """

    SAME = 0
    NEXT = 1
    LATER = 2
    FIRST = 3
    LAST = 4


class Meeting(IntEnum):
    """Whether two threads meet at an element."""

    NEVER = 0
    IN_SIMDGROUP = 1
    """Threads of one simdgroup only."""
    IN_BLOCK = 2
