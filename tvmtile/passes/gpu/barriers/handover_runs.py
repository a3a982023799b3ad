"""The steps of groups of threads, run together for a known number of iterations, with vector clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from tvm import ir

from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Effect
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.passes.gpu.barriers.handover_steps import (
    BatchEnd,
    Case,
    Do,
    Meet,
    Number,
    Repeat,
    Step,
    Sync,
    UnknownHandover,
    Values,
)
from tvmtile.passes.gpu.barriers.items import MbarrierStep, Signal, TokenWait
from tvmtile.passes.gpu.barriers.state import PendingAccess, SignalCounts

_MOST_STEPS = 400_000

Component = Any
"""A group of threads, by its number, or an mbarrier, by its buffer and number."""
Clock = dict[Component, int]
"""The moments of groups, and the phases of mbarriers, up to which all is known to be over."""


@dataclass(eq=False)
class Event:
    """An access by a group of threads, in some iterations."""

    access: Effect
    group: int
    values: tuple[tuple[ir.Var, int], ...]
    before: Clock
    """The moments that are over before it."""
    after: list[tuple[Component, int]] = field(default_factory=list)
    """Each: whoever knows this group, or mbarrier, up to there, knows that the access is over."""
    opened: PendingAccess | None = None
    """Of what goes on until a wait."""
    phase: int | None = None
    """Of what completes on an mbarrier: the phase in which its bytes are expected."""

    @property
    def is_copied(self) -> bool:
        """Tell whether it completes on an mbarrier."""
        return self.opened is not None and self.opened.signals is None


class _Events:
    """The events of an access in a run, as arrays of one element each, or a row."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.groups = np.array([event.group for event in events])
        self.are_open = np.array([event.opened is not None for event in events])
        self.are_copied = np.array([event.is_copied for event in events])
        iterations: dict[tuple[int, ...], int] = {}
        numbers = [tuple(number for _, number in event.values) for event in events]
        self.iterations = np.array([iterations.setdefault(k, len(iterations)) for k in numbers])
        clocks = {id(event.before): event.before for event in events}
        self._clocks = [*clocks.values()]
        places = {key: place for place, key in enumerate(clocks)}
        self._places = np.array([places[id(event.before)] for event in events])

    def are_before(self, others: _Events) -> np.ndarray:
        """Tell of each event, a row, and each of others, a column, whether it is over before."""
        found = np.zeros((len(self.events), len(others.events)), bool)
        by_component: dict[Component, list[tuple[int, int]]] = defaultdict(list)
        for row, event in enumerate(self.events):
            for key, moment in event.after:
                by_component[key].append((row, moment))
        for key, ends in by_component.items():
            rows, moments = np.array(ends).T
            np.logical_or.at(found, rows, others._known(key) >= moments[:, None])
        return found

    def _known(self, key: Component) -> np.ndarray:
        """The moments of groups, or phases of mbarriers, up to which all is over before events."""
        return np.array([clock.get(key, 0) for clock in self._clocks])[self._places]


@dataclass(eq=False)
class _MbarrierState:
    key: Component
    count: int
    pending: int = 0
    arrived: Clock = field(default_factory=dict)
    over: list[Clock] = field(default_factory=list)
    """The knowledge of each phase that is over."""
    arrivals: list[list[tuple[int, int]]] = field(default_factory=lambda: [[]])
    """Of each phase, the one that goes on too: the groups that arrive in it, and their moments."""
    with_bytes: set[int] = field(default_factory=set)
    """The phases that last until bytes have come."""


def _joined(a: Clock, b: Clock) -> Clock:
    return {**a, **{key: moment for key, moment in b.items() if moment > a.get(key, 0)}}


def _taken(step: Case, values: Values) -> list[Step]:
    """The steps of the case that a group takes."""
    for part in step.parts:
        assert isinstance(part, Number)
        if not part.is_known(values) and step.is_plain:
            return [*step.then, *step.other]  # what is done in one of them is in order with more
        if not part.at(values):
            return step.other
    return step.then


class Execution:
    """The kernel with loops of a known number of iterations.

    Attributes
    ----------
    goes_on : bool
        Threads do something behind a loop whose number of iterations is not known.
    doubtful : dict
        The mbarriers at which threads may arrive in another phase than they mean, with such an arrival.
        They order nothing: a kernel in which some are found is run again, without them.
    """

    def __init__(
        self,
        threads: list[tuple[int, list[Step]]],
        footprints: Footprints,
        counts: dict[ir.Var | None, tuple[int, ...]],
        values: Values,
        doubtful: dict[Component, MbarrierStep | None],
        open_loops: Collection[ir.Var] = (),
        period: int = 0,
    ) -> None:
        groups = [group for group, _ in threads]
        self._groups, self._warps = groups, [*map(footprints.warps_of, groups)]
        self._counts = counts
        self.goes_on = False
        self.doubtful = doubtful
        self._open_loops, self._period = open_loops, period
        self._looping: dict[int, ir.Var] = {}
        self._looped: set[int] = set()
        self.events: dict[int, list[Event]] = defaultdict(list)
        self._now = [1] * len(groups)
        self._waits = [0] * len(groups)
        self._clocks: list[Clock] = [{} for _ in groups]
        self._phases: dict[Component, _MbarrierState] = {}
        self._in_flight: list[list[Event]] = [[] for _ in groups]
        self._expected: dict[tuple[int, Component], int] = {}
        self._seen: set[Any] = set()
        self._work = 0
        self._cut = 0
        self._at_cut: set[int] = set()
        self._bases: dict[int, Clock] = {}
        self.states: dict[int, Any] = {}
        self._tables: dict[int, _Events] = {}
        self._play([self._thread(n, own, dict(values)) for n, (_, own) in enumerate(threads)])

    # The schedule ------------------------------------------------------------------------------------

    def _play(self, threads: list[Iterator[Callable[[], bool]]]) -> None:
        waiting: dict[int, Callable[[], bool]] = {n: lambda: True for n in range(len(threads))}
        while waiting:
            ready = [n for n, is_ready in waiting.items() if is_ready()]
            if not ready:
                if not self._at_cut:
                    raise UnknownHandover  # they wait for ever
                if self._at_cut != set(waiting):
                    raise UnknownHandover
                self._take_state()
                continue
            for n in ready:
                step = next(threads[n], None)
                if step is None:
                    del waiting[n]
                else:
                    waiting[n] = step

    def _take_state(self) -> None:
        """Take the state at an iteration's beginning, but for what was over a period before."""
        times: Clock = dict(enumerate(self._now))
        times |= {key: len(each.over) for key, each in self._phases.items()}
        self._bases[self._cut] = times
        before = self._bases.get(self._cut - self._period, {})

        def relative(clock: Clock) -> frozenset[tuple[Component, int]]:
            recent = (key for key, moment in clock.items() if moment >= before.get(key, 0))
            return frozenset((key, clock[key] - times[key]) for key in recent)

        self.states[self._cut] = (
            tuple(map(relative, self._clocks)),
            {
                key: (
                    len(each.over) % 2,
                    each.pending,
                    relative(each.arrived),
                    tuple(map(relative, each.over[before.get(key, 0) :])),
                    tuple(
                        frozenset((n, moment - times[n]) for n, moment in arrivals)
                        for arrivals in each.arrivals[before.get(key, 0) :]
                    ),
                )
                for key, each in self._phases.items()
            },
            [
                [
                    (id(event.access), event.opened and event.opened.signals)
                    for event in own
                    if not event.after
                ]
                for own in self._in_flight
            ],
            {
                key: phase - times[key[1]]
                for key, phase in self._expected.items()
                if phase >= before.get(key[1], 0)
            },
        )
        self._cut += 1
        self._at_cut = set()

    def _thread(self, n: int, steps: list[Step], values: Values) -> Iterator[Callable[[], bool]]:
        for step in steps:
            self._work += 1
            if self._work > _MOST_STEPS:
                raise UnknownHandover
            if n in self._looped and not isinstance(step, Case | Repeat):
                self.goes_on = True
            if isinstance(step, Do):
                self._do(n, step, values)
            elif isinstance(step, BatchEnd):
                self._token(n, step.item)
            elif isinstance(step, Sync):
                yield from self._sync(n, step)
            elif isinstance(step, Meet):
                yield from self._meet(n, step, values)
            elif isinstance(step, Case):
                yield from self._thread(n, _taken(step, values), values)
            else:
                first = step.low.at(values)
                is_open = step.var in self._open_loops
                for k in range(step.extent.at(values)):
                    if is_open and k <= 3 * self._period:
                        yield from self._come_to_cut(n, step.var, k)
                    values[step.var] = first + k
                    yield from self._thread(n, step.body, values)
                values.pop(step.var, None)
                if is_open:
                    self._looped.add(n)

    def _come_to_cut(self, n: int, loop: ir.Var, k: int) -> Iterator[Callable[[], bool]]:
        if not self._looping.setdefault(n, loop).same_as(loop):
            raise UnknownHandover  # a second one
        if self._cut <= k:
            self._at_cut.add(n)
            yield lambda: self._cut > k

    # What comes of it ------------------------------------------------------------------------------

    def concurrent(
        self, a: Effect, b: Effect, *, in_group: bool
    ) -> Iterator[tuple[Event, Event, ConflictScope | None]]:
        """Events of two accesses neither of which is over before the other: one pair of each kind.

        With the scope within which threads are in order all the same; None of a thread that goes on
        while what it has begun is not over. Of the same group, or warp, only where asked, or copied.
        """
        ones, others = self._table(a), self._table(b)
        if ones is None or others is None:
            return
        together = ~(ones.are_before(others) | others.are_before(ones).T)
        of_one, of_other = ones.groups[:, None], others.groups[None]
        if not in_group:
            are_copied = ones.are_copied[:, None] | others.are_copied
            together &= self._are_apart[of_one, of_other] | are_copied
        if ones is others:
            np.fill_diagonal(together, False)
        rows, columns = np.nonzero(together)
        of_one, of_other = ones.groups[rows], others.groups[columns]
        goes_on = (of_one == of_other) & (ones.are_open[rows] | others.are_open[columns])
        near = self._share_a_warp[of_one, of_other]
        kinds = np.stack([ones.iterations[rows], others.iterations[columns], goes_on, near])
        for place in np.unique(kinds, axis=1, return_index=True)[1]:
            scope = ConflictScope.NONE if near[place] else ConflictScope.WARP
            one, other = ones.events[rows[place]], others.events[columns[place]]
            yield one, other, None if goes_on[place] else scope

    def _table(self, access: Effect) -> _Events | None:
        events = self.events.get(id(access))
        if events and id(access) not in self._tables:
            self._tables[id(access)] = _Events(events)
        return self._tables.get(id(access))

    @cached_property
    def _share_a_warp(self) -> np.ndarray:
        """Tell of two groups whether threads of one warp are among theirs."""
        return np.array([[bool(a & b) for b in self._warps] for a in self._warps])

    @cached_property
    def _are_apart(self) -> np.ndarray:
        """Tell of two groups whether they are different, and not lanes of one warp."""
        are_wide = [[(a | b).bit_count() > WARP_SIZE for b in self._warps] for a in self._warps]
        return np.array(are_wide) & ~np.eye(len(self._warps), dtype=bool)

    # What the threads of a group do ------------------------------------------------------------------

    def _do(self, n: int, step: Do, values: Values) -> None:
        for (access, number), ends in zip(step.accesses, step.ends, strict=True):
            if ends and any(values.get(name, end - 1) >= end for name, end in ends.items()):
                continue
            own = tuple(
                (loop.var, values[loop.var])
                for loop in access.loops
                if loop.var is not None and loop.var in values
            )
            event = Event(access, n, own, self._clocks[n])
            on = None
            if access.mbarrier is not None and number is not None:
                on = self._phases_of(access.mbarrier.root, number.at(values))
                on = None if on.key in self.doubtful else on
            if access.mbarrier is not None and not access.root.same_as(access.mbarrier.root):
                event.phase = None if on is None else self._expected.get((n, on.key))
                event.opened = PendingAccess(access, frozenset(), ConflictScope.NONE)
                if on is not None and event.phase is not None:
                    is_over = self._clocks[n].get(on.key, 0) > event.phase
                    event.after += [] if is_over else [(on.key, event.phase + 1)]
            elif access.token is not None:
                event.opened = PendingAccess(
                    access, frozenset(), ConflictScope.NONE, SignalCounts()
                )
                self._in_flight[n].append(event)
            else:
                if on is not None:
                    self._expect(n, on)
                key = (id(access), n, self._now[n], self._waits[n], own)
                if key in self._seen:
                    continue
                self._seen.add(key)
                event.after.append((n, self._now[n]))
            self.events[id(access)].append(event)

    def _expect(self, n: int, phases: _MbarrierState) -> None:
        """Take in that the phase which a group knows to go on lasts until bytes have come."""
        phase = len(phases.over)
        phases.with_bytes.add(phase)
        if self._known(n, phases) == phase:
            self._expected[n, phases.key] = phase
        else:
            self._expected.pop((n, phases.key), None)

    def _token(self, n: int, item: Signal | TokenWait) -> None:
        for event in list(self._in_flight[n]):
            opened = event.opened
            if opened is None or event.access.token is None or not opened.is_of(item):
                continue
            if isinstance(item, Signal):
                event.opened = opened.signalled(item.token)
            elif opened.arrived(item.awaited).signals is None:
                event.after.append((n, self._now[n]))
                self._in_flight[n].remove(event)

    def _meet(self, n: int, step: Meet, values: Values) -> Iterator[Callable[[], bool]]:
        phases = self._phases_of(step.item.mbarrier.root, step.number.at(values))
        if step.item.waits:
            if step.parity is None:
                raise UnknownHandover
            yield from self._wait(n, phases, step.parity.at(values))
        else:
            self._arrive(n, phases, step.item)

    def _sync(self, n: int, step: Sync) -> Iterator[Callable[[], bool]]:
        if step.threads is None:
            phases = self._phases_of(None, 0)
        else:
            warp = self._warps[n] if step.in_warps else step.threads
            together = step.threads & warp
            phases = self._phases_of(step, together, together.bit_count())
        self._arrive(n, phases)
        yield from self._wait(n, phases, self._known(n, phases) % 2)

    def _phases_of(self, root: Any, number: int, count: int | None = None) -> _MbarrierState:
        key = root, number
        if key not in self._phases:
            if count is None:
                counts = self._counts.get(root, ())
                if not 0 <= number < len(counts):
                    raise UnknownHandover
                count = counts[number]
            self._phases[key] = _MbarrierState(key, count)
        return self._phases[key]

    def _known(self, n: int, phases: _MbarrierState) -> int:
        """The number of phases that all threads of a group know to be over.

        Without a wait they do where they know of all arrivals; a single thread, of its own.
        """
        clock, known = self._clocks[n], self._clocks[n].get(phases.key, 0)
        own = self._now[n] if self._groups[n].bit_count() == 1 else clock.get(n, 0)
        reached = {**clock, n: own}
        is_over = known
        while (
            is_over < len(phases.over)
            and is_over not in phases.with_bytes
            and all(reached.get(g, 0) > moment for g, moment in phases.arrivals[is_over])
        ):
            is_over += 1
        if is_over > known:
            self._clocks[n] = {**clock, phases.key: is_over}
            self._waits[n] += 1
        return is_over

    def _arrive(self, n: int, phases: _MbarrierState, step: MbarrierStep | None = None) -> None:
        phase, size = len(phases.over), self._groups[n].bit_count()
        if self._known(n, phases) != phase or phases.pending + size > phases.count:
            self.doubtful.setdefault(phases.key, step)  # it may count in the phase before
        if phases.key in self.doubtful:
            return
        for event in list(self._in_flight[n]):
            is_copy = event.opened is not None and event.opened.is_cp_async
            if step is not None and step.with_copies and is_copy:
                event.after.append((phases.key, phase + 1))
        known = {**self._clocks[n], n: self._now[n]}
        phases.arrivals[-1].append((n, self._now[n]))
        self._now[n] += 1
        phases.arrived = _joined(phases.arrived, known)
        phases.pending += size
        if phases.pending == phases.count:
            phases.pending = 0
            phases.arrived = {**phases.arrived, phases.key: phase + 1}
            phases.over.append(phases.arrived)
            phases.arrivals.append([])

    def _wait(self, n: int, phases: _MbarrierState, parity: int) -> Iterator[Callable[[], bool]]:
        known = self._known(n, phases)
        if phases.key in self.doubtful or parity != known % 2:
            return  # for one that it knows to be over
        yield lambda: phases.key in self.doubtful or len(phases.over) > known
        if phases.key not in self.doubtful:
            self._clocks[n] = _joined(self._clocks[n], phases.over[known])
            self._waits[n] += 1
