"""What warp specialisation knows of a kernel: which loops can be split, their rings, the two roles.

A pipelined loop is split between a producer, which copies tiles ahead, and consumers, which use them. A
*ring* is the buffer copies of the tiles that consumers begin and cease to use at the same places: its
`full` mbarriers say that the tiles of an iteration have come, its `empty` ones that nobody needs
them any more. Iteration `i` works on copy `i % stages`, for the `i // stages`-th time.
"""

from tvmtile.passes.tile.specialization.candidates import (
    Unsuitable,
    pipelined_loops_in,
)
from tvmtile.passes.tile.specialization.persistence import persistent
from tvmtile.passes.tile.specialization.registers import RoleRegisters
from tvmtile.passes.tile.specialization.ring import Ring
from tvmtile.passes.tile.specialization.skew import CrossIterationOverlap, Unskewed
from tvmtile.passes.tile.specialization.specializer import Specializer

__all__ = [
    "CrossIterationOverlap",
    "Ring",
    "RoleRegisters",
    "Specializer",
    "Unskewed",
    "Unsuitable",
    "persistent",
    "pipelined_loops_in",
]
