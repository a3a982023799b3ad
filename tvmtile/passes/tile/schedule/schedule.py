"""A schedule: in which order roles go through the units of a loop, and how rings lie between them.

Each role does its steps in every iteration, one after the other; a step with an offset belongs to
another iteration, so many later or earlier. That says it all: copies that run ahead, a product that
goes on under the next iteration, what a producer does for consumers. `emit` writes a role out.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tvm import ir

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import VerifyError
from tvmtile.passes.tile.schedule.body import PipelineStmt
from tvmtile.passes.tile.schedule.rings import Ring


class Action(Enum):
    """The action of a step on its subject: a unit, a batch of its role, or a ring."""

    RUN = "unit"
    """The unit: all of it, or the begin of its asynchronous work."""
    SIGNAL = "batch is issued"
    AWAIT = "batch is over"
    ACQUIRE = "slot is empty"
    """Wait until the slot of the ring is free."""
    FILLED = "slot is filled"
    """Say that the tiles have come, or that no more copies are begun."""
    WAIT = "slot is full"
    """Wait for the tiles."""
    RELEASE = "slot is free"
    """Say that the role needs them no more."""


@dataclass(frozen=True)
class Step:
    """Something that a role does for each iteration of a loop."""

    action: Action
    subject: int
    """The number of a unit, of a batch of the role, or of a ring."""
    offset: int = 0
    """Done in iteration `k` for iteration `k + offset`, if there is one."""


@dataclass(frozen=True)
class Batch:
    """Asynchronous work of an iteration that is waited for together."""

    token: str
    units: tuple[int, ...]


@dataclass(frozen=True)
class RoleSchedule:
    """Threads that go through the loop together."""

    steps: tuple[Step, ...]
    """Of an iteration, in their order."""
    batches: tuple[Batch, ...] = ()
    arrivals: int = 1
    """How often it releases a slot: once for each of its warps."""

    def batch_of(self, unit: int) -> int | None:
        """The number of the batch to which the work of a unit belongs; None if it is done at once."""
        return next((n for n, batch in enumerate(self.batches) if unit in batch.units), None)

    def behind(self, place: int) -> int:
        """The number of batches issued, at an AWAIT, after the one that it waits for."""
        batch = self.steps[place].subject
        signal = self._places(Action.SIGNAL, batch)[0]
        return self.steps[signal].offset - self.steps[place].offset - (place < signal)

    def in_flight(self, batch: int) -> int:
        """The number of batches that an iteration leaves in flight."""
        (signal,) = (self.steps[place].offset for place in self._places(Action.SIGNAL, batch))
        waits = (self.steps[place].offset for place in self._places(Action.AWAIT, batch))
        return signal - max(waits)

    def _places(self, action: Action, subject: int) -> list[int]:
        wanted = action, subject
        return [n for n, step in enumerate(self.steps) if (step.action, step.subject) == wanted]


@dataclass(frozen=True)
class Schedule:
    """The steps of each role in a loop."""

    units: Sequence[PipelineStmt]
    roles: Sequence[RoleSchedule]
    rings: Sequence[Ring]
    copies: Mapping[ir.Var, int]
    """Of tiles with more than one: iteration `k` works on copy `k % count`."""


# Proof --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _At:
    """A step of a role."""

    role: int
    place: int
    step: Step

    def precedes(self, other: _At, distance: int = 0) -> bool:
        """Tell whether it is over in an iteration before `other` begins so many iterations later."""
        mine = (-self.step.offset, self.place)
        return self.role == other.role and mine < (distance - other.step.offset, other.place)


def verify(schedule: Schedule) -> None:
    """Prove that each iteration finds its own tiles, whatever the number of iterations.

    The steps that are compared belong to the same iteration or to two that are both done, so what
    holds of them holds in a prologue and an epilogue, too.

    Raises
    ------
    VerifyError
        If a slot is read before it is filled or filled before it is free; if units that touch the same
        buffer do not keep their order; or if roles may wait for each other for ever.
    """
    _Verifier(schedule).verify()


class _Verifier:
    def __init__(self, schedule: Schedule) -> None:
        self._units, self._rings, self._roles = schedule.units, schedule.rings, schedule.roles
        self._copies = schedule.copies
        self._all = [
            _At(role, place, step)
            for role, each in enumerate(schedule.roles)
            for place, step in enumerate(each.steps)
        ]
        self._found: defaultdict[tuple[Action, int], list[_At]] = defaultdict(list)
        for at in self._all:
            self._found[at.step.action, at.step.subject].append(at)

    def verify(self) -> None:
        for number in range(len(self._units)):
            self._the(Action.RUN, number)
        for number, ring in enumerate(self._rings):
            self._check_handovers(number, ring)
        for first, unit in enumerate(self._units):
            for second in range(first + 1, len(self._units)):
                for buffer in filter(is_buffer_var, unit.conflicts(self._units[second])):
                    self._check_order(first, second, buffer)
        self._check_progress()

    # Steps -------------------------------------------------------------------------------------

    def _steps(self, action: Action, subject: int, role: int | None = None) -> list[_At]:
        return [at for at in self._found[action, subject] if role in (None, at.role)]

    def _the(self, action: Action, subject: int, role: int | None = None) -> _At:
        found = self._steps(action, subject, role)
        if len(found) != 1:
            raise VerifyError(f"{len(found)} steps say that the {action.value}: {subject}")
        return found[0]

    def _end(self, unit: int) -> _At:
        """The place where a unit is done: its own, or that of the first wait for its work."""
        run = self._the(Action.RUN, unit)
        batch = self._roles[run.role].batch_of(unit)
        if batch is None:
            return run
        signal = self._the(Action.SIGNAL, batch, run.role)
        waits = self._steps(Action.AWAIT, batch, run.role)
        if not run.precedes(signal) or not waits:
            raise VerifyError(f"{self._named(unit)} is not waited for")
        return min(waits, key=lambda at: (-at.step.offset, at.place))

    def _role_and_batch(self, unit: int) -> tuple[int, int | None]:
        role = self._the(Action.RUN, unit).role
        return role, self._roles[role].batch_of(unit)

    def _named(self, unit: int) -> str:
        return self._units[unit].describe()

    # Units that touch the same buffer ------------------------------------------------------------

    def _check_order(self, first: int, second: int, buffer: ir.Var) -> None:
        """The second one is behind the first of its iteration, and before that of a later one."""
        number = next((n for n, ring in enumerate(self._rings) if buffer in ring.tiles), None)
        slots = self._copies.get(buffer, 1)
        fills = () if number is None else self._rings[number].units
        begun, begins = (self._role_and_batch(unit) for unit in (first, second))
        is_together = {first, second} <= {*fills} or (begun == begins and begun[1] is not None)
        if is_together:  # parts of a tile, or one of two cases
            in_order = self._the(Action.RUN, first).precedes(self._the(Action.RUN, second))
        else:
            in_order = self._is_over(first, second, 0, number)
        if not in_order:
            raise VerifyError(
                f"{self._named(second)} touches {buffer.name} before {self._named(first)} is done"
            )
        if not is_together and not self._is_over(second, first, slots, number):
            raise VerifyError(
                f"{self._named(first)} touches {buffer.name} again before {self._named(second)} is "
                f"done, {slots} iterations before"
            )

    def _is_over(self, one: int, other: int, distance: int, number: int | None) -> bool:
        """Tell whether a unit is done before another one begins, so many iterations later."""
        begin = self._the(Action.RUN, other)
        if number is None:
            return self._end(one).precedes(begin, distance)
        ring = self._rings[number]
        if one in ring.units:
            filled = self._the(Action.FILLED, number)
            waits = self._steps(Action.WAIT, number, begin.role)
            is_filled = self._the(Action.RUN, one).precedes(filled)
            return is_filled and any(wait.precedes(begin, distance) for wait in waits)
        end = self._end(one)
        if ring.empty is not None and other in ring.units:
            frees = self._steps(Action.RELEASE, number, end.role)
            is_free = any(end.precedes(free) for free in frees)
            return is_free and self._the(Action.ACQUIRE, number).precedes(begin)
        return end.precedes(begin, distance)

    # Mbarriers -----------------------------------------------------------------------------------

    def _check_handovers(self, number: int, ring: Ring) -> None:
        """Each phase has its arrivals, and no thread that waits for one is two phases behind."""
        filled = self._the(Action.FILLED, number)
        waits = self._steps(Action.WAIT, number)
        if ring.empty is None:
            if not all(wait.precedes(filled, ring.slots) for wait in waits):
                raise VerifyError(f"ring {number} is filled before all have waited for it")
            return
        frees = [self._the(Action.RELEASE, number, wait.role) for wait in waits]
        if not all(map(_At.precedes, waits, frees)):
            raise VerifyError(f"ring {number} is released before it is waited for")
        if not self._the(Action.ACQUIRE, number).precedes(filled):
            raise VerifyError(f"ring {number} is filled before it is empty")
        if any(self._copies.get(tile, 1) != ring.slots for tile in ring.tiles):
            raise VerifyError(f"tiles of ring {number} have other copies than its {ring.slots}")
        arrivals = sum(self._roles[free.role].arrivals for free in frees)
        if arrivals != ring.empty.arrivals:
            raise VerifyError(f"{arrivals} warps release ring {number}, not {ring.empty.arrivals}")

    def _check_progress(self) -> None:
        """No step waits for itself: what must come before it is of earlier iterations.

        With weights a little less than the iterations between two steps, a cycle along which none
        pass is negative, and Bellman and Ford's relaxation would not end.
        """
        edges = [*self._waits(), *self._orders()]
        least = dict.fromkeys(self._all, 0.0)
        for _ in self._all:
            changed = False
            for one, other, distance in edges:
                found = least[one] + distance - 1 / (len(self._all) + 1)
                if found < least[other] - _ROUNDING:
                    least[other], changed = found, True
            if not changed:
                return
        raise VerifyError("roles wait for each other for ever")

    def _orders(self) -> Iterator[tuple[_At, _At, int]]:
        """Steps that follow each other in a role, and the iterations between what they belong to."""
        for role in range(len(self._roles)):
            steps = [at for at in self._all if at.role == role]
            for one, other in itertools.pairwise([*steps, *steps[:1]]):
                is_next = one.place >= other.place
                yield one, other, other.step.offset - one.step.offset + is_next

    def _waits(self) -> Iterator[tuple[_At, _At, int]]:
        for number, ring in enumerate(self._rings):
            for one, other, distance in (
                (Action.FILLED, Action.WAIT, 0),
                (Action.RELEASE, Action.ACQUIRE, ring.slots),
            ):
                ends, begins = self._steps(one, number), self._steps(other, number)
                yield from ((end, begin, distance) for end in ends for begin in begins)


_ROUNDING = 1e-6
