"""Where the barriers stand: as few as there can be, executed as rarely as there can be.

The loops are looked at from the inside out, since what races within a loop needs a barrier within it,
and so does what arrives in it, wherever it was issued.
Of a barrier at each place of a loop's body all are taken away that are not needed, one after the other
from each place on and around the loop, and the best of the results are kept: which of them is best for
the program is decided by what it spares outside, before the loop or after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from tvm import tirx

from tvmtile.passes.barriers.orders import Meeting
from tvmtile.passes.barriers.program import (
    Barrier,
    Barriers,
    Branch,
    Checker,
    Item,
    Iteration,
    Sequence,
    Slot,
)
from tvmtile.passes.barriers.structure import refuse

__all__ = ["place"]

_MAX_CHOICES = 6  # results of a loop that are kept
_MAX_COMBINATIONS = 24
_TRIPS = 16  # taken for a loop whose number of iterations is not known

_Choice = tuple[float, frozenset[Slot]]


def place(program: Sequence, checker: Checker) -> Barriers:
    """The barriers that a program needs.

    Parameters
    ----------
    program : Sequence
        What a thread does.
    checker : Checker
        Finds races.

    Raises
    ------
    DataRace
        If barriers at all places do not suffice.
    """
    checker.follow(program)
    strongest = Barrier()
    try:
        _, slots = _choices(program, None, checker, strongest)[0]
    except _InFlight:  # what may touch the elements of a copy waits for it
        strongest = Barrier(waits_for_copies=True)
        _, slots = _choices(program, None, checker, strongest)[0]
    barriers: Barriers = dict.fromkeys(slots, strongest)

    def relax(slot: Slot, barrier: Barrier) -> None:
        if checker.race(program, (), {**barriers, slot: barrier}) is None:
            barriers[slot] = barrier

    for slot in slots:
        relax(slot, replace(barriers[slot], waits_for_copies=False))
        relax(slot, replace(barriers[slot], meeting=Meeting.IN_SIMDGROUP))
        relax(slot, replace(barriers[slot], orders_device=False))
    return barriers


class _InFlight(Exception):
    """An access may touch what a copy in flight does, and barriers do not wait for copies."""


def _choices(
    body: Sequence, around: Iteration | None, checker: Checker, strongest: Barrier
) -> list[_Choice]:
    """The cheapest sets of barriers for a loop's body, or for the whole program."""
    part = body if around is None else around
    loops = () if around is None else around.around
    own = list(_slots(body))
    found: dict[frozenset[Slot], float] = {}
    inner = [_choices(loop.body, loop, checker, strongest) for loop in _loops_in(body)]
    trips = [_trips(loop) for loop in _loops_in(body)]
    for combination in itertools.islice(itertools.product(*inner), _MAX_COMBINATIONS):
        fixed = frozenset().union(*(slots for _, slots in combination))
        cost = sum(count * each for count, (each, _) in zip(trips, combination, strict=True))

        def is_enough(slots: frozenset[Slot], fixed: frozenset[Slot] = fixed) -> bool:
            barriers: Barriers = dict.fromkeys(slots | fixed, strongest)
            return checker.race(part, loops, barriers) is None

        everywhere = frozenset(own)
        race = checker.race(part, loops, dict.fromkeys(everywhere | fixed, strongest))
        if race is not None and race.in_flight and not strongest.waits_for_copies:
            raise _InFlight
        if race is not None:
            raise refuse(race)
        for order in _orders(own, is_loop=around is not None):
            left = everywhere
            for slot in order:
                if is_enough(left - {slot}):
                    left -= {slot}
            found.setdefault(left | fixed, cost + sum(slot.weight for slot in left))
    best = min(found.values())
    cheapest = [(cost, slots) for slots, cost in found.items() if cost <= best + 1e-6]
    return cheapest[:_MAX_CHOICES]


def _orders(slots: list[Slot], *, is_loop: bool) -> Iterator[list[Slot]]:
    """The orders in which barriers are taken away: what is left is as late as it can be."""
    # The start of a loop's body is as good as its end, and often serves what is before the loop.
    rotations = range(-1, len(slots) - 1) if is_loop and slots else range(1)
    for start in rotations:
        order = slots[start:] + slots[:start]
        yield order
        by_weight = sorted(order, key=lambda slot: slot.weight)
        if by_weight != order:
            yield by_weight  # those in branches first


def _slots(body: Sequence) -> Iterator[Slot]:
    """The places for barriers in a body, not those in the loops in it, in their order."""
    for slot, item in itertools.zip_longest(body.slots, body.items):
        if slot is not None:
            yield slot
        if isinstance(item, Branch):
            for case in item.cases:
                yield from _slots(case)


def _loops_in(body: Sequence) -> Iterator[Iteration]:
    for item in body.items:
        yield from _loops_of(item)


def _loops_of(item: Item) -> Iterator[Iteration]:
    if isinstance(item, Iteration):
        yield item
    elif isinstance(item, Branch):
        for case in item.cases:
            yield from _loops_in(case)


def _trips(item: Iteration) -> float:
    extent = getattr(item.statement, "extent", None)
    return float(extent.value) if isinstance(extent, tirx.IntImm) else _TRIPS
