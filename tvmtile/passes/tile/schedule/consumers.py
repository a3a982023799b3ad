"""The consumers of a specialised kernel, which do all but the producer's copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.asynchronous import asynchronously
from tvmtile.ir.kernels import flattened
from tvmtile.ir.rewriting import seq
from tvmtile.passes.tile.schedule.emit import Conditional, Emitter
from tvmtile.passes.tile.schedule.plan import work_of
from tvmtile.passes.tile.schedule.roles import SplitKernel
from tvmtile.passes.tile.schedule.schedule import Action, Batch, RoleSchedule, Step
from tvmtile.passes.tile.schedule.split_loops import SplitLoop


def consumers_of(
    kernel: SplitKernel, thread: ir.Expr, without: Sequence[tirx.Stmt] = ()
) -> tirx.Stmt:
    """The work of the consumers: all but the producer's copies.

    `thread` is a number among the consumers', who leave out the statements `without`.
    """

    def sequence(node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        kept = (
            child
            for child in flattened(node)
            if not any(map(child.same_as, without))
            and not any(each.fills(child) for each in kernel.preloads)
        )
        return seq([mutator.mutate(child) for child in kept])

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if loop.loop_var in kernel.loops:
            return seq(_consumed(loop, kernel, thread))
        return mutator.default_mutate(loop)

    rest = mutated(kernel.body, (tirx.For, visit), (tirx.SeqStmt, sequence))
    return seq([*kernel.counters(), rest])


def _consumed(loop: tirx.For, kernel: SplitKernel, thread: ir.Expr) -> list[tirx.Stmt]:
    """The work of consumers in place of a loop."""
    split, body = kernel.loops[loop.loop_var], kernel.parts_of(loop)
    _, role = kernel.schedules[loop.loop_var].roles
    preloads = kernel.preloads_of(loop)
    space = split.space.of(loop)

    def write(step: Step, exists: ir.Expr | None) -> list[Conditional]:
        if step.action is Action.RUN:
            batch = role.batch_of(step.subject)
            stmt = body.units[step.subject].stmt
            issued = stmt if batch is None else asynchronously(role.batches[batch].token, stmt)
            return [((), issued)]
        ring = split.rings[step.subject]
        if step.action is Action.WAIT:
            return [((), ring.wait_until_full())]
        return [((), stmt) for stmt in ring.release(thread, exists)]

    written = Emitter(role, body, [space], write).emit(peels=split.skew is not None)
    ready = [each.ring.wait_until_full() for each in preloads]
    _, using = kernel.around[loop.loop_var].roles
    last = max(place for place, step in enumerate(using.steps) if step.action is Action.RUN)
    early, late = (
        [
            stmt
            for step in steps
            if step.action is Action.RELEASE
            for stmt in preloads[step.subject].ring.release(thread)
        ]
        for steps in (using.steps[:last], using.steps[last:])
    )
    counted = [stmt for each in preloads for stmt in each.counted()]
    if split.skew is not None:
        whole = [*written.before, *space.passed(), space.others(written.each), *early]
        whole = space.begun(space.if_any([*whole, *written.behind], early))
    else:
        whole = [*written.before, space.each(written.each), *written.behind]
        # If sums in flight met those of a loop without iterations in front of the wait for them,
        # ptxas would have each product wait for the one before (C7515).
        whole = space.begun(space.if_any(whole) if split.in_flight else whole)
    return [*body.declarations, *ready, *whole, *late, *space.counted(), *counted]


# The order of an iteration ------------------------------------------------------------------------


def consumer_role(split: SplitLoop, kind: str, warps: int) -> RoleSchedule:
    """The steps of so many warps of consumers: units, waits for tiles and products, and releases.

    The second product of a loop with a skew belongs to the iteration before. What is no whole iteration
    stands in a prologue and an epilogue then: if a product stood in a branch, ptxas would have each one
    wait for that before (C7514).

    A wait for a tile is a loop, past which ptxas moves no instruction. So what reads a tile under a
    product waits for the tile before that is issued, and what threads compute meanwhile is one piece of
    code, in which exponentials hide the rest.
    """
    return _ConsumerSteps(split, kind, warps).role()


class _ConsumerSteps:
    def __init__(self, split: SplitLoop, kind: str, warps: int) -> None:
        self._split, self._units = split, split.units
        works = {n: work_of(self._units[n], kind) for n in split.order}
        self._products = [n for n, work in works.items() if work is not None]
        self._ahead = _ahead(split, self._products)
        batches = [
            Batch(f"{work.name}/{split.loop.loop_var.name}{n}", (n,))
            for n, work in works.items()
            if work is not None and self._goes_on(n)
        ]
        self._role = RoleSchedule((), tuple(batches), warps)
        self._uses = {
            number: [n for n in split.order if self._units[n].touches.keys() & set(ring.tiles)]
            for number, ring in enumerate(split.rings)
        }
        self._steps: list[Step] = []
        self._going_on: list[int] = []

    def _goes_on(self, product: int) -> bool:
        """Tell whether a product goes on under statements behind it."""
        split = self._split
        if split.skew is not None or product in split.in_flight or product == self._ahead:
            return True
        behind = split.order[split.order.index(product) + 1 :][:1]
        unit = self._units[product]
        return not unit.conditions and any(not unit.conflicts(self._units[n]) for n in behind)

    def _awaited_before(self) -> dict[int, list[int]]:
        """The rings to wait for before each unit: its first user, or the product before that."""
        awaited: dict[int, list[int]] = {}
        product: int | None = None
        for number in self._split.order:
            product = number if self._role.batch_of(number) is not None else product
            rings = [ring for ring, users in self._uses.items() if users[0] == number]
            awaited.setdefault(number if product is None else product, []).extend(rings)
        return awaited

    def role(self) -> RoleSchedule:
        """Products are waited for where a unit needs them to be done."""
        split, skew = self._split, self._split.skew
        awaited, following = self._awaited_before(), list[int]()
        if self._ahead is not None:
            begin = [n for n in awaited if n <= self._products[0]]
            following = [ring for n in begin for ring in awaited.pop(n)]
        for number in split.order if skew is None else skew.issued:
            self._add(Action.WAIT, number, *awaited.get(number, ()))
            self._end([n for n in self._going_on if self._conflict(n, number)])
            self._add(Action.RUN, number, number)
            batch = self._role.batch_of(number)
            if batch is not None:
                self._add(Action.SIGNAL, number, batch)
            if number in split.in_flight and batch is not None:
                self._steps.append(Step(Action.AWAIT, batch, -1))
            if number == self._ahead:
                self._steps += [Step(Action.WAIT, ring, 1) for ring in following]
            if batch is not None and number not in split.in_flight:
                self._going_on.append(number)
            else:
                self._release(number)
        self._end(list(self._going_on))
        return replace(self._role, steps=tuple(self._steps))

    def _add(self, action: Action, unit: int, *subjects: int) -> None:
        skew = self._split.skew
        offset = -1 if skew is not None and unit == skew.second else 0
        self._steps += [Step(action, subject, offset) for subject in subjects]

    def _conflict(self, one: int, other: int) -> bool:
        return bool(self._units[one].conflicts(self._units[other]))

    def _end(self, numbers: Sequence[int]) -> None:
        """Wait for products, and so for those that began before."""
        while any(number in self._going_on for number in numbers):
            first = self._going_on.pop(0)
            batch = self._role.batch_of(first)
            assert batch is not None, "it goes on"
            self._add(Action.AWAIT, first, batch)
            self._release(first)

    def _release(self, number: int) -> None:
        """The release of a copy behind its last use in an iteration, or of the iteration before."""
        for ring, users in self._uses.items():
            if users[-1] != number:
                continue
            tiles = set(self._split.rings[ring].tiles)
            self._end([n for n in self._going_on if not tiles.isdisjoint(self._units[n].touches)])
            if self._split.in_flight.isdisjoint(users):
                self._add(Action.RELEASE, number, ring)
            else:
                self._steps.append(Step(Action.RELEASE, ring, -1))


def _ahead(split: SplitLoop, products: Sequence[int]) -> int | None:
    """The product behind which an iteration waits for tiles of the next one, if it does.

    That is the last one, where all are waited for before the iteration ends: the next ones are issued
    as soon as threads have used the sums then. A buffer copy is held meanwhile.
    """
    if not products or split.in_flight or not split.may_hold_a_copy:
        return None
    if split.skew is not None or split.condition is not None:
        return None
    is_last = products[-1] == split.order[-1]
    return None if is_last or split.units[products[-1]].conditions else products[-1]
