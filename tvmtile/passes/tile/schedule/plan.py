"""Plans of pipelined loops: stage and order of each unit, and the buffer copies that this needs.

In iteration `t` of the pipelined loop a unit of stage `s` does iteration `t - s` of the source loop,
and the units follow each other in the order. So a unit of stage 0 runs ahead of one of stage 1 by an
iteration.

A plan is right if two units that touch the same buffer, one of them writing, keep the order in
which they were written. Within an iteration that is a matter of stage and order. Between iterations a
tile gets as many buffer copies as its uses are apart; iteration `k` works on copy `k % count`. Then an
iteration finds in its copy what it wrote itself and nothing else, so every element that it reads must
have been written in the same iteration.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.analysis.kernel_info import KernelInfo
from tvmtile.ir.annotations import (
    ORDER_ANNOTATION,
    STAGE_ANNOTATION,
    STAGES_ANNOTATION,
)
from tvmtile.ir.asynchronous import Kind
from tvmtile.ir.kernels import flattened, is_parallel, statements_of
from tvmtile.ir.operands import bits_of, constant, static_shape
from tvmtile.ir.operators import copied, operator_of
from tvmtile.ir.rewriting import contains, reads_no_memory
from tvmtile.ir.scopes import is_shared, is_tensor
from tvmtile.passes.tile.schedule.body import (
    Body,
    Coverage,
    Obstacle,
    PipelineStmt,
    body_of,
)
from tvmtile.tileop.registry import implementation_of

PLAN = "tvmtile.plan"
"""Annotation of a loop with a plan: its number, until the loop is written out."""
PIPELINE_ANNOTATIONS = (STAGES_ANNOTATION, ORDER_ANNOTATION, STAGE_ANNOTATION, PLAN)
"""The annotations that make a loop a pipelined one."""


@dataclass(frozen=True)
class PipelinePlan:
    """The stage and the order of each unit of a pipelined loop, and the copies of its buffers."""

    stage: tuple[int, ...]
    order: tuple[int, ...]
    """The stage of each unit, and its place in the order of an iteration."""
    in_flight: frozenset[int] = frozenset()
    """The units whose work goes on until the next iteration has issued its own."""

    @classmethod
    def of_producers(cls, producers: Collection[int], count: int, last: int) -> PipelinePlan:
        """The plan of so many units: some of them in stage 0, and first in an iteration."""
        issued = sorted(range(count), key=lambda i: (i not in producers, i))
        stage = tuple(0 if i in producers else last for i in range(count))
        return cls(stage, tuple(issued.index(i) for i in range(count)))

    @property
    def distance(self) -> int:
        """The number of iterations that the first stage runs ahead of the last."""
        return max(self.stage, default=0)

    def precedes(self, first: int, second: int) -> bool:
        """Tell whether a unit runs before another one of the same iteration."""
        return (self.stage[first], self.order[first]) < (self.stage[second], self.order[second])

    def copies_between(self, first: int, second: int) -> int:
        """The number of iterations after which `second` may touch again what `first` touches."""
        follows = self.order[first] >= self.order[second]
        goes_on = first in self.in_flight and first != second
        return self.stage[first] - self.stage[second] + int(follows) + int(goes_on)


def other_annotations(loop: tirx.For) -> dict[str, object]:
    """The annotations of a loop but those that make it a pipelined one."""
    keys = loop.annotations.keys()  # a TVM map
    return {key: loop.annotations[key] for key in keys if key not in PIPELINE_ANNOTATIONS}


@dataclass(frozen=True)
class BufferCopies:
    """The copies of a tile that a pipelined loop works with."""

    count: int
    """Iteration `k` works on copy `k % count`, if `is_read_after` is not set."""
    is_read_after: bool
    """The value of the last iteration may be read outside of the loop; then the last iteration works on
    copy 0, since the uses outside of the loop do.
    """


def buffer_copies_of(
    loop: tirx.For, body: Body, plan: PipelinePlan, tiles: KernelInfo
) -> dict[ir.Var, BufferCopies]:
    """Check a plan, and say which tiles need several buffer copies.

    Raises
    ------
    Obstacle
        If the plan changes what the loop computes.
    """
    counts: dict[ir.Var, int] = {}
    for first, second, shared in _conflicts(body.units):
        if first < second and not plan.precedes(first, second):
            name, unit = shared[0].name, body.units[second]
            raise Obstacle(
                f"{unit.describe()} would run before what it depends on by {name}",
                next((var for var in shared if is_buffer_var(var)), None),
            )
        for var in shared:
            counts[var] = max(counts.get(var, 1), plan.copies_between(first, second))
    _check_bindings(body, plan)
    several = {var: count for var, count in counts.items() if count > 1 and is_buffer_var(var)}
    return {
        var: BufferCopies(count, _check_buffer(loop, body, var, tiles))
        for var, count in several.items()
    }


def _conflicts(units: Sequence[PipelineStmt]) -> Iterator[tuple[int, int, list[ir.Var]]]:
    """Pairs of units, in both directions, and what they share that one of them writes."""
    for first, x in enumerate(units):
        for second, y in enumerate(units):
            shared = x.conflicts(y)
            if shared:
                yield first, second, shared


def _check_bindings(body: Body, plan: PipelinePlan) -> None:
    """A name that can't be computed again is known only in the group of units that binds it."""
    places = sorted(range(len(body.units)), key=lambda unit: plan.order[unit])
    for binding, unit in enumerate(body.units):
        if not unit.binds:
            continue
        users = [i for i, other in enumerate(body.units) if unit.writes.keys() & other.reads]
        ends = [places.index(i) for i in (binding, *users)]
        between = places[min(ends) : max(ends) + 1]
        if len({plan.stage[i] for i in between}) > 1:
            raise Obstacle(
                f"{unit.describe()} reads what the loop writes, and another stage uses its value"
            )


def _check_buffer(loop: tirx.For, body: Body, buffer: ir.Var, tiles: KernelInfo) -> bool:
    """Check that a tile can be multi-buffered; tell whether it is read after the loop."""
    name = buffer.name
    if buffer not in tiles.allocated or not is_shared(buffer):
        raise Obstacle(
            f"{name} would need several buffer copies, which only tiles in shared memory have",
            buffer,
        )
    if buffer.ty.strides:
        raise Obstacle(f"{name} has strides of its own", buffer)
    views = tiles.views_of(buffer)
    if tiles.escapes(buffer) or not all(_is_whole(view, buffer) for view in views):
        raise Obstacle(f"the memory of {name} is used by its address or in part", buffer)
    coverage = Coverage(buffer, tiles)
    if not coverage.holds_own_values(body.units):
        raise Obstacle(
            f"an iteration may read elements of {name} that it has not written itself", buffer
        )
    if not _is_read_outside(loop, buffer, tiles):
        return False
    if not reads_no_memory(loop.min + loop.extent):
        raise Obstacle(
            f"{name} is read outside of the loop, whose bounds are read from memory", buffer
        )
    if not coverage.is_complete(body.units):
        raise Obstacle(
            f"{name} is read outside of the loop, and an iteration may not write all of it", buffer
        )
    return True


def _is_whole(view: ir.Var, buffer: ir.Var) -> bool:
    """Tell whether a view has all bytes of its buffer, and no others."""
    starts = constant(view.ty.elem_offset) == 0 if view.ty.elem_offset is not None else True
    own, whole = (math.prod(static_shape(each)) * bits_of(each) for each in (view, buffer))
    return starts and not view.ty.strides and own == whole > 0


def _is_read_outside(loop: tirx.For, buffer: ir.Var, tiles: KernelInfo) -> bool:
    """Tell whether the last value of a tile may be read by something else than the loop.

    What another loop, pipelined or not, reads is its own if the same iteration has written it.
    """
    known: dict[ir.Var, bool] = {loop.loop_var: True}
    for access in tiles.effects_on(buffer):
        if not access.reads:
            continue
        for other in access.around:
            if other.loop_var not in known:
                known[other.loop_var] = not _has_loop(other, loop) and _reads_own_values(
                    other, buffer, tiles
                )
        if not any(known[other.loop_var] for other in access.around):
            return True
    return False


def _has_loop(outer: tirx.For, loop: tirx.For) -> bool:
    return contains(outer, tirx.For, lambda inner: inner.loop_var.same_as(loop.loop_var))


def _reads_own_values(loop: tirx.For, buffer: ir.Var, tiles: KernelInfo) -> bool:
    try:
        units = body_of(loop, tiles, split=True).units
    except Obstacle:
        return False
    return Coverage(buffer, tiles).holds_own_values(units)


# What runs ahead ----------------------------------------------------------------------------------


class Producers:
    """The units that run ahead: copies from global memory into shared tiles, and what they need."""

    def __init__(self, units: Sequence[PipelineStmt], tiles: KernelInfo) -> None:
        self._units = units
        self._tiles = tiles
        self._refused: dict[int, str] = {}
        self._copies = [i for i in range(len(units)) if self._is_copy(i)]

    @property
    def refused(self) -> list[tuple[PipelineStmt, str]]:
        """The copies that can't run ahead, and why."""
        return [(self._units[i], self._refused[i]) for i in self._copies if i in self._refused]

    def refuse_writers_of(self, buffer: ir.Var | None, reason: str) -> None:
        """Leave the copies into a tile with the consumers."""
        writers = [
            i
            for i, unit in enumerate(self._units)
            if i not in self._refused and (buffer is None or buffer in unit.writes)
        ]
        if not writers:
            raise Obstacle(reason, buffer)
        self._refused.update(dict.fromkeys(writers, reason))

    def ahead(self) -> frozenset[int]:
        """The producers.

        Raises
        ------
        Obstacle
            If there are none.
        """
        producers = self._closed()
        if not producers:
            none = "nothing copies from global memory into a shared tile"
            raise Obstacle(next((reason for _, reason in self.refused), none))
        return frozenset(producers)

    def _is_copy(self, index: int) -> bool:
        return (
            self._may_run_ahead(index)
            and not self._computes(index)
            and any(map(is_tensor, self._units[index].reads))
        )

    def _computes(self, index: int) -> bool:
        """Tell whether a unit is a nest that needs what the iteration has copied.

        Weights that are dequantised with scales from global memory are such; that the copy runs ahead
        is worth more than that the nest does.
        """
        unit = self._units[index]
        others = [other for number, other in enumerate(self._units) if number != index]
        return isinstance(unit.inner, tirx.For) and any(
            is_buffer_var(var) and is_shared(var) and any(var in other.writes for other in others)
            for var in unit.reads
        )

    def _may_run_ahead(self, index: int) -> bool:
        unit = self._units[index]
        return (
            not unit.binds
            and not unit.has_effects
            and bool(unit.writes)
            and all(var in self._tiles.allocated and is_shared(var) for var in unit.writes)
        )

    def _closed(self) -> set[int]:
        """The copies with what they need, but for those that need a consumer."""
        producers = {i for i in self._copies if i not in self._refused}
        while True:
            found = next(self._dependences(producers), None)
            if found is None:
                return producers
            unit, needed, name = found
            if needed < unit and needed not in self._refused and self._may_run_ahead(needed):
                producers.add(needed)
                continue
            other = self._units[needed]
            self._refused[unit] = f"it depends on {other.describe()} by {name}"
            producers.discard(unit)

    def _dependences(self, producers: set[int]) -> Any:
        """Producers, the consumers that they depend on, and by which buffer or name."""
        for i in sorted(producers):
            unit = self._units[i]
            for j, other in enumerate(self._units):
                if j in producers:
                    continue
                needs = unit.conflicts(other)
                if i < j:
                    needs = [var for var in needs if var in unit.reads and var in other.writes]
                if needs:
                    yield i, j, needs[0].name


# What may be asynchronous: nothing needs it in its own stage --------------------------------------


def async_units(units: Sequence[PipelineStmt], plan: PipelinePlan, tiles: KernelInfo) -> list[bool]:
    """Tell of each unit whether what it writes may arrive when a later stage begins.

    That is so of moves into shared tiles which the rest of their iteration touches in later stages
    only. An element is not moved twice in a group, since the copies of a thread arrive in any order;
    nor is it moved from a tensor that the kernel writes.
    """
    later = later_units(units, plan, tiles)
    return [is_later and _is_move(unit.inner) for is_later, unit in zip(later, units, strict=True)]


def later_units(units: Sequence[PipelineStmt], plan: PipelinePlan, tiles: KernelInfo) -> list[bool]:
    """The same of units that may compute what they write."""
    written = tiles.written
    return [
        unit.writes.keys().isdisjoint(unit.reads)
        and all(is_buffer_var(var) and is_shared(var) for var in unit.writes)
        and not any(is_tensor(var) and var in written for var in unit.reads)
        and _is_used_later(number, units, plan)
        for number, unit in enumerate(units)
    ]


def _is_move(stmt: tirx.Stmt) -> bool:
    if isinstance(stmt, tirx.SeqStmt):  # names, and what they are for
        *names, last = flattened(stmt)
        return all(isinstance(name, tirx.Bind) for name in names) and _is_move(last)
    if isinstance(stmt, tirx.IfThenElse):
        return all(_is_move(case) for case in statements_of(stmt))
    if isinstance(stmt, tirx.For):
        return is_parallel(stmt)
    return copied(operator_of(stmt)) is not None


def _is_used_later(number: int, units: Sequence[PipelineStmt], plan: PipelinePlan) -> bool:
    """Tell whether other units touch what one writes before it, or in later stages, and some do."""
    written = units[number].writes.keys()
    users = [
        other
        for other, unit in enumerate(units)
        if other != number and written & unit.touches.keys()
    ]
    later = [other for other in users if plan.stage[other] > plan.stage[number]]
    return bool(later) and all(other in later or plan.precedes(other, number) for other in users)


# What may go on while the next iteration begins ---------------------------------------------------


def with_work_in_flight(
    plan: PipelinePlan, units: Sequence[PipelineStmt], kind: str
) -> PipelinePlan:
    """A plan in which work of the last stage goes on until the next iteration has issued its own.

    These are operators whose implementation is waited for by a token, if nothing else in the loop
    touches the registers that they work on, and what they read in shared memory is written by the first
    stage only, or not in the loop. They hold the buffer copies that they read for one more iteration,
    so the first stage runs less far ahead; where it would not at all, they are waited for at once.
    """
    ahead = {number for number, stage in enumerate(plan.stage) if stage == 0}
    in_flight = units_in_flight(units, ahead, kind)
    if plan.distance < 2 or not in_flight:
        return plan
    return PipelinePlan(tuple(max(0, stage - 1) for stage in plan.stage), plan.order, in_flight)


def units_in_flight(
    units: Sequence[PipelineStmt], ahead: Collection[int], kind: str
) -> frozenset[int]:
    """The units of which that holds, where some run ahead."""
    return frozenset(n for n in range(len(units)) if _may_go_on(n, units, ahead, kind))


def _may_go_on(
    number: int, units: Sequence[PipelineStmt], ahead: Collection[int], kind: str
) -> bool:
    unit = units[number]
    if number in ahead or unit.conditions or work_of(unit, kind) is None:
        return False
    return all(
        _may_use(var, unit, other, runs_ahead=place in ahead)
        for place, other in enumerate(units)
        if place != number
        for var in unit.touches.keys() & other.touches.keys()
    )


def _may_use(var: ir.Var, unit: PipelineStmt, other: PipelineStmt, *, runs_ahead: bool) -> bool:
    """Tell whether another unit may use what one works on."""
    if not is_buffer_var(var):
        return True
    if not is_shared(var):
        return False
    return runs_ahead or (var not in unit.writes and var not in other.writes)


def work_of(unit: PipelineStmt, kind: str) -> Kind | None:
    """The asynchronous work that an operator issues by itself on a kind of target; None of others."""
    op = operator_of(unit.stmt.value) if isinstance(unit.stmt, tirx.Evaluate) else None
    chosen = implementation_of(op, kind) if op is not None and op.effects().is_complete else None
    return chosen.work if chosen is not None else None
