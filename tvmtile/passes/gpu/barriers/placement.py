"""Placement of barriers: at the first conflict, as late as possible and executed as rarely.

A conflict gets a barrier in one of the points passed since the earlier access: in the one that is
executed least often, and of several in the last one. What the iterations of a loop exchange comes
first, since it needs barriers within: of a few ways to place them the cheapest is taken, and of equal
ones that which also serves what is before the loop, or after it. Then each barrier is made as weak as
the conflicts that it separates allow.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from tvm import tirx

from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.passes.gpu.barriers.checker import Checker
from tvmtile.passes.gpu.barriers.dataflow import Walk
from tvmtile.passes.gpu.barriers.items import (
    Barrier,
    BarrierPoint,
    Barriers,
    Branch,
    Iteration,
    Sequence,
)
from tvmtile.passes.gpu.barriers.refusals import settle
from tvmtile.passes.gpu.barriers.state import Paths, State

_TRIPS = 16  # taken for a loop whose number of iterations is not known


def place(program: Sequence, checker: Checker, *, of_device: bool) -> Barriers:
    """The barriers that a program needs.

    Raises
    ------
    DataRace
        If barriers at all places do not suffice.
    """
    checker.program = program
    barriers = _placed(program, checker, of_device=of_device)
    while (race := checker.left_open(barriers)) is not None:
        settle(race, checker)
    return barriers


def _placed(program: Sequence, checker: Checker, *, of_device: bool) -> Barriers:
    points, waits = _Points(program), False
    choice = _Chooser(checker, points, waits)
    while (race := choice.race_in(program)) is not None:
        if race.in_flight == Collision.POSSIBLE and not waits:
            waits = True  # what may touch the elements of a copy waits for it
        else:
            settle(race, checker)
        choice = _Chooser(checker, points, waits)
    bits = {point: bit for point, bit in points.bits.items() if bit & choice.chosen}
    barriers = dict.fromkeys(bits, Barrier(orders_device=of_device))
    if waits:
        _strengthen(program, checker, barriers, bits, waits=True)
    for point, barrier in barriers.items():
        scope = ConflictScope.BLOCK if barrier.waits_for_copies else ConflictScope.WARP
        barriers[point] = replace(barrier, scope=scope, orders_device=False)
    if barriers:
        _strengthen(program, checker, barriers, bits, waits=False)
    return barriers


def _strengthen(
    program: Sequence,
    checker: Checker,
    barriers: Barriers,
    bits: dict[BarrierPoint, int],
    *,
    waits: bool,
) -> None:
    """Make barriers as strong as they have to be: that they wait for copies, or all else."""
    while (race := _Strength(checker, bits, waits, barriers).race_in(program)) is not None:
        settle(race, checker)


class _Points:
    """The places where a barrier may stand, each with a bit, in the order of the program."""

    def __init__(self, program: Sequence) -> None:
        self.bits: dict[BarrierPoint, int] = {}
        self._costs: dict[int, float] = {}
        self._in_loop: dict[Iteration, tuple[int, int]] = {}
        self._number(program, 1.0)
        by_cost: dict[float, int] = {}
        for bit, cost in self._costs.items():
            by_cost[cost] = by_cost.get(cost, 0) | bit
        self._by_cost = [by_cost[cost] for cost in sorted(by_cost)]

    def _number(self, body: Sequence, times: float) -> int:
        """Number the points of a body that is run so often; those outside of the loops in it."""
        own = 0
        for point, item in itertools.zip_longest(body.points, body.items):
            if point is not None:
                bit = self.bits[point] = 1 << len(self.bits)
                self._costs[bit] = point.weight * times
                own |= bit
            if isinstance(item, Branch):
                for case in item.cases:
                    own |= self._number(case, times)
            elif isinstance(item, Iteration):
                first = len(self.bits)
                of_body = self._number(item.body, times * _trip_count(item))
                everywhere = (1 << len(self.bits)) - (1 << first)
                self._in_loop[item] = of_body, everywhere & ~of_body
        return own

    def best(self, path: int, here: int) -> int:
        """The point of a path that is executed least often, and of several the last one."""
        return next(last_of(path & alike, here) for alike in self._by_cost if path & alike)

    def in_loop(self, loop: Iteration) -> tuple[int, int]:
        """The points of a loop's body, and those in loops in it."""
        return self._in_loop[loop]

    def cost(self, points: int) -> float:
        """The number of times that barriers in some points are executed."""
        return sum(cost for bit, cost in self._costs.items() if bit & points)


def last_of(path: int, here: int) -> int:
    """The point of a path that is passed last, on the way to one that is `here`."""
    in_this_iteration = path & (2 * here - 1)
    return 1 << ((in_this_iteration or path).bit_length() - 1)


def _trip_count(item: Iteration) -> float:
    extent = getattr(item.statement, "extent", None)
    return float(extent.value) if isinstance(extent, tirx.IntImm) else _TRIPS


class _Chooser(Walk):
    """Chooses the points that get a barrier of the block."""

    def __init__(self, checker: Checker, points: _Points, barriers_wait: bool) -> None:
        super().__init__(checker, points.bits, barriers_wait)
        self._points = points
        self._preferred = 0

    def separate(self, later: Effect, scope: ConflictScope, paths: Paths) -> int:  # noqa: ARG002
        new = 0
        for path in paths:
            if not path & (self.chosen | new):
                new |= self._points.best(path & self._preferred or path, self.here)
        self.chosen |= new
        return new

    def _iteration(self, item: Iteration, before: State, loops: tuple[Loop, ...]) -> State:
        """Take the cheapest of three ways to place barriers in a loop, and around it.

        In the order of the program; or for the iterations alone, since what separates them often
        serves what is before the loop, too; or with barriers in the loop for what is before it. The
        second time around its own ones are chosen anew, from the state on in which the first one ends.
        """
        outside = self.chosen
        after = super()._iteration(item, before, loops)
        if self.chosen == outside:
            return after
        own, inner = self._points.in_loop(item)
        best, kept = self.chosen, outside & ~own | self.chosen & inner
        alone = before.moved(lambda o: o if o.signals is not None or o.is_on_its_way else None)
        for start, preferred in ((alone, 0), (before, own)):
            outer, self._preferred = self._preferred, preferred
            state = self._entering(item, start)
            for _ in range(2):
                self.chosen = kept
                state.add_all(self._fixed_point(item, state.copy(), (*loops, item.loop))[2])
            self._preferred = outer
            found = super()._iteration(item, before, loops)
            if self._points.cost(self.chosen) < self._points.cost(best):
                best, after = self.chosen, found
        self.chosen = best
        return after

    def _branch(self, item: Branch, state: State, loops: tuple[Loop, ...]) -> State:
        """A barrier in front of a branch stands for those in its cases, if it is cheaper."""
        in_front, outside = self.here, self.chosen
        if item.diverges or in_front & outside:
            return super()._branch(item, state, loops)
        joined = super()._branch(item, state, loops)
        chosen = self.chosen
        if self._points.cost(chosen & ~outside) <= self._points.cost(in_front):
            return joined
        self.chosen = outside | in_front
        state = state.copy()
        state.close(in_front)
        other = super()._branch(item, state, loops)
        if self._points.cost(self.chosen) < self._points.cost(chosen):
            return other
        self.chosen = chosen
        return joined


class _Strength(Walk):
    """Makes the last barrier between two accesses stronger where none suffices."""

    def is_separated(self, later: Effect, scope: ConflictScope, paths: Paths) -> bool:
        return all(
            any(
                bit & path and self._suffices(point, later, scope)
                for point, bit in self._bits.items()
            )
            for path in paths
        )

    def separate(self, later: Effect, scope: ConflictScope, paths: Paths) -> int:
        scope = ConflictScope.WARP if scope == ConflictScope.WARP else ConflictScope.BLOCK
        for path in paths:
            if not self.is_separated(later, scope, (path,)):
                last = last_of(path, self.here)
                point = next(point for point, bit in self._bits.items() if bit == last)
                self._barriers[point] = self._stronger(self._barriers[point], later, scope)
        return 0

    def _suffices(self, point: BarrierPoint, later: Effect, scope: ConflictScope) -> bool:
        barrier = self._barriers[point]
        return self._stronger(barrier, later, scope) == barrier

    def _stronger(self, barrier: Barrier, later: Effect, scope: ConflictScope) -> Barrier:
        if self._barriers_wait:
            return replace(barrier, waits_for_copies=True)
        orders_device = barrier.orders_device or later.is_of_device
        return replace(barrier, scope=max(barrier.scope, scope), orders_device=orders_device)
