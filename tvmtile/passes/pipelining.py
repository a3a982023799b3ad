"""What the pipelining passes know of a loop: its statements, their dependences, the versions of tiles.

A pipelined loop is cut into units, the statements of its body. A plan gives each unit a stage and a
place in the order: in round `t` of the pipeline a unit of stage `s` does iteration `t - s`, and the
units of a round follow each other in the order. So a unit of stage 0 runs ahead of one of stage 1 by
an iteration.

A plan is right if two units that touch the same buffer, one of them writing, meet in the order in
which they were written. Within an iteration that is a matter of stage and order. Between iterations a
tile gets as many versions as its uses are apart; iteration `k` works on version `k % versions`. Then
an iteration finds in its version what it wrote itself and nothing else, so every element that it
reads must have been written in the same iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm_ffi
from tvm import DataType, ir, tirx
from tvm.tirx import CallEffectKind
from tvm_ffi import structural_equal

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import SourceLocation
from tvmtile.language.loops import ORDER_ANNOTATION, STAGE_ANNOTATION, STAGES_ANNOTATION
from tvmtile.passes.accesses import Access, accesses_of
from tvmtile.passes.kernels import flattened, is_thread_return, leaves_loop, statements_of
from tvmtile.rewriting import contains, is_stable, seq, substitute, with_fresh_variables
from tvmtile.tileop.operands import constant, extents_of, origin_of
from tvmtile.tileop.registry import operator_of

__all__ = [
    "PIPELINE_ANNOTATIONS",
    "Body",
    "KernelTiles",
    "Obstacle",
    "Plan",
    "Unit",
    "Versions",
    "body_of",
    "plan_of",
    "versions_of",
]

PIPELINE_ANNOTATIONS = (STAGES_ANNOTATION, ORDER_ANNOTATION, STAGE_ANNOTATION)
"""The annotations that make a loop a pipelined one."""

_MOST_STEPS = 64  # iterations of a serial loop that are followed one by one


class Obstacle(Exception):
    """A loop can't be pipelined by a plan; the message is the reason.

    Attributes
    ----------
    buffer : Var or None
        The tile that is in the way.
    """

    def __init__(self, reason: str, buffer: ir.Var | None = None) -> None:
        super().__init__(reason)
        self.buffer = buffer


@dataclass(frozen=True)
class Plan:
    """The stage of each unit of a loop, and its place in the order of a round."""

    stage: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def distance(self) -> int:
        """How many iterations the first stage runs ahead of the last."""
        return max(self.stage, default=0)

    def precedes(self, first: int, second: int) -> bool:
        """Tell whether a unit runs before another one of the same iteration."""
        return (self.stage[first], self.order[first]) < (self.stage[second], self.order[second])

    def versions_between(self, first: int, second: int) -> int:
        """After how many iterations `second` may touch again what `first` touches."""
        late = self.order[first] >= self.order[second]
        return self.stage[first] - self.stage[second] + int(late)


def plan_of(loop: tirx.For) -> Plan | None:
    """The plan in the annotations of a loop, if it has one."""
    if STAGE_ANNOTATION not in loop.annotations:
        return None
    stages, orders = (
        tuple(int(entry) for entry in loop.annotations[name])
        for name in (STAGE_ANNOTATION, ORDER_ANNOTATION)
    )
    return Plan(stages, orders)


# The kernel --------------------------------------------------------------------------------------


class KernelTiles:
    """The buffers of a kernel.

    Attributes
    ----------
    allocated : dict of Var to AllocBuffer
        What the kernel allocates.
    views : dict of Var to DeclBuffer
        Other views of a buffer's memory.
    accesses : list of Access
        All uses, views resolved.
    threads : list of For
        The loops that bind the indices of threads.
    """

    def __init__(self, kernel: tirx.For) -> None:
        self.allocated: dict[ir.Var, tirx.AllocBuffer] = {}
        self.views: dict[ir.Var, tirx.DeclBuffer] = {}
        self.threads: list[tirx.For] = []
        self._roots: dict[ir.Var, ir.Var] = {}
        tvm_ffi.structural_walk(
            kernel,
            [
                (tirx.AllocBuffer, lambda node: self.allocated.__setitem__(node.buffer, node)),
                (tirx.DeclBuffer, self._note_view),
                (tirx.For, self._note_thread),
            ],
            order="pre",
        )
        self.accesses = accesses_of(kernel)
        self._named = _names_outside_of_accesses(kernel)

    def _note_view(self, view: tirx.DeclBuffer) -> None:
        self.views[view.buffer] = view
        found: list[ir.Var] = []
        tvm_ffi.structural_walk(view.data, (ir.Var, found.append))
        source = next((var for var in found if is_buffer_var(var)), None)
        if source is not None:
            self._roots[view.buffer] = self.root(source)

    def _note_thread(self, loop: tirx.For) -> None:
        if loop.thread_binding is not None:
            self.threads.append(loop)

    def root(self, buffer: ir.Var) -> ir.Var:
        """The buffer that was allocated."""
        return self._roots.get(buffer, buffer)

    def views_of(self, buffer: ir.Var) -> list[ir.Var]:
        """The views of an allocated buffer."""
        return [view for view, root in self._roots.items() if root.same_as(buffer)]

    def is_named(self, buffer: ir.Var) -> bool:
        """Tell whether a buffer, or its address, is handed to something as a whole."""
        return any(name in self._named for name in (buffer, *self.views_of(buffer)))


def _names_outside_of_accesses(kernel: tirx.For) -> set[ir.Var]:
    """The buffers that stand somewhere else than in a load, a store, a region or a declaration."""
    named: set[ir.Var] = set()

    def children(nodes: Any, mutator: Any) -> None:
        for node in nodes:
            mutator.mutate(node)

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        children(node.indices, mutator)
        return node

    def store(node: tirx.BufferStore, mutator: Any) -> Any:
        children([node.value, *node.indices], mutator)
        return node

    def region(node: ir.TensorRegion, mutator: Any) -> Any:
        children([part for r in node.region for part in (r.min, r.extent)], mutator)
        return node

    def call(node: ir.Call, mutator: Any) -> Any:
        op = operator_of(node)
        own = [] if op is None else op.fixes_layout_of()
        rest = [arg for arg in node.args if not any(arg.same_as(buffer) for buffer in own)]
        children(rest, mutator)
        return node

    def variable(node: ir.Var, mutator: Any) -> Any:
        del mutator
        if is_buffer_var(node):
            named.add(node)
        return node

    def declaration(node: Any, mutator: Any) -> Any:
        del mutator
        return node

    tvm_ffi.structural_mutate(
        kernel,
        [
            (ir.TensorLoad, load),
            (tirx.BufferStore, store),
            (ir.TensorRegion, region),
            (ir.Call, call),
            ((tirx.AllocBuffer, tirx.DeclBuffer), declaration),
            (ir.Var, variable),
        ],
    )
    return named


# The body of a loop ------------------------------------------------------------------------------


@dataclass
class Unit:
    """A statement of a pipelined loop, which a plan moves as a whole.

    Attributes
    ----------
    stmt : Stmt
        The statement.
    conditions : list of Expr
        Those under which it runs, where they have the same value anywhere in an iteration.
    inner : Stmt
        The statement without these conditions.
    reads, writes : set of Var
        The buffers that it touches, views resolved, and the names that it uses or binds.
    accesses : list of Access
        What it does to buffers.
    """

    stmt: tirx.Stmt
    conditions: list[Any]
    inner: tirx.Stmt
    accesses: list[Access]
    reads: set[ir.Var]
    writes: set[ir.Var]

    @property
    def binds(self) -> bool:
        """Tell whether it binds a name."""
        return isinstance(self.stmt, tirx.Bind)

    @property
    def has_effects(self) -> bool:
        """Tell whether it does more than to compute and to write buffers: a barrier, a print."""
        return contains(self.stmt, ir.Call, _has_effect)

    @property
    def location(self) -> SourceLocation | None:
        """The user's line."""
        return next((a.location for a in self.accesses if a.location is not None), None)

    def describe(self) -> str:
        """The statement as messages show it."""
        if isinstance(self.stmt, tirx.Bind):
            return f"the binding of {self.stmt.var.name}"
        where = f" in line {self.location.line}" if self.location is not None else ""
        return f"the statement{where}"


def _has_effect(call: ir.Call) -> bool:
    if operator_of(call) is not None:
        return False
    if not isinstance(call.op, ir.Op):
        return True
    effect = int(call.op.get_attr("TCallEffectKind"))
    return effect > int(CallEffectKind.Pure.value) and call.op.name != "tirx.address_of"


@dataclass
class Body:
    """The body of a pipelined loop, taken apart.

    Attributes
    ----------
    declarations : list of Stmt
        Allocations and views, which hold for all iterations.
    bindings : dict of Var to Bind
        Names with a value that can be computed again anywhere in an iteration, in program order.
    units : list of Unit
        What a plan gives a stage to.
    """

    declarations: list[tirx.Stmt] = field(default_factory=list)
    bindings: dict[ir.Var, tirx.Bind] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)

    def bindings_for(self, statements: Sequence[tirx.Stmt]) -> list[tirx.Bind]:
        """The bindings that statements use, directly or through others, in program order."""
        needed: set[ir.Var] = set()
        pending = [var for stmt in statements for var in _variables(stmt)]
        while pending:
            var = pending.pop()
            if var in self.bindings and var not in needed:
                needed.add(var)
                pending.extend(_variables(self.bindings[var].value))
        return [bind for var, bind in self.bindings.items() if var in needed]


def body_of(loop: tirx.For, tiles: KernelTiles, *, split: bool = False) -> Body:
    """Take the body of a loop apart.

    Parameters
    ----------
    loop : For
        A loop of a kernel.
    tiles : KernelTiles
        Of the kernel.
    split : bool
        Make several units of a branch that holds several statements, if its condition can be computed
        again for each.

    Raises
    ------
    Obstacle
        If an iteration may end early.
    """
    if leaves_loop(loop.body) or contains(loop.body, tirx.Evaluate, is_thread_return):
        raise Obstacle("an iteration may be left early")
    written = {tiles.root(a.buffer) for a in accesses_of(loop.body) if a.writes}
    body = Body()
    scheduled: set[ir.Var] = set()

    def is_replayable(value: Any) -> bool:
        return (
            not contains(value, ir.Call, _has_effect)
            and not contains(value, ir.Call, lambda call: operator_of(call) is not None)
            and not contains(value, ir.TensorLoad, lambda x: tiles.root(x.source) in written)
            and not scheduled.intersection(_variables(value))
        )

    for stmt in flattened(loop.body):
        if isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer):
            if {loop.loop_var, *body.bindings, *scheduled}.intersection(_variables(stmt)):
                raise Obstacle(f"{stmt.buffer.name} is declared anew in each iteration")
            body.declarations.append(stmt)
        elif isinstance(stmt, tirx.Bind) and is_replayable(stmt.value):
            body.bindings[stmt.var] = stmt
        else:
            parts = _split(stmt, is_replayable) if split else [stmt]
            body.units.extend(_unit(part, tiles, is_replayable) for part in parts)
            if isinstance(stmt, tirx.Bind):
                scheduled.add(stmt.var)
    return body


def _split(stmt: tirx.Stmt, is_replayable: Any) -> list[tirx.Stmt]:
    """A branch as branches of one statement each, where that means the same."""
    if not _is_guard(stmt, is_replayable):
        return [stmt]
    inside = list(flattened(stmt.then_case))
    bound: list[tirx.Bind] = []
    parts: list[tirx.Stmt] = []
    for child in inside:
        if isinstance(child, tirx.AllocBuffer | tirx.DeclBuffer):
            return [stmt]
        if isinstance(child, tirx.Bind):
            if not is_replayable(child.value):
                return [stmt]
            bound.append(child)
            continue
        for part in _split(child, is_replayable):
            names = Body(bindings={bind.var: bind for bind in bound}).bindings_for([part])
            inner = seq([*names, part])
            parts.append(
                with_fresh_variables(tirx.IfThenElse(stmt.condition, inner, None, stmt.span))
            )
    return parts


def _is_guard(stmt: tirx.Stmt, is_replayable: Any) -> bool:
    return (
        isinstance(stmt, tirx.IfThenElse)
        and stmt.else_case is None
        and is_replayable(stmt.condition)
    )


def _unit(stmt: tirx.Stmt, tiles: KernelTiles, is_replayable: Any) -> Unit:
    accesses = accesses_of(stmt)
    names = {var for var in _variables(stmt) if not is_buffer_var(var)}
    reads = {tiles.root(a.buffer) for a in accesses if a.reads} | names
    writes = {tiles.root(a.buffer) for a in accesses if a.writes}
    if isinstance(stmt, tirx.Bind):
        reads.discard(stmt.var)
        writes.add(stmt.var)
    conditions, inner = [], stmt
    while _is_guard(inner, is_replayable):
        conditions.append(inner.condition)
        inner = inner.then_case
    return Unit(stmt, conditions, inner, accesses, reads, writes)


def _variables(node: Any) -> list[ir.Var]:
    found: list[ir.Var] = []
    tvm_ffi.structural_walk(node, (ir.Var, found.append))
    return found


# Versions ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Versions:
    """How many versions of a tile a loop works with.

    Attributes
    ----------
    count : int
        Iteration `k` works on version `k % count`, if `is_read_after` is not set.
    is_read_after : bool
        The value of the last iteration may be read outside of the loop; then version 0 is that of
        the last iteration, since the uses outside are of version 0.
    """

    count: int
    is_read_after: bool


def versions_of(
    loop: tirx.For, body: Body, plan: Plan, tiles: KernelTiles
) -> dict[ir.Var, Versions]:
    """Check a plan, and say which tiles need several versions.

    Parameters
    ----------
    loop : For
        The loop.
    body : Body
        Of the loop.
    plan : Plan
        An entry a unit.
    tiles : KernelTiles
        Of the kernel.

    Raises
    ------
    Obstacle
        If the plan changes what the loop computes.
    """
    counts: dict[ir.Var, int] = {}
    for first, second, shared in _conflicts(body.units):
        if first < second and not plan.precedes(first, second):
            name, unit = next(iter(shared)).name, body.units[second]
            raise Obstacle(
                f"{unit.describe()} would run before what it depends on by {name}",
                next((var for var in shared if is_buffer_var(var)), None),
            )
        for var in shared:
            counts[var] = max(counts.get(var, 1), plan.versions_between(first, second))
    _check_bindings(body, plan)
    several = {var: count for var, count in counts.items() if count > 1 and is_buffer_var(var)}
    return {
        var: Versions(count, _checked_version(loop, body, var, tiles))
        for var, count in several.items()
    }


def _conflicts(units: Sequence[Unit]) -> Iterator[tuple[int, int, set[ir.Var]]]:
    """Pairs of units, in both directions, and what they share that one of them writes."""
    for first, x in enumerate(units):
        for second, y in enumerate(units):
            shared = (x.writes & (y.reads | y.writes)) | (x.reads & y.writes)
            if shared:
                yield first, second, shared


def _check_bindings(body: Body, plan: Plan) -> None:
    """A name that can't be computed again is known only in the group of units that binds it."""
    places = sorted(range(len(body.units)), key=lambda unit: plan.order[unit])
    for binding, unit in enumerate(body.units):
        if not unit.binds:
            continue
        users = [i for i, other in enumerate(body.units) if unit.writes & other.reads]
        ends = [places.index(i) for i in (binding, *users)]
        between = places[min(ends) : max(ends) + 1]
        if len({plan.stage[i] for i in between}) > 1:
            raise Obstacle(
                f"{unit.describe()} reads what the loop writes, and another stage uses its value"
            )


def _checked_version(loop: tirx.For, body: Body, buffer: ir.Var, tiles: KernelTiles) -> bool:
    """Check that a tile can have versions; tell whether it is read after the loop."""
    name = buffer.name
    if buffer not in tiles.allocated or not buffer.ty.storage_scope.startswith("shared"):
        raise Obstacle(
            f"{name} would need several versions, which only tiles in shared memory have", buffer
        )
    if buffer.ty.strides:
        raise Obstacle(f"{name} has strides of its own", buffer)
    views = tiles.views_of(buffer)
    if tiles.is_named(buffer) or not all(_is_whole(view, buffer) for view in views):
        raise Obstacle(f"the memory of {name} is used by its address or in part", buffer)
    coverage = _Coverage(buffer, tiles)
    if not coverage.holds_own_values(body.units):
        raise Obstacle(
            f"an iteration may read elements of {name} that it has not written itself", buffer
        )
    if not _is_read_outside(loop, buffer, tiles):
        return False
    if not is_stable(loop.min + loop.extent):
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
    return starts and not view.ty.strides and _bits(view) == _bits(buffer) is not None


def _bits(buffer: ir.Var) -> int | None:
    """The bits of a buffer's elements, None where its shape is not constant."""
    extents = [constant(extent) for extent in buffer.ty.shape]
    known = [extent for extent in extents if extent is not None]
    if len(known) < len(extents):
        return None
    return int(np.prod(known)) * DataType(str(buffer.ty.dtype)).bits


def _is_read_outside(loop: tirx.For, buffer: ir.Var, tiles: KernelTiles) -> bool:
    """Tell whether the last value of a tile may be read by something else than the loop."""
    others: dict[ir.Var, tirx.For] = {}
    for access in tiles.accesses:
        around = list(access.loops)
        if not access.reads or not tiles.root(access.buffer).same_as(buffer):
            continue
        if any(other.loop_var.same_as(loop.loop_var) for other in around):
            continue
        pipelined = next(
            (x for x in around if set(PIPELINE_ANNOTATIONS) & set(x.annotations)), None
        )
        if pipelined is None:
            return True
        others[pipelined.loop_var] = pipelined
    return not all(_reads_own_values(other, buffer, tiles) for other in others.values())


def _reads_own_values(loop: tirx.For, buffer: ir.Var, tiles: KernelTiles) -> bool:
    try:
        units = body_of(loop, tiles, split=True).units
    except Obstacle:
        return False
    return _Coverage(buffer, tiles).holds_own_values(units)


class _Coverage:
    """Which elements of a tile an iteration has written, as a mask over the tile."""

    def __init__(self, buffer: ir.Var, tiles: KernelTiles) -> None:
        self._buffer = buffer
        self._tiles = tiles
        self._shape = tuple(constant(extent) or 0 for extent in buffer.ty.shape)
        self._ranges = {
            loop.loop_var: range(int(loop.extent))
            for loop in tiles.threads
            if constant(loop.extent) is not None
        }

    def holds_own_values(self, units: Sequence[Unit]) -> bool:
        """Tell whether an iteration reads only what it has written before."""
        if 0 in self._shape:
            return False
        for position, unit in enumerate(units):
            if self._buffer not in unit.reads:
                continue
            before = [u for u in units[:position] if _implied(u.conditions, unit.conditions)]
            if not self._written_by(before)[self._read_by(unit)].all():
                return False
        return True

    def is_complete(self, units: Sequence[Unit]) -> bool:
        """Tell whether every iteration writes the whole tile."""
        return bool(self._written_by([u for u in units if not u.conditions]).all())

    def _read_by(self, unit: Unit) -> tuple[slice, ...]:
        everything = tuple(slice(None) for _ in self._shape)
        op = operator_of(unit.inner.value) if isinstance(unit.inner, tirx.Evaluate) else None
        if op is None:
            return everything
        operands = [o for o in op.reads() if self._tiles.root(o.source).same_as(self._buffer)]
        boxes = [self._box(o) if o.source.same_as(self._buffer) else None for o in operands]
        return boxes[0] if len(boxes) == 1 and boxes[0] is not None else everything

    def _written_by(self, units: Sequence[Unit]) -> np.ndarray:
        mask = np.zeros(self._shape, bool)
        for unit in units:
            if self._buffer in unit.writes:
                mask |= self._written(unit.inner, {})
        return mask

    def _written(self, stmt: tirx.Stmt, parallel: Mapping[ir.Var, range]) -> np.ndarray:
        nothing = np.zeros(self._shape, bool)
        if isinstance(stmt, tirx.Evaluate):
            return self._by_operator(stmt)
        if isinstance(stmt, tirx.BufferStore):
            return self._by_store(stmt, parallel)
        if isinstance(stmt, tirx.SeqStmt):
            return np.logical_or.reduce([self._written(s, parallel) for s in stmt.seq])
        if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is not None:
            cases = [self._written(case, parallel) for case in statements_of(stmt)]
            return np.logical_and.reduce(cases)
        if not isinstance(stmt, tirx.For):
            return nothing
        first, extent = constant(stmt.min), constant(stmt.extent)
        if first is None or extent is None or extent < 1:
            return nothing
        steps = range(first, first + extent)
        if stmt.kind != tirx.ForKind.SERIAL:
            return self._written(stmt.body, {**parallel, stmt.loop_var: steps})
        if extent > _MOST_STEPS:
            return nothing
        dtype = str(stmt.loop_var.ty.dtype)
        bodies = [substitute(stmt.body, {stmt.loop_var: tirx.const(i, dtype)}) for i in steps]
        return np.logical_or.reduce([self._written(body, parallel) for body in bodies])

    def _by_operator(self, stmt: tirx.Evaluate) -> np.ndarray:
        mask = np.zeros(self._shape, bool)
        op = operator_of(stmt.value)
        if op is None or not op.is_tile:
            return mask
        for operand in op.writes():
            box = self._box(operand)
            if operand.source.same_as(self._buffer) and box is not None:
                mask[box] = True
        return mask

    def _by_store(self, store: tirx.BufferStore, parallel: Mapping[ir.Var, range]) -> np.ndarray:
        """A store whose indices are constants and different loop variables writes a box."""
        mask = np.zeros(self._shape, bool)
        if not store.buffer.same_as(self._buffer):
            return mask
        ranges = {**self._ranges, **parallel}
        box = []
        for index in store.indices:
            if isinstance(index, ir.Var) and index in ranges:
                steps = ranges.pop(index)
                box.append(slice(max(steps.start, 0), steps.stop))
                continue
            value = constant(index)
            if value is None:
                return mask
            box.append(slice(value, value + 1))
        mask[tuple(box)] = True
        return mask

    def _box(self, operand: Any) -> tuple[slice, ...] | None:
        origin = [constant(low) for low in origin_of(operand)]
        extents = [constant(extent) for extent in extents_of(operand) or []]
        if None in origin or None in extents:
            return None
        return tuple(
            slice(low, low + extent)
            for low, extent in zip(origin, extents, strict=True)
            if low is not None and extent is not None
        )


def _implied(conditions: Sequence[Any], known: Sequence[Any]) -> bool:
    return all(any(structural_equal(c, k) for k in known) for c in conditions)
