"""A thread's program as barriers see it: what it accesses, where it waits, and where it branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tvm import ir, tirx

from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.effects import Effect, Loop, MbarrierElement
from tvmtile.ir import asynchronous
from tvmtile.ir.threads import Group
from tvmtile.passes.gpu.barriers.clusters import Arrivals


@dataclass(eq=False)
class BarrierPoint:
    """A place where a barrier may stand."""

    weight: float = 1.0
    """How often it is executed, roughly, relative to the loop around it."""


@dataclass(frozen=True)
class Barrier:
    """The scope of a barrier, and the memory that it orders."""

    scope: ConflictScope = ConflictScope.BLOCK
    """The threads that it separates: those of a block, a warpgroup or a warp."""
    orders_device: bool = True
    """The barrier orders device memory too, not threadgroup memory alone."""
    waits_for_copies: bool = False
    """Every thread waits for its asynchronous copies before it."""


@dataclass(eq=False)
class Leaf:
    """A statement in which no barrier is needed, and all its accesses."""

    statement: tirx.Stmt
    accesses: tuple[Effect, ...]


@dataclass(eq=False)
class UserBarrier:
    """A barrier of the user's."""

    statement: tirx.Stmt
    barrier: Barrier


@dataclass(eq=False)
class MbarrierStep:
    """A step of threads at an mbarrier: they arrive, or wait for those that do."""

    statement: tirx.Evaluate
    accesses: tuple[Effect, ...]
    """Of the mbarrier itself, and others of the statement."""
    mbarrier: MbarrierElement
    """The mbarrier that it is about."""
    index: ir.Expr
    """Its number among those of the buffer."""
    parity: ir.Expr | None
    """Of the phase that they wait for."""
    active: Arrivals
    """The threads that certainly do it, and the blocks whose mbarrier that is."""
    waits: bool
    """The threads wait, and know then what others did that arrived."""
    with_copies: bool = False
    """The threads arrive when their asynchronous copies have."""
    is_of_first_phase: bool = False
    """The threads wait, at first, until the first phase is over: others have arrived by then."""


@dataclass(eq=False)
class Signal:
    """The end of a batch of asynchronous work on a token; of the threads of some groups."""

    statement: tirx.Stmt
    token: str
    groups: tuple[Group, ...] | None = ()


@dataclass(eq=False)
class TokenWait:
    """A wait for asynchronous work of the thread."""

    statement: tirx.Stmt
    awaited: asynchronous.Wait
    groups: tuple[Group, ...] | None = ()


@dataclass(eq=False)
class Exit:
    """A `break` or a `continue`."""

    statement: tirx.Stmt
    is_break: bool


@dataclass(eq=False)
class Sequence:
    """Statements one after the other; `points[i]` is before `items[i]`, the last one at the end."""

    items: list[Item]
    points: list[BarrierPoint | None]

    @cached_property
    def accesses(self) -> tuple[Effect, ...]:
        """All accesses in it, in their order."""
        return tuple(access for item in self.items for access in accesses_of(item))

    @cached_property
    def has_own_flow(self) -> bool:
        """A barrier, a wait or a region is in it, or it leaves the loop around it."""
        return any(map(has_own_flow, self.items))

    @cached_property
    def waits(self) -> bool:
        """A barrier, a wait or a region is in it."""
        return any(map(_waits, self.items))


@dataclass(eq=False)
class Branch:
    """Paths, one of which is taken; `head` is what the condition reads.

    Where the branch diverges, different threads take the paths at the same time: they are one, in which
    no barrier can stand.
    """

    statement: tirx.Stmt
    head: tuple[Effect, ...]
    cases: list[Sequence]
    diverges: bool = False
    is_region: bool = False
    """The branch is the region of the threads whose barriers are looked for, in it alone."""
    is_for_cpu: bool = False
    """Its cases come one after the other, and threads that pass by wait at the barriers in them."""

    @cached_property
    def accesses(self) -> tuple[Effect, ...]:
        """All accesses in it, in their order."""
        return (*self.head, *(access for case in self.cases for access in case.accesses))

    @cached_property
    def hands_over(self) -> bool:
        """Tell whether threads in it come to an mbarrier."""
        return any(isinstance(item, MbarrierStep) for item in items_in(self))

    @cached_property
    def paths(self) -> list[Sequence]:
        """The ways through it."""
        if not self.diverges:
            return self.cases
        items = [item for case in self.cases for item in case.items]
        points = [point for case in self.cases for point in case.points[:-1]]
        return [Sequence(items, [*points, None])]


@dataclass(eq=False)
class Iteration:
    """A loop; `head` is what its bounds read, or a `while`'s condition, each time."""

    statement: tirx.Stmt
    loop: Loop
    head: tuple[Effect, ...]
    body: Sequence
    runs: bool
    """The body certainly runs at least once."""

    @cached_property
    def accesses(self) -> tuple[Effect, ...]:
        """All accesses in it, in their order."""
        return (*self.head, *self.body.accesses)


Item = Leaf | UserBarrier | MbarrierStep | Signal | TokenWait | Exit | Branch | Iteration

Barriers = dict[BarrierPoint, Barrier]
"""Where barriers stand."""


def _children(item: Item) -> Iterator[Item]:
    if isinstance(item, Branch):
        for case in item.cases:
            yield from case.items
    elif isinstance(item, Iteration):
        yield from item.body.items


def items_in(item: Item | Sequence) -> Iterator[Item]:
    """The items in one, or in several, at any depth."""
    for child in item.items if isinstance(item, Sequence) else _children(item):
        yield child
        yield from items_in(child)


def accesses_of(item: Item | Sequence) -> tuple[Effect, ...]:
    """All accesses in an item, or several, in their order."""
    if isinstance(item, UserBarrier | Signal | TokenWait | Exit):
        return ()
    return item.accesses


def has_own_flow(item: Item) -> bool:
    """Tell whether an item holds a barrier, a wait or a region, or leaves a loop that is not in it."""
    if isinstance(item, Branch):
        return item.is_region or any(case.has_own_flow for case in item.cases)
    return item.body.waits if isinstance(item, Iteration) else not isinstance(item, Leaf)


def _waits(item: Item) -> bool:
    """Tell whether an item holds a barrier, a wait or a region."""
    if isinstance(item, Branch):
        return item.is_region or any(case.waits for case in item.cases)
    return item.body.waits if isinstance(item, Iteration) else not isinstance(item, Leaf | Exit)
