"""The paths through what a thread does, and the accesses on them that no barrier separates.

Threads go through uniform loops and branches together, so what all of them do is one sequence of
statements. Two accesses race if a path leads from one to the other without a barrier, and two threads
meet at an element. The state at a place of the program is the set of accesses that are open there:
those since the last barrier, each with the iterations, of the loops around, that it was done in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tvm import tirx

from tvmtile.errors import VerifyError
from tvmtile.passes.asynchrony import MAX_IN_FLIGHT
from tvmtile.passes.barriers.effects import Access, Loop
from tvmtile.passes.barriers.footprint import Footprints
from tvmtile.passes.barriers.orders import Collision, Meeting, Order, Side
from tvmtile.tileop.operands import describe

__all__ = [
    "Arrival",
    "Barrier",
    "Barriers",
    "Branch",
    "Checker",
    "Commit",
    "Exit",
    "Item",
    "Iteration",
    "Leaf",
    "Race",
    "Sequence",
    "Slot",
    "Wait",
]


@dataclass(eq=False)
class Slot:
    """A place where a barrier may stand.

    Attributes
    ----------
    weight : float
        How often it is executed, roughly, relative to the loop around it.
    """

    weight: float = 1.0


@dataclass(frozen=True)
class Barrier:
    """What a barrier does.

    Attributes
    ----------
    meeting : Meeting
        The threads that meet there: those of a block or of a simdgroup.
    orders_device : bool
        It orders device memory too, not threadgroup memory alone.
    waits_for_copies : bool
        Every thread waits for its asynchronous copies before it.
    """

    meeting: Meeting = Meeting.IN_BLOCK
    orders_device: bool = True
    waits_for_copies: bool = False


@dataclass(eq=False)
class Leaf:
    """A statement in which no barrier is needed, and all its accesses."""

    statement: tirx.Stmt
    accesses: tuple[Access, ...]


@dataclass(eq=False)
class Wait:
    """A barrier of the user's."""

    statement: tirx.Stmt
    barrier: Barrier


@dataclass(eq=False)
class Commit:
    """The end of a group of asynchronous copies."""

    statement: tirx.Stmt


@dataclass(eq=False)
class Arrival:
    """A wait for all groups of asynchronous copies of a thread but the latest ones."""

    statement: tirx.Stmt
    in_flight: int


@dataclass(eq=False)
class Exit:
    """A `break` or a `continue`."""

    statement: tirx.Stmt
    is_break: bool


@dataclass(eq=False)
class Sequence:
    """Statements one after the other; `slots[i]` is before `items[i]`, the last one at the end."""

    items: list[Item]
    slots: list[Slot | None]


@dataclass(eq=False)
class Branch:
    """Paths, one of which is taken; `head` is what the condition reads."""

    statement: tirx.Stmt
    head: tuple[Access, ...]
    cases: list[Sequence]


@dataclass(eq=False)
class Iteration:
    """A loop; `head` is what its bounds read, or a `while`'s condition, each time."""

    statement: tirx.Stmt
    loop: Loop
    head: tuple[Access, ...]
    body: Sequence
    runs: bool
    """The body certainly runs at least once."""
    around: tuple[Loop, ...]
    """The loops around it."""


Item = Leaf | Wait | Commit | Arrival | Exit | Branch | Iteration

Barriers = dict[Slot, Barrier]
"""Where barriers stand."""

_MAX_DISTANCE = MAX_IN_FLIGHT + 1
_NONE_IN_FLIGHT = -1  # not even what is not committed
_Orders = frozenset[tuple[Loop, Order]]


@dataclass(frozen=True)
class _Open:
    """An access that later ones may race with."""

    access: Access
    orders: _Orders
    in_order: Meeting
    """The threads that have met since: none, or those of a simdgroup."""
    commits: int | None = None
    """Of what has not arrived yet: how many groups have been committed since it was issued."""


_State = frozenset[_Open]
_NOTHING: _State = frozenset()


class Race(Exception):
    """Two accesses that no barrier separates, or no wait for an asynchronous copy."""

    def __init__(self, earlier: Access, later: Access, *, in_flight: bool = False) -> None:
        super().__init__("race")
        self.earlier = earlier
        self.later = later
        self.in_flight = in_flight


class Checker:
    """Looks for races.

    Parameters
    ----------
    footprints : Footprints
        Knows which accesses meet.
    """

    def __init__(self, footprints: Footprints) -> None:
        self._footprints = footprints
        self._barriers: Barriers = {}
        self._of_device = True
        self._exits: list[tuple[_State, _State]] = []
        self._is_looking = True
        self._entering: dict[Iteration, _State] = {}

    def follow(self, program: Sequence) -> None:
        """Find which asynchronous copies are on their way where loops begin: they may arrive inside."""
        self._is_looking = False
        self.race(program, (), {})
        self._is_looking = True

    def race(
        self,
        part: Item | Sequence,
        loops: tuple[Loop, ...],
        barriers: Barriers,
        *,
        of_device: bool = True,
    ) -> Race | None:
        """Find a race in a part of the program, on its own but for copies that arrive in it.

        Parameters
        ----------
        part : Item or Sequence
            The part.
        loops : tuple of Loop
            The loops around it.
        barriers : dict of Slot to Barrier
            Barriers besides those of the user.
        of_device : bool
            Look at device memory too.
        """
        self._barriers = barriers
        self._of_device = of_device
        self._exits = [(_NOTHING, _NOTHING)]
        try:
            if isinstance(part, Sequence):
                self._sequence(part, _NOTHING, loops)
            else:
                on_their_way = self._entering.get(part) if isinstance(part, Iteration) else None
                self._item(part, on_their_way or _NOTHING, loops)
        except Race as race:
            return race
        return None

    def between(self, earlier: Access, later: Access, loops: tuple[Loop, ...]) -> Meeting:
        """The threads that two accesses of one statement let meet."""
        return self._footprints.meeting(earlier, later, dict.fromkeys(loops, Order.SAME))

    # Paths -------------------------------------------------------------------------------------------

    def _sequence(self, sequence: Sequence, state: _State, loops: tuple[Loop, ...]) -> _State:
        for slot, item in zip(sequence.slots, sequence.items, strict=False):
            state = self._item(item, self._at(slot, state), loops)
        return self._at(sequence.slots[-1], state)

    def _at(self, slot: Slot | None, state: _State) -> _State:
        if slot is None or slot not in self._barriers:
            return state
        return _after_barrier(state, self._barriers[slot])

    def _item(self, item: Item, state: _State, loops: tuple[Loop, ...]) -> _State:
        if isinstance(item, Leaf):
            return self._accesses(item.accesses, state, loops)
        if isinstance(item, Wait):
            return _after_barrier(state, item.barrier)
        if isinstance(item, Commit):
            return frozenset(map(_committed, state))
        if isinstance(item, Arrival):
            return frozenset(_arrived(opened, item.in_flight) for opened in state)
        if isinstance(item, Exit):
            broken, continued = self._exits[-1]
            both = (broken | state, continued) if item.is_break else (broken, continued | state)
            self._exits[-1] = both
            return _NOTHING
        state = self._accesses(item.head, state, loops)
        if isinstance(item, Branch):
            return frozenset().union(*(self._sequence(case, state, loops) for case in item.cases))
        return self._iteration(item, state, loops)

    def _iteration(self, item: Iteration, before: _State, loops: tuple[Loop, ...]) -> _State:
        loop = item.loop
        inside = (*loops, loop)
        if not self._is_looking:
            self._entering[item] = self._entering.get(item, _NOTHING) | _pending(before)
        first = frozenset(_with(opened, loop, Order.FIRST) for opened in before)
        state, reached = first, _NOTHING
        while True:
            self._exits.append((_NOTHING, _NOTHING))
            end = self._sequence(item.body, state, inside)
            broken, continued = self._exits.pop()
            end |= continued
            next_one = frozenset(
                moved for opened in end for moved in _in_next_iteration(opened, loop)
            )
            if loop.var is None:  # a `while` evaluates its condition again
                next_one = self._accesses(item.head, next_one, loops)
            reached |= next_one
            if reached <= state:
                break
            state |= reached
        if loop.var is None:
            after = frozenset(_without(opened, loop) for opened in reached)
        else:
            after = frozenset(_after_loop(opened, loop) for opened in end)
        after |= frozenset(_without(opened, loop) for opened in broken)
        return after if item.runs else after | before

    def _accesses(
        self, accesses: tuple[Access, ...], state: _State, loops: tuple[Loop, ...]
    ) -> _State:
        if not accesses:
            return state
        opened: list[_Open] = []
        orders = frozenset((loop, Order.SAME) for loop in loops)
        for access in accesses:
            for other in state if self._is_looking else ():
                self._check(other, access)
            commits = 0 if access.is_asynchronous else None
            opened.append(_Open(access, orders, Meeting.NEVER, commits))
        return state.union(opened)

    def _check(self, earlier: _Open, later: Access) -> None:
        if not _may_race(earlier.access, later):
            return
        if later.is_of_device and not self._of_device:
            return
        if earlier.commits is not None:
            self._check_arrival(earlier, later)
            return
        meeting = self._footprints.meeting(earlier.access, later, dict(earlier.orders))
        if meeting > earlier.in_order:
            raise Race(earlier.access, later)

    def _check_arrival(self, copy: _Open, later: Access) -> None:
        found = self._footprints.collision(copy.access, later, dict(copy.orders))
        if found == Collision.CERTAIN:
            raise refused_before_arrival(copy.access, later)
        if found == Collision.POSSIBLE:
            raise Race(copy.access, later, in_flight=True)


def _may_race(a: Access, b: Access) -> bool:
    if not a.root.same_as(b.root) or not (a.writes or b.writes):
        return False
    return not (a.is_atomic and b.is_atomic)


def _after_barrier(state: _State, barrier: Barrier) -> _State:
    def is_ordered(opened: _Open) -> bool:
        return barrier.orders_device or not opened.access.is_of_device

    if barrier.waits_for_copies:
        state = frozenset(_arrived(opened, _NONE_IN_FLIGHT) for opened in state)
    unordered = frozenset(opened for opened in state if not is_ordered(opened))
    unordered |= _pending(state)
    if barrier.meeting == Meeting.IN_BLOCK:
        return unordered
    return unordered.union(
        replace(opened, in_order=barrier.meeting) for opened in state - unordered
    )


def refused_before_arrival(copy: Access, later: Access) -> VerifyError:
    """The error that an access of elements is that an asynchronous copy still writes or reads."""
    what = "written" if later.writes else "read"
    which = "into" if copy.writes else "of"
    return VerifyError(
        f"elements of {describe(later.root)} are {what} before the asynchronous copy {which} them is "
        "waited for",
        location=later.location or copy.location,
        help="this is a defect of tvmtile: please report it with the kernel",
    )


def _pending(state: _State) -> _State:
    """What asynchronous copies do until they are waited for: barriers do not order it."""
    return frozenset(opened for opened in state if opened.commits is not None)


def _committed(opened: _Open) -> _Open:
    if opened.commits is None:
        return opened
    return replace(opened, commits=min(opened.commits + 1, MAX_IN_FLIGHT + 1))


def _arrived(opened: _Open, in_flight: int) -> _Open:
    """After a wait: what it waited for is written now."""
    if opened.commits is None or opened.commits <= in_flight:
        return opened
    return replace(opened, commits=None)


def _others(opened: _Open, loop: Loop) -> Iterator[tuple[Loop, Order]]:
    return (pair for pair in opened.orders if pair[0] is not loop)


def _of(opened: _Open, loop: Loop) -> set[Order]:
    return {order for other, order in opened.orders if other is loop}


def _replaced(opened: _Open, loop: Loop, orders: Iterable[Order]) -> _Open:
    pairs = frozenset([*_others(opened, loop), *((loop, order) for order in orders)])
    return replace(opened, orders=pairs)


def _with(opened: _Open, loop: Loop, order: Order) -> _Open:
    """On entering a loop: an access before it, or in an earlier run of it, has no iteration here."""
    return _replaced(opened, loop, [] if loop in opened.access.loops else [order])


def _without(opened: _Open, loop: Loop) -> _Open:
    return _replaced(opened, loop, [])


def _in_next_iteration(opened: _Open, loop: Loop) -> Iterator[_Open]:
    orders = _of(opened, loop)
    exact = next((order for order in orders if order.is_exact), None)
    if exact is None:
        yield _replaced(opened, loop, [Order.LATER] if Order.LATER in orders else [])
        return
    later = replace(exact, distance=exact.distance + 1)
    if later.distance == loop.trips:
        return  # there is no such iteration
    # What has not arrived yet stays open for several iterations, in which others may be accessed.
    most = 1 if opened.commits is None else _MAX_DISTANCE
    if later.side == Side.LATER and opened.commits is None:
        yield _without(opened, loop)
    elif later.distance <= most:
        yield _replaced(opened, loop, [later])
    else:
        yield _replaced(opened, loop, [Order.LATER] if later.side == Side.BOTH else [])


def _after_loop(opened: _Open, loop: Loop) -> _Open:
    return _replaced(opened, loop, [Order.LAST] if Order.SAME in _of(opened, loop) else [])
