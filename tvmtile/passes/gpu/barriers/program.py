"""The paths through a thread's program, and the accesses on them that no barrier separates.

Threads go through uniform loops and branches together, so what all of them do is one sequence of
statements. Two accesses race if a path leads from one to the other without a barrier, and two threads
touch one element. The state at a place of the program is the set of accesses that are open there:
those since the last barrier, each with the iterations, of the loops around, that it was done in, and
with the slots passed since. One of these slots has to hold a barrier if a later access conflicts: that
is a clause. An access whose path holds a clause is closed: whatever comes later is separated from it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tvm import tirx

from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope, Distance, Side
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Access, Loop
from tvmtile.errors import DataRace, VerifyError
from tvmtile.ir import asynchronous
from tvmtile.ir.asynchronous import BULK_STORE, CP_ASYNC, KINDS, WGMMA, kind_of
from tvmtile.ir.operands import describe
from tvmtile.ir.threads import Group

__all__ = [
    "Barrier",
    "Barriers",
    "Branch",
    "Checker",
    "Clause",
    "Exit",
    "Handover",
    "Item",
    "Iteration",
    "Leaf",
    "Race",
    "Sequence",
    "Signal",
    "Slot",
    "TokenWait",
    "Wait",
    "bits_of",
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
    scope : ConflictScope
        The threads that it separates: those of a block or of a warp.
    orders_device : bool
        It orders device memory too, not threadgroup memory alone.
    waits_for_copies : bool
        Every thread waits for its asynchronous copies before it.
    """

    scope: ConflictScope = ConflictScope.BLOCK
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
class Handover:
    """What threads do at an mbarrier: they arrive, or wait for those that do.

    Attributes
    ----------
    accesses : tuple of Access
        Of the mbarrier itself, and others of the statement.
    mbarrier : (Var, int or None)
        The buffer, and which one of it, where that is a constant.
    threads : int
        Those that certainly do it, a bit each.
    waits : bool
        They wait, and know then what others did that arrived.
    with_copies : bool
        They arrive when their asynchronous copies have.
    """

    statement: tirx.Stmt
    accesses: tuple[Access, ...]
    mbarrier: tuple[Any, int | None]
    threads: int
    waits: bool
    with_copies: bool = False


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
    """Statements one after the other; `slots[i]` is before `items[i]`, the last one at the end."""

    items: list[Item]
    slots: list[Slot | None]


@dataclass(eq=False)
class Branch:
    """Paths, one of which is taken; `head` is what the condition reads.

    Where the branch diverges, different threads take the paths at the same time: they are one, in which
    no barrier can stand.
    """

    statement: tirx.Stmt
    head: tuple[Access, ...]
    cases: list[Sequence]
    diverges: bool = False
    is_region: bool = False
    """It is the region of the threads whose barriers are looked for: they can stand in it alone."""

    @property
    def paths(self) -> list[Sequence]:
        """The ways through it."""
        if not self.diverges:
            return self.cases
        items = [item for case in self.cases for item in case.items]
        slots = [slot for case in self.cases for slot in case.slots[:-1]]
        return [Sequence(items, [*slots, None])]


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


Item = Leaf | Wait | Handover | Signal | TokenWait | Exit | Branch | Iteration

Barriers = dict[Slot, Barrier]
"""Where barriers stand."""

_MAX_BEHIND = max(kind.max_behind for kind in KINDS.values())
_MAX_DISTANCE = _MAX_BEHIND + 1
_MAX_PATHS = 16  # of one access, none of them part of another
_Distances = frozenset[tuple[Loop, Distance]]


class _Signals(NamedTuple):
    """How often a token has been signalled since work on it was issued, and all tokens of its kind."""

    own: int = 0
    of_kind: int = 0


class _Open(NamedTuple):
    """An access that later ones may race with."""

    access: Access
    distances: _Distances
    ordered: ConflictScope
    """The threads that a barrier has ordered since: none, or those of a warp."""
    signals: _Signals | None = None
    """Of what has not arrived yet: what has been signalled since it was issued."""
    released: frozenset[tuple[Any, int | None]] = frozenset()
    """The mbarriers at which its threads have arrived since: who waits there knows of it."""
    known: int = 0
    """The threads that know of it by such a wait, a bit each."""

    @property
    def is_on_its_way(self) -> bool:
        """Nobody has waited for the mbarrier that it completes on: no barrier orders it yet."""
        return self.access.completes_on is not None and not self.known


_Paths = tuple[int, ...]
"""The slots passed since an access, a bit each, on every path that passes no others in addition."""
_State = dict[_Open, _Paths]
_NO_SLOTS: _Paths = (0,)


class Clause(NamedTuple):
    """Slots, one of which must hold a barrier."""

    slots: int
    """A bit each."""
    scope: ConflictScope
    """The threads to separate."""


class Race(Exception):
    """Two accesses that no barrier separates, or no wait for an asynchronous copy."""

    def __init__(
        self, earlier: Access, later: Access, *, in_flight: Collision = Collision.NEVER
    ) -> None:
        super().__init__("race")
        self.earlier = earlier
        self.later = later
        self.in_flight = in_flight


class Checker:
    """Looks for races.

    Parameters
    ----------
    footprints : Footprints
        Knows which accesses conflict.
    """

    def __init__(self, footprints: Footprints) -> None:
        self._footprints = footprints
        self._barriers: Barriers = {}
        self._bits: Mapping[Slot, int] = {}
        self._barriers_wait = False
        self._clauses: dict[Clause, None] = {}
        self._clauses_with: dict[int, list[int]] = {}
        self._of_device = True
        self._exits: list[tuple[_State, _State]] = []
        self._is_looking = True
        self._entering: dict[Iteration, _State] = {}
        self._following: dict[tuple[_Distances, Loop, bool], _Distances | None] = {}

    def follow(self, program: Sequence) -> None:
        """Find which asynchronous copies are in flight where loops begin: they may arrive inside."""
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
        """Find a race in a part of the program, taken alone but for copies that arrive in it.

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
        self._bits = {}
        try:
            self._look_at(part, loops)
        except Race as race:
            return race
        return None

    def clauses(
        self,
        part: Item | Sequence,
        loops: tuple[Loop, ...],
        bits: Mapping[Slot, int],
        *,
        barriers_wait: bool,
    ) -> list[Clause]:
        """What barriers of the whole block have to separate in a part of the program.

        A set of barriers suffices if each clause has a slot with one.

        Parameters
        ----------
        part, loops
            As of `race`.
        bits : mapping of Slot to int
            A bit for each place where a barrier may stand.
        barriers_wait : bool
            Every thread waits for its asynchronous copies before a barrier.

        Raises
        ------
        Race
            If barriers at all places do not suffice.
        """
        self._barriers = {}
        self._of_device = True
        self._bits, self._barriers_wait = bits, barriers_wait
        self._clauses, self._clauses_with = {}, {}
        self._look_at(part, loops)
        return list(self._clauses)

    def between(self, earlier: Access, later: Access, loops: tuple[Loop, ...]) -> ConflictScope:
        """The scope of the conflict of two accesses of one statement."""
        return self._footprints.conflict(earlier, later, dict.fromkeys(loops, Distance.SAME))

    # Paths -------------------------------------------------------------------------------------------

    def _look_at(self, part: Item | Sequence, loops: tuple[Loop, ...]) -> None:
        self._exits = [({}, {})]
        if isinstance(part, Sequence):
            self._sequence(part, {}, loops)
        else:
            on_their_way = self._entering.get(part, {}) if isinstance(part, Iteration) else {}
            self._item(part, on_their_way, loops)

    def _sequence(self, sequence: Sequence, state: _State, loops: tuple[Loop, ...]) -> _State:
        for slot, item in zip(sequence.slots, sequence.items, strict=False):
            state = self._item(item, self._at(slot, state), loops)
        return self._at(sequence.slots[-1], state)

    def _at(self, slot: Slot | None, state: _State) -> _State:
        if slot is None:
            return state
        if slot in self._barriers:
            return _after_barrier(state, self._barriers[slot])
        bit = self._bits.get(slot)
        return self._past(bit, state) if bit else state

    def _past(self, bit: int, state: _State) -> _State:
        """The state behind a slot, without the accesses that a clause closes."""
        clauses = self._clauses_with.get(bit, ())
        after: _State = {}
        for opened, paths in state.items():
            is_ordered = opened.signals is None or self._barriers_wait
            is_ordered = is_ordered and not opened.is_on_its_way
            after[opened] = tuple(path | bit for path in paths) if is_ordered else paths
        return _not_past(after, clauses) if clauses else after

    def _item(self, item: Item, state: _State, loops: tuple[Loop, ...]) -> _State:
        if isinstance(item, Leaf):
            return self._accesses(item.accesses, state, loops)
        if isinstance(item, Wait):
            return _after_barrier(state, item.barrier)
        if isinstance(item, Handover):
            return self._handed_over(self._accesses(item.accesses, state, loops), item)
        if isinstance(item, Signal):
            return _moved(
                state,
                lambda opened: _signalled(opened, item.token) if _is_of(opened, item) else opened,
            )
        if isinstance(item, TokenWait):
            return self._after_wait(state, item)
        if isinstance(item, Exit):
            _add_all(self._exits[-1][0 if item.is_break else 1], state)
            return {}
        state = self._accesses(item.head, state, loops)
        if isinstance(item, Branch):
            joined: _State = {}
            for case in item.paths:
                _add_all(joined, self._sequence(case, state, loops))
            return joined
        return self._iteration(item, state, loops)

    def _handed_over(self, state: _State, item: Handover) -> _State:
        if item.waits:
            after = _moved(state, lambda opened: _known_to(opened, item))
            everyone = self._footprints.all_threads
            return {o: paths for o, paths in after.items() if o.known != everyone}
        return _moved(state, self._released_by(item))

    def _released_by(self, item: Handover) -> Callable[[_Open], _Open]:
        """Of an access whose threads arrive at an mbarrier, or one that knows of it."""
        nearby = self._footprints.warps_of(item.threads)

        def released(opened: _Open) -> _Open:
            if opened.signals is None and item.mbarrier in opened.released:
                return opened
            arrived = item.threads if opened.ordered == ConflictScope.NONE else nearby
            done = not self._footprints.threads_of(opened.access) & ~arrived
            if opened.is_on_its_way or not (done or opened.known & item.threads):
                return opened
            if opened.signals is not None and not (item.with_copies and _is_cp_async(opened)):
                return opened  # it has not arrived yet
            return opened._replace(released=opened.released | {item.mbarrier}, signals=None)

        return released

    def _after_wait(self, state: _State, wait: TokenWait) -> _State:
        def after(opened: _Open) -> _Open:
            return _arrived(opened, wait.awaited) if _is_of(opened, wait) else opened

        if not self._is_looking:
            return {opened: paths for opened, paths in state.items() if opened == after(opened)}
        return _moved(state, after)

    def _iteration(self, item: Iteration, before: _State, loops: tuple[Loop, ...]) -> _State:
        loop = item.loop
        inside = (*loops, loop)
        if not self._is_looking:
            _add_all(self._entering.setdefault(item, {}), before)
        state = _moved(before, lambda opened: _with(opened, loop, Distance.FIRST))
        reached: _State = {}
        while True:
            self._exits.append(({}, {}))
            end = dict(self._sequence(item.body, state, inside))
            broken, continued = self._exits.pop()
            _add_all(end, continued)
            next_one: _State = {}
            for opened, paths in end.items():
                distances = self._in_next_iteration(opened, loop)
                if distances is not None:
                    _add(next_one, _with_distances(opened, distances), paths)
            if loop.var is None:  # a `while` evaluates its condition again
                next_one = self._accesses(item.head, next_one, loops)
            _add_all(reached, next_one)
            if not _add_all(state, reached):
                break
        if loop.var is None:
            after = _moved(reached, lambda opened: _without(opened, loop))
        else:
            after = _moved(end, lambda opened: _after_loop(opened, loop))
        _add_all(after, _moved(broken, lambda opened: _without(opened, loop)))
        if not item.runs:
            _add_all(after, before)
        return after

    def _in_next_iteration(self, opened: _Open, loop: Loop) -> _Distances | None:
        key = opened.distances, loop, opened.signals is not None
        if key not in self._following:
            self._following[key] = _following(*key)
        return self._following[key]

    def _accesses(
        self, accesses: tuple[Access, ...], state: _State, loops: tuple[Loop, ...]
    ) -> _State:
        """Look for conflicts of accesses with those that are open, then open them too."""
        if not accesses:
            return state
        if self._is_looking:
            demanded = list(dict.fromkeys(p for each in accesses for p in self._check(state, each)))
            state = self._close(state, demanded) if demanded else state
        else:  # what is not a copy does not arrive
            accesses = tuple(access for access in accesses if access.token is not None)
        distances = frozenset((loop, Distance.SAME) for loop in loops)
        opened: _State = {}
        for access in accesses:
            signals = None if access.token is None else _Signals()
            released = () if access.completes_on is None else (access.completes_on,)
            new = _Open(access, distances, ConflictScope.NONE, signals, frozenset(released))
            opened[new] = _NO_SLOTS
        return {**state, **opened}

    def _check(self, state: _State, later: Access) -> list[int]:
        """Look for conflicts with an access; the slots that they demand a barrier in."""
        if later.is_of_device and not self._of_device:
            return []
        demanded: list[int] = []
        for earlier, paths in state.items():
            if not _may_race(earlier.access, later) or earlier.is_on_its_way:
                continue
            if earlier.known and not self._footprints.threads_of(later) & ~earlier.known:
                continue
            scope, in_flight = self._conflict(earlier, later)
            if scope <= earlier.ordered:
                continue
            if 0 in paths:
                raise Race(earlier.access, later, in_flight=in_flight)
            self._clauses.update(dict.fromkeys(Clause(path, scope) for path in paths))
            demanded += paths
        return demanded

    def _conflict(self, earlier: _Open, later: Access) -> tuple[ConflictScope, Collision]:
        """The scope of a conflict, and whether it is with a copy in flight."""
        distances = dict(earlier.distances)
        if earlier.signals is None:
            scope = self._footprints.conflict(earlier.access, later, distances)
            return scope, Collision.NEVER
        found = self._footprints.collision(earlier.access, later, distances)
        return ConflictScope.NONE if found == Collision.NEVER else ConflictScope.BLOCK, found

    def _close(self, state: _State, demanded: list[int]) -> _State:
        """The state without the accesses that new clauses close."""
        for path in demanded:
            for bit in bits_of(path):
                self._clauses_with.setdefault(bit, []).append(path)
        return _not_past(state, demanded)


def _not_past(state: _State, clauses: Iterable[int]) -> _State:
    """The accesses with a path that fulfils no clause, with these paths."""
    result: _State = {}
    for opened, paths in state.items():
        kept = tuple(p for p in paths if not any(p & clause == clause for clause in clauses))
        if kept:
            result[opened] = kept
    return result


def bits_of(path: int) -> Iterator[int]:
    """The slots of a path."""
    while path:
        bit = path & -path
        yield bit
        path ^= bit


def _add(state: _State, opened: _Open, paths: _Paths) -> bool:
    """Add paths to an access; tell whether one of them passes fewer slots than those known."""
    known = state.get(opened)
    if known is None:
        state[opened] = paths
        return True
    if known == paths:
        return False
    shorter = [path for path in paths if not any(each & path == each for each in known)]
    if not shorter:
        return False
    kept = [each for each in known if not any(path & each == path for path in shorter)]
    kept += shorter
    if len(kept) > _MAX_PATHS:  # what all of them pass is less than any of them does
        kept = [functools.reduce(operator.and_, kept)]
    state[opened] = tuple(kept)
    return True


def _add_all(state: _State, others: _State) -> bool:
    changes = [_add(state, opened, paths) for opened, paths in others.items()]
    return any(changes)


def _moved(state: _State, change: Callable[[_Open], _Open]) -> _State:
    result: _State = {}
    for opened, paths in state.items():
        _add(result, change(opened), paths)
    return result


def _may_race(a: Access, b: Access) -> bool:
    if a.root is not b.root or not (a.writes or b.writes):
        return False
    if a.groups and not set(a.groups).isdisjoint(b.groups):
        return False  # threads of one group, whose own barriers order them
    if a.hands_over and b.hands_over:
        return False  # the groups run at the same time, and barriers by number order them
    return not (a.is_atomic and b.is_atomic)


def _after_barrier(state: _State, barrier: Barrier) -> _State:
    if barrier.waits_for_copies:
        state = _moved(state, lambda opened: opened._replace(signals=None))
    after: _State = {}
    for opened, paths in state.items():
        is_ordered = (
            opened.signals is None
            and not opened.is_on_its_way
            and (barrier.orders_device or not opened.access.is_of_device)
        )
        if not is_ordered:
            _add(after, opened, paths)
        elif barrier.scope != ConflictScope.BLOCK:
            _add(after, opened._replace(ordered=barrier.scope), paths)
    return after


def refused_before_arrival(copy: Access, later: Access) -> DataRace | VerifyError:
    """The error for an access of elements that an asynchronous copy still writes or reads."""
    what = "written" if later.writes else "read"
    if copy.token == WGMMA.name:
        return DataRace(
            f"elements of {describe(later.root)} are {what} while a product that reads them goes on",
            location=later.location or copy.location,
            help="wait for it first, T.wait_wgmma(0), or leave wg_wait out",
        )
    which = "into" if copy.writes else "of"
    if copy.token == BULK_STORE.name:
        return DataRace(
            f"elements of {describe(later.root)} are {what} before the copy of them to a tensor is "
            "waited for",
            location=later.location or copy.location,
            help="put T.tma_store_wait() in front of it",
        )
    text = (
        f"elements of {describe(later.root)} are {what} before the asynchronous copy {which} them is "
        "waited for"
    )
    if copy.token == CP_ASYNC.name:  # written by hand
        return DataRace(
            text,
            location=later.location or copy.location,
            help="put T.ptx_commit_group() behind the copy and T.ptx_wait_group(0) in front of it, or "
            "let others wait for it by T.cp_async_barrier_noinc",
        )
    return VerifyError(
        text,
        location=later.location or copy.location,
        help="this is a defect of tvmtile: please report it with the kernel",
    )


def _is_of(opened: _Open, item: Signal | TokenWait) -> bool:
    """Tell whether the threads that do an access come to an item."""
    groups = item.groups
    return groups is not None and opened.access.groups[: len(groups)] == groups


def _signalled(opened: _Open, token: str) -> _Open:
    own, signals = opened.access.token, opened.signals
    if own is None or signals is None or kind_of(own) is not kind_of(token):
        return opened
    counts = (signals.own + (token == own), signals.of_kind + 1)
    return opened._replace(signals=_Signals(*(min(n, _MAX_BEHIND + 1) for n in counts)))


def _arrived(opened: _Open, awaited: asynchronous.Wait) -> _Open:
    """After a wait: what it waited for is written now."""
    own, signals = opened.access.token, opened.signals
    if own is None or signals is None:
        return opened
    waits_for_kind = awaited.token == kind_of(own).name
    since = signals.of_kind if waits_for_kind else signals.own if awaited.token == own else 0
    return opened._replace(signals=None) if since > awaited.behind else opened


def _is_cp_async(opened: _Open) -> bool:
    token = opened.access.token
    return token is not None and kind_of(token) is CP_ASYNC


def _known_to(opened: _Open, wait: Handover) -> _Open:
    """After a wait for an mbarrier, at which those arrived that know of the access."""
    if not any(_may_be_one(wait.mbarrier, each) for each in opened.released):
        return opened
    return opened._replace(known=opened.known | wait.threads)


def _may_be_one(a: tuple[Any, int | None], b: tuple[Any, int | None]) -> bool:
    return bool(a[0].same_as(b[0])) and (None in (a[1], b[1]) or a[1] == b[1])


def _with_distances(opened: _Open, distances: _Distances) -> _Open:
    return opened if distances == opened.distances else opened._replace(distances=distances)


def _of(distances: _Distances, loop: Loop) -> set[Distance]:
    return {distance for other, distance in distances if other is loop}


def _replaced(distances: _Distances, loop: Loop, *own: Distance) -> _Distances:
    others = (pair for pair in distances if pair[0] is not loop)
    return frozenset([*others, *((loop, distance) for distance in own)])


def _with(opened: _Open, loop: Loop, distance: Distance) -> _Open:
    """On entering a loop: an access before it, or in an earlier run of it, has no iteration here."""
    own = () if loop in opened.access.loops else (distance,)
    return _with_distances(opened, _replaced(opened.distances, loop, *own))


def _without(opened: _Open, loop: Loop) -> _Open:
    return _with_distances(opened, _replaced(opened.distances, loop))


def _following(distances: _Distances, loop: Loop, is_in_flight: bool) -> _Distances | None:
    """The distances from the next iteration of a loop; None where there is no such iteration."""
    own = _of(distances, loop)
    exact = next((each for each in own if each.is_exact), None)
    if exact is None:
        return _replaced(distances, loop, *own & {Distance.LATER})
    later = replace(exact, iterations=exact.iterations + 1)
    if later.iterations == loop.trips:
        return None
    # What has not arrived yet stays open for several iterations, in which others may be accessed.
    most = _MAX_DISTANCE if is_in_flight else 1
    if later.side == Side.LATER and not is_in_flight:
        return _replaced(distances, loop)
    if later.iterations <= most:
        return _replaced(distances, loop, later)
    return _replaced(distances, loop, *([Distance.LATER] if later.side == Side.BOTH else []))


def _after_loop(opened: _Open, loop: Loop) -> _Open:
    is_last = Distance.SAME in _of(opened.distances, loop)
    return _with_distances(
        opened, _replaced(opened.distances, loop, *([Distance.LAST] if is_last else []))
    )
