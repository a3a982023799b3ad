"""Plans of pipelined loops, and the buffer copies of tiles that they need."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.ir.annotations import (
    IN_FLIGHT_ANNOTATION,
    ORDER_ANNOTATION,
    STAGE_ANNOTATION,
    STAGES_ANNOTATION,
)
from tvmtile.ir.operands import bits_of, constant, static_shape
from tvmtile.ir.rewriting import contains, reads_no_memory
from tvmtile.passes.tile.pipelining.body import Body, Obstacle, PipelineStmt, body_of
from tvmtile.passes.tile.pipelining.coverage import Coverage
from tvmtile.passes.tile.pipelining.tiles import KernelTiles

PIPELINE_ANNOTATIONS = (
    STAGES_ANNOTATION,
    ORDER_ANNOTATION,
    STAGE_ANNOTATION,
    IN_FLIGHT_ANNOTATION,
)
"""The annotations that make a loop a pipelined one."""


@dataclass(frozen=True)
class PipelinePlan:
    """What a pipelined loop does when."""

    stage: tuple[int, ...]
    order: tuple[int, ...]
    """The stage of each unit, and its place in the order of an iteration."""
    in_flight: frozenset[int] = frozenset()
    """The units whose work goes on until the next iteration has issued its own."""

    @classmethod
    def of_producers(cls, producers: Collection[int], count: int, last: int) -> PipelinePlan:
        """Of so many units: some of them in stage 0, and first in an iteration."""
        issued = sorted(range(count), key=lambda i: (i not in producers, i))
        stage = tuple(0 if i in producers else last for i in range(count))
        return cls(stage, tuple(issued.index(i) for i in range(count)))

    @property
    def distance(self) -> int:
        """How many iterations the first stage runs ahead of the last."""
        return max(self.stage, default=0)

    def precedes(self, first: int, second: int) -> bool:
        """Tell whether a unit runs before another one of the same iteration."""
        return (self.stage[first], self.order[first]) < (self.stage[second], self.order[second])

    def copies_between(self, first: int, second: int) -> int:
        """After how many iterations `second` may touch again what `first` touches."""
        follows = self.order[first] >= self.order[second]
        goes_on = first in self.in_flight and first != second
        return self.stage[first] - self.stage[second] + int(follows) + int(goes_on)


def other_annotations(loop: tirx.For) -> dict[str, object]:
    """The annotations of a loop but those that make it a pipelined one."""
    keys = loop.annotations.keys()  # a TVM map
    return {key: loop.annotations[key] for key in keys if key not in PIPELINE_ANNOTATIONS}


def plan_of(loop: tirx.For) -> PipelinePlan | None:
    """The plan in the annotations of a loop, if it has one."""
    if STAGE_ANNOTATION not in loop.annotations:
        return None
    stages, orders = (
        tuple(int(entry) for entry in loop.annotations[name])
        for name in (STAGE_ANNOTATION, ORDER_ANNOTATION)
    )
    flying = loop.annotations.get(IN_FLIGHT_ANNOTATION, ())
    return PipelinePlan(
        stages, orders, frozenset(i for i, count in enumerate(flying) if int(count))
    )


@dataclass(frozen=True)
class BufferCopies:
    """How many copies of a tile a pipelined loop works with."""

    count: int
    """Iteration `k` works on copy `k % count`, if `is_read_after` is not set."""
    is_read_after: bool
    """The value of the last iteration may be read outside of the loop; then the last iteration works on
    copy 0, since the uses outside of the loop do.
    """


def buffer_copies_of(
    loop: tirx.For, body: Body, plan: PipelinePlan, tiles: KernelTiles
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


def _check_buffer(loop: tirx.For, body: Body, buffer: ir.Var, tiles: KernelTiles) -> bool:
    """Check that a tile can be multi-buffered; tell whether it is read after the loop."""
    name = buffer.name
    if buffer not in tiles.allocated or not buffer.ty.storage_scope.startswith("shared"):
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


def _is_read_outside(loop: tirx.For, buffer: ir.Var, tiles: KernelTiles) -> bool:
    """Tell whether the last value of a tile may be read by something else than the loop.

    What another loop, pipelined or not, reads is its own if the same iteration has written it.
    """
    known: dict[ir.Var, bool] = {loop.loop_var: True}
    for access in tiles.accesses:
        if not access.reads or not tiles.root(access.buffer).same_as(buffer):
            continue
        for other in access.loops:
            if other.loop_var not in known:
                known[other.loop_var] = not _has_loop(other, loop) and _reads_own_values(
                    other, buffer, tiles
                )
        if not any(known[other.loop_var] for other in access.loops):
            return True
    return False


def _has_loop(outer: tirx.For, loop: tirx.For) -> bool:
    return contains(outer, tirx.For, lambda inner: inner.loop_var.same_as(loop.loop_var))


def _reads_own_values(loop: tirx.For, buffer: ir.Var, tiles: KernelTiles) -> bool:
    try:
        units = body_of(loop, tiles, split=True).units
    except Obstacle:
        return False
    return Coverage(buffer, tiles).holds_own_values(units)
