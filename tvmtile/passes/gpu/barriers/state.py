"""The accesses that are open at a place of a thread's program, and what changes them.

Each has the iterations, of the loops around, that it was done in, and the points passed since.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import replace
from typing import NamedTuple

from tvm import ir

from tvmtile.analysis.conflicts.dependence import ConflictScope, Distance, Side
from tvmtile.analysis.effects import Effect, Loop, MbarrierElement
from tvmtile.ir import asynchronous
from tvmtile.ir.asynchronous import CP_ASYNC, KINDS, kind_of
from tvmtile.passes.gpu.barriers.clusters import Cluster
from tvmtile.passes.gpu.barriers.items import Barrier, MbarrierStep, Signal, TokenWait

_MAX_BEHIND = max(kind.max_behind for kind in KINDS.values())
_MAX_DISTANCE = _MAX_BEHIND + 1
_MAX_PATHS = 16  # of one access, none of them part of another
Distances = frozenset[tuple[Loop, Distance]]


class SignalCounts(NamedTuple):
    """The signals of a token since work on it was issued, and those of all tokens of its kind."""

    own: int = 0
    of_kind: int = 0


class PendingAccess(NamedTuple):
    """An access that later ones may race with."""

    access: Effect
    distances: Distances
    ordered: ConflictScope
    """The threads that a barrier has ordered since: none, or those of a warp or a warpgroup."""
    signals: SignalCounts | None = None
    """Of what has not arrived yet: what has been signalled since it was issued."""
    block: int = 0
    """The rank, in its cluster, of the block that did it."""
    places: frozenset[int] = frozenset([0])
    """The places of the blocks whose memory it may touch."""
    released: frozenset[tuple[MbarrierElement, int]] = frozenset()
    """The mbarriers at which its threads have arrived since, and of which block: who waits there knows
    of it."""
    known: int = 0
    """The threads of the cluster that know of it by such a wait, a bit each."""

    @property
    def is_on_its_way(self) -> bool:
        """Tell whether no thread has waited for its mbarrier: no barrier orders it yet."""
        return self.access.mbarrier is not None and not self.known

    @property
    def is_cp_async(self) -> bool:
        """Tell whether it is a copy of the kind cp.async."""
        token = self.access.token
        return token is not None and kind_of(token) is CP_ASYNC

    def is_of_iteration_before(self, loops: Container[Loop]) -> bool:
        """Tell whether it was done in an earlier iteration of one of some loops."""
        return any(loop in loops and each != Distance.SAME for loop, each in self.distances)

    def is_of(self, item: Signal | TokenWait) -> bool:
        """Tell whether its threads come to an item."""
        groups = item.groups
        return groups is not None and self.access.groups[: len(groups)] == groups

    def signalled(self, token: str) -> PendingAccess:
        """The state behind a signal of a token."""
        own, signals = self.access.token, self.signals
        if own is None or signals is None or kind_of(own) is not kind_of(token):
            return self
        counts = (signals.own + (token == own), signals.of_kind + 1)
        return self._replace(signals=SignalCounts(*(min(n, _MAX_BEHIND + 1) for n in counts)))

    def arrived(self, awaited: asynchronous.Wait) -> PendingAccess:
        """The state behind a wait: what it waited for is written now."""
        own, signals = self.access.token, self.signals
        if own is None or signals is None:
            return self
        waits_for_kind = awaited.token == kind_of(own).name
        since = signals.of_kind if waits_for_kind else signals.own if awaited.token == own else 0
        return self._replace(signals=None) if since > awaited.behind else self

    def known_to(self, wait: MbarrierStep, cluster: Cluster) -> PendingAccess:
        """The state behind a wait for an mbarrier, where those arrived that know of the access."""
        blocks = {block for mbarrier, block in self.released if wait.mbarrier.may_be(mbarrier)}
        threads = wait.active.threads
        waiting = (cluster.of_block(block, threads[block]) for block in blocks)
        return self._replace(known=functools.reduce(operator.or_, waiting, self.known))

    def entering(self, loop: Loop, counted: Container[ir.Var]) -> PendingAccess:
        """The state in a loop: an access before it, or in an earlier run, has no iteration here.

        How many have passed since matters only for `counted` buffers.
        """
        is_counted = loop not in self.access.loops and self.access.root in counted
        return self.at(_replaced(self.distances, loop, *([Distance.FIRST] if is_counted else [])))

    def leaving(self, loop: Loop) -> PendingAccess:
        """The state behind a loop, after any of its iterations."""
        return self.at(_replaced(self.distances, loop))

    def after(self, loop: Loop) -> PendingAccess:
        """The state behind a loop, after its last iteration."""
        is_last = Distance.SAME in _of(self.distances, loop)
        return self.at(_replaced(self.distances, loop, *([Distance.LAST] if is_last else [])))

    def at(self, distances: Distances) -> PendingAccess:
        """The state at other distances."""
        return self if distances == self.distances else self._replace(distances=distances)


Paths = tuple[int, ...]
"""The points passed since an access, a bit each, on every path that passes no others in addition."""
NO_SLOTS: Paths = (0,)


class _Entry(NamedTuple):
    """The points passed since an access, as a state holds them."""

    paths: Paths
    before: int
    """The points that the state had passed before; all, where barriers do not order the access yet."""


class State:
    """The accesses that are open at a place, and the paths to it from each.

    Slots that are passed are noted once for all accesses, so that passing one costs nothing.

    Parameters
    ----------
    barriers_wait : bool
        In front of each barrier every thread waits for its asynchronous copies.
    """

    def __init__(self, *, barriers_wait: bool = False) -> None:
        self._barriers_wait = barriers_wait
        self._passed = 0
        self._of: dict[Effect, dict[PendingAccess, _Entry]] = {}

    def __contains__(self, opened: PendingAccess) -> bool:
        return opened in self._of.get(opened.access, ())

    def __iter__(self) -> Iterator[tuple[PendingAccess, Paths]]:
        return self.of(self._of)

    def of(self, accesses: Collection[Effect]) -> Iterator[tuple[PendingAccess, Paths]]:
        """Some accesses, where they are open, and their paths."""
        few, many = sorted((accesses, self._of), key=len)
        for access in (access for access in few if access in many):
            for opened, entry in self._of[access].items():
                yield opened, self._paths(entry)

    def empty(self) -> State:
        """A state without accesses."""
        return State(barriers_wait=self._barriers_wait)

    def copy(self) -> State:
        """A state that changes by itself."""
        copied = self.empty()
        copied._passed = self._passed
        copied._of = {access: dict(entries) for access, entries in self._of.items()}
        return copied

    def open(self, opened: PendingAccess) -> None:
        """Open an access here."""
        self._set(opened, NO_SLOTS)

    def pass_slot(self, bit: int) -> None:
        """Go past a point."""
        self._passed |= bit

    def close(self, points: int) -> None:
        """Forget the paths that pass one of some points; an access without others is closed."""
        for access, entries in list(self._of.items()):
            for opened, entry in list(entries.items()):
                paths = self._paths(entry)
                kept = tuple(path for path in paths if not path & points)
                if not kept:
                    del entries[opened]
                elif len(kept) < len(paths):
                    self._set(opened, kept)
            if not entries:
                del self._of[access]

    def add(self, opened: PendingAccess, paths: Paths) -> bool:
        """Add paths to an access; tell whether one of them passes fewer points than those known."""
        entry = self._of.get(opened.access, {}).get(opened)
        if entry is None:
            self._set(opened, paths)
            return True
        known = self._paths(entry)
        if known == paths:
            return False
        shorter = [path for path in paths if not any(each & path == each for each in known)]
        if not shorter:
            return False
        kept = [each for each in known if not any(path & each == path for path in shorter)]
        kept += shorter
        if len(kept) > _MAX_PATHS:  # what all of them pass is less than any of them does
            kept = [functools.reduce(operator.and_, kept)]
        self._set(opened, tuple(kept))
        return True

    def add_all(self, other: State) -> bool:
        """Add the paths of another state, which joins this one; tell whether it changes."""
        changes = [self.add(*each) for each in other]
        return any(changes)

    def moved(self, change: Callable[[PendingAccess], PendingAccess | None]) -> State:
        """Change accesses, or close them; those that become one have the paths of both."""
        result = self.empty()
        result._passed = self._passed
        for access, entries in self._of.items():
            for opened, entry in entries.items():
                changed = change(opened)
                if changed is None:
                    continue
                known = result._of.setdefault(access, {})
                if changed == opened and opened not in known:
                    known[opened] = entry
                else:
                    result.add(changed, self._paths(entry))
        return result

    def _paths(self, entry: _Entry) -> Paths:
        since = self._passed & ~entry.before
        return tuple(path | since for path in entry.paths) if since else entry.paths

    def _set(self, opened: PendingAccess, paths: Paths) -> None:
        is_ordered = opened.signals is None or self._barriers_wait
        before = self._passed if is_ordered and not opened.is_on_its_way else -1
        self._of.setdefault(opened.access, {})[opened] = _Entry(paths, before)


def after_barrier(state: State, barrier: Barrier) -> State:
    """The accesses that a barrier leaves open, or orders for a warp only."""

    def ordered(opened: PendingAccess) -> PendingAccess | None:
        if barrier.waits_for_copies:
            opened = opened._replace(signals=None)
        if opened.signals is not None or opened.is_on_its_way:
            return opened
        if opened.access.is_of_device and not barrier.orders_device:
            return opened
        if barrier.scope == ConflictScope.BLOCK:
            return None
        return opened._replace(ordered=max(opened.ordered, barrier.scope))

    return state.moved(ordered)


def following(distances: Distances, loop: Loop, is_in_flight: bool) -> Distances | None:
    """The distances from the next iteration of a loop; None where there is no such iteration."""
    own = _of(distances, loop)
    exact = next((each for each in own if each.is_exact), None)
    if exact is None:
        return _replaced(distances, loop, *own & {Distance.LATER})
    later = replace(exact, iterations=exact.iterations + 1)
    if later.iterations == loop.trip_count:
        return None
    # What has not arrived yet stays open for several iterations, in which others may be accessed.
    most = _MAX_DISTANCE if is_in_flight else 1
    if later.side == Side.LATER and not is_in_flight:
        return _replaced(distances, loop)
    if later.iterations <= most:
        return _replaced(distances, loop, later)
    return _replaced(distances, loop, *([Distance.LATER] if later.side == Side.BOTH else []))


def _of(distances: Distances, loop: Loop) -> set[Distance]:
    return {distance for other, distance in distances if other is loop}


def _replaced(distances: Distances, loop: Loop, *own: Distance) -> Distances:
    others = (pair for pair in distances if pair[0] is not loop)
    return frozenset([*others, *((loop, distance) for distance in own)])
