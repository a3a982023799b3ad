"""What warp specialisation knows of a kernel: which loops can be split, their rings, the two roles.

A pipelined loop is split between a producer, which copies tiles ahead, and consumers, which use them. A
*ring* is the buffer copies of the tiles that consumers begin and cease to use at the same places: its
`full` mbarriers say that the tiles of an iteration have come, its `empty` ones that nobody needs
them any more. Iteration `i` works on copy `i % stages`, for the `i // stages`-th time.
"""

from tvmtile.passes.tile.specialization.candidates import (
    Candidate,
    Unsuitable,
    candidates_in,
    operators_in,
    pipelined_loops_in,
    wish_of,
)
from tvmtile.passes.tile.specialization.persistence import persistent
from tvmtile.passes.tile.specialization.preloads import Preload, preloaded_in
from tvmtile.passes.tile.specialization.ring import Ring
from tvmtile.passes.tile.specialization.roles import (
    Producer,
    Split,
    Splits,
    consumers_of,
    producer_of,
)
from tvmtile.passes.tile.specialization.skew import Skew, Unskewed, skew_of

__all__ = [
    "Candidate",
    "Preload",
    "Producer",
    "Ring",
    "Skew",
    "Split",
    "Splits",
    "Unskewed",
    "Unsuitable",
    "candidates_in",
    "consumers_of",
    "operators_in",
    "persistent",
    "pipelined_loops_in",
    "preloaded_in",
    "producer_of",
    "skew_of",
    "wish_of",
]
