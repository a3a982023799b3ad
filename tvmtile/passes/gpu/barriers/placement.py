"""Where the barriers stand: as few as possible, executed as rarely as possible.

The loops are looked at from the inside out, since what races within a loop needs a barrier within it,
and so does what arrives in it, wherever it was issued.
The clauses of a loop say which slots need a barrier among them. Start with a barrier in every slot of
its body, and remove the redundant ones greedily, from each slot on and around the loop (`removal`). The
best results are kept: which of them is best for the program is decided by what it spares outside,
before the loop or after it.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope
from tvmtile.passes.gpu.barriers.checker import Checker
from tvmtile.passes.gpu.barriers.items import (
    Barrier,
    BarrierPoint,
    Barriers,
    Branch,
    Item,
    Iteration,
    Sequence,
)
from tvmtile.passes.gpu.barriers.races import Race
from tvmtile.passes.gpu.barriers.refusals import settle
from tvmtile.passes.gpu.barriers.removal import remaining

_MAX_CHOICES = 6  # results of a loop that are kept
_MAX_COMBINATIONS = 24
_TRIPS = 16  # taken for a loop whose number of iterations is not known

_Choice = tuple[float, int]
"""What barriers cost, and where they stand, a bit for each slot."""


def place(program: Sequence, checker: Checker, *, of_device: bool) -> Barriers:
    """The barriers that a program needs.

    Raises
    ------
    DataRace
        If barriers at all places do not suffice.
    """
    checker.follow(program)
    barriers = _placed(program, checker, of_device=of_device)
    while (race := checker.left_open(barriers)) is not None:
        settle(race, checker)
    return barriers


def _placed(program: Sequence, checker: Checker, *, of_device: bool) -> Barriers:
    if checker.race(program, (), {}) is None:
        return {}
    try:
        search = _Search(program, checker, barriers_wait=False)
    except _InFlight:  # what may touch the elements of a copy waits for it
        search = _Search(program, checker, barriers_wait=True)
    strongest = Barrier(orders_device=of_device, waits_for_copies=search.barriers_wait)
    barriers = dict.fromkeys(search.slots, strongest)
    while (race := checker.race(program, (), barriers)) is not None:
        settle(race, checker)
    _weaken(program, checker, barriers, list(barriers), waits_for_copies=False)
    others = [slot for slot, barrier in barriers.items() if not barrier.waits_for_copies]
    _weaken(program, checker, barriers, others, scope=ConflictScope.WARP)
    _weaken(program, checker, barriers, list(barriers), orders_device=False)
    return barriers


def _weaken(
    program: Sequence,
    checker: Checker,
    barriers: Barriers,
    slots: list[BarrierPoint],
    **change: Any,
) -> None:
    """Weaken the barriers in some slots, one after the other, where that causes no race.

    What weaker ones leave open says, as clauses, among which of them one must stay as it is.
    """
    weaker = {slot: replace(barriers[slot], **change) for slot in slots}
    if all(barriers[slot] == weaker[slot] for slot in slots):
        return
    weights = {1 << number: 1.0 for number in range(len(slots))}
    waits = any(barriers[slot].waits_for_copies for slot in slots)
    bits = dict(zip(slots, weights, strict=True))
    clauses = checker.clauses(program, (), bits, barriers | weaker, barriers_wait=waits)
    kept = next(remaining(list(weights), weights, clauses, is_loop=False))
    barriers.update({slot: weaker[slot] for slot, bit in bits.items() if not bit & kept})


class _InFlight(Exception):
    """An access may touch what a copy in flight does, and barriers do not wait for copies."""


class _Search:
    """Finds where barriers stand; where these wait, threads wait for their copies before each."""

    def __init__(self, program: Sequence, checker: Checker, *, barriers_wait: bool) -> None:
        self.barriers_wait = barriers_wait
        self._checker = checker
        self._bits = {slot: 1 << number for number, slot in enumerate(_all_slots(program))}
        _, chosen = self._choices(program, None)[0]
        self.slots = [slot for slot, bit in self._bits.items() if bit & chosen]

    def _choices(self, body: Sequence, around: Iteration | None) -> list[_Choice]:
        """The cheapest sets of barriers for a loop's body, or for the whole program."""
        weights = {self._bits[slot]: slot.weight for slot in _slots(body)}
        found: dict[int, float] = {}
        inner = [self._choices(loop.body, loop) for loop in _loops_in(body)]
        trip_counts = [_trip_count(loop) for loop in _loops_in(body)]
        clauses = self._separations(body, around)
        everywhere = functools.reduce(operator.or_, weights, 0)
        for combination in itertools.islice(itertools.product(*inner), _MAX_COMBINATIONS):
            fixed = functools.reduce(operator.or_, (slots for _, slots in combination), 0)
            cost = sum(
                count * each for count, (each, _) in zip(trip_counts, combination, strict=True)
            )
            needed = [clause & everywhere for clause in clauses if not clause & fixed]
            for left in remaining(list(weights), weights, needed, is_loop=around is not None):
                if left | fixed not in found:
                    weight = sum(each for slot, each in weights.items() if slot & left)
                    found[left | fixed] = cost + weight
        best = min(found.values())
        cheapest = [(cost, slots) for slots, cost in found.items() if cost <= best + 1e-6]
        return cheapest[:_MAX_CHOICES]

    def _separations(self, body: Sequence, around: Iteration | None) -> list[int]:
        part, loops = (body, ()) if around is None else (around, around.around)
        while True:
            try:
                return self._checker.clauses(
                    part, loops, self._bits, {}, barriers_wait=self.barriers_wait
                )
            except Race as race:
                if race.in_flight == Collision.POSSIBLE and not self.barriers_wait:
                    raise _InFlight from None
                settle(race, self._checker)


def _slots(body: Sequence) -> Iterator[BarrierPoint]:
    """The places for barriers in a body, not those in the loops in it, in their order."""
    for slot, item in itertools.zip_longest(body.slots, body.items):
        if slot is not None:
            yield slot
        if isinstance(item, Branch):
            for case in item.cases:
                yield from _slots(case)


def _all_slots(body: Sequence) -> Iterator[BarrierPoint]:
    yield from _slots(body)
    for loop in _loops_in(body):
        yield from _all_slots(loop.body)


def _loops_in(body: Sequence) -> Iterator[Iteration]:
    for item in body.items:
        yield from _loops_of(item)


def _loops_of(item: Item) -> Iterator[Iteration]:
    if isinstance(item, Iteration):
        yield item
    elif isinstance(item, Branch):
        for case in item.cases:
            yield from _loops_in(case)


def _trip_count(item: Iteration) -> float:
    extent = getattr(item.statement, "extent", None)
    return float(extent.value) if isinstance(extent, tirx.IntImm) else _TRIPS
