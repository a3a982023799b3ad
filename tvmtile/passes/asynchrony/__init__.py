"""Copies that go on while threads do: what InjectPipeline says of them, and how they are issued.

InjectPipeline encloses copies that may arrive later in an attribute, ends their group by a commit, and
puts a wait before what uses them. DistributeParallel makes `cp.async` of the moves in the attribute
that can be, and moves the others at once. InsertBarriers knows when the elements arrive: at a wait.

PTX ISA, "Data Movement and Conversion Instructions: cp.async": a thread waits for groups of its own
copies, the oldest first, by how many of the latest may still be on their way. What other threads have
copied is visible after a barrier behind their waits.
"""

from tvmtile.passes.asynchrony.groups import (
    FILLING_ISSUES,
    ISSUES,
    MAX_IN_FLIGHT,
    commit,
    committed,
    is_late,
    late,
    wait,
    waited,
)

__all__ = [
    "FILLING_ISSUES",
    "ISSUES",
    "MAX_IN_FLIGHT",
    "commit",
    "committed",
    "is_late",
    "late",
    "wait",
    "waited",
]
