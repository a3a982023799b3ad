"""In which iterations two accesses are, and which threads meet there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import ClassVar

__all__ = ["Collision", "Meeting", "Order", "Side"]


class Side(Enum):
    """Which of two accesses a loop is around, the earlier or the later one."""

    BOTH = "both"
    LATER = "later"
    EARLIER = "earlier"


@dataclass(frozen=True)
class Order:
    """In which iterations of a loop two accesses are, the earlier and the later one.

    Attributes
    ----------
    side : Side
        Which of them the loop is around.
    distance : int
        The iterations from the earlier access to the later one; of a loop around one of them only,
        those from its first iteration, or to its last one.
    is_exact : bool
        It is that many iterations, not more.
    """

    side: Side
    distance: int
    is_exact: bool = True

    SAME: ClassVar[Order]
    NEXT: ClassVar[Order]
    LATER: ClassVar[Order]
    FIRST: ClassVar[Order]
    LAST: ClassVar[Order]


Order.SAME = Order(Side.BOTH, 0)
Order.NEXT = Order(Side.BOTH, 1)
Order.LATER = Order(Side.BOTH, 1, is_exact=False)
Order.FIRST = Order(Side.LATER, 0)
Order.LAST = Order(Side.EARLIER, 0)


class Meeting(IntEnum):
    """Whether two threads meet at an element."""

    NEVER = 0
    IN_SIMDGROUP = 1
    """Threads of one simdgroup only."""
    IN_BLOCK = 2


class Collision(IntEnum):
    """Whether an access touches an element that a copy is still on its way to."""

    NEVER = 0
    POSSIBLE = 1
    """It can't be excluded: indices or conditions are not known."""
    CERTAIN = 2
