"""Dependences between two accesses: their distance in iterations, and the threads in conflict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import ClassVar

from tvmtile.ir.threads import WARP_SIZE, WARPGROUP


class Side(Enum):
    """The side of a loop: around the earlier of two accesses, the later one, or both."""

    BOTH = "both"
    LATER = "later"
    EARLIER = "earlier"


@dataclass(frozen=True)
class Distance:
    """The dependence distance of two accesses along a loop: the iterations between them."""

    side: Side
    """The accesses, of the two, that the loop is around."""
    iterations: int
    """The iterations from the earlier access to the later one; of a loop around one of them only, those
    from its first iteration, or to its last one.
    """
    is_exact: bool = True
    """The distance is that many iterations, not more."""

    SAME: ClassVar[Distance]
    LATER: ClassVar[Distance]
    FIRST: ClassVar[Distance]
    LAST: ClassVar[Distance]


Distance.SAME = Distance(Side.BOTH, 0)
Distance.LATER = Distance(Side.BOTH, 1, is_exact=False)
Distance.FIRST = Distance(Side.LATER, 0)
Distance.LAST = Distance(Side.EARLIER, 0)


class ConflictScope(IntEnum):
    """The threads between which two accesses conflict."""

    NONE = 0
    WARP = 1
    """Threads of one warp, or simdgroup, only."""
    WARPGROUP = 2
    """Threads of one warpgroup only."""
    BLOCK = 3

    @classmethod
    def of_threads(cls, count: int) -> ConflictScope:
        """The narrowest that has all threads of a block of so many."""
        if count <= WARP_SIZE:
            return cls.WARP
        return cls.WARPGROUP if count <= WARPGROUP else cls.BLOCK


class Collision(IntEnum):
    """The chance that an access touches an element that a copy is still on its way to."""

    NEVER = 0
    POSSIBLE = 1
    """A collision can't be excluded: indices or conditions are not known."""
    CERTAIN = 2
