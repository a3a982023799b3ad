"""The body of a pipelined loop, cut into the units that a schedule moves, and what they touch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import PURE, buffer_of, indices_of, is_buffer_var
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.kernel_info import KernelInfo
from tvmtile.errors import SourceLocation
from tvmtile.ir.calls import effect_of, takes_address
from tvmtile.ir.kernels import flattened, is_thread_return, leaves_loop, statements_of
from tvmtile.ir.operands import constant, extents_of, origin_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import (
    contains,
    replace_loop,
    seq,
    substitute,
    variables_of,
    with_fresh_variables,
)

# Statements ---------------------------------------------------------------------------------------


class Obstacle(Exception):
    """A plan, or two roles of a loop, can't be had; the message is the reason.

    Attributes
    ----------
    buffer : Var or None
        The tile that is in the way.
    """

    def __init__(self, reason: str, buffer: ir.Var | None = None) -> None:
        super().__init__(reason)
        self.buffer = buffer


@dataclass
class PipelineStmt:
    """A statement of a pipelined loop, which a plan moves as a whole."""

    stmt: tirx.Stmt
    """The statement."""
    conditions: list[ir.Expr]
    """The conditions under which it runs, where they have one value anywhere in an iteration."""
    inner: tirx.Stmt
    """The statement without these conditions."""
    accesses: tuple[Effect, ...]
    """The effects on buffers."""
    reads: dict[ir.Var, None]
    writes: dict[ir.Var, None]
    """The buffers that it touches, views resolved, and the names that it uses or binds, in order.
    """

    @cached_property
    def touches(self) -> dict[ir.Var, None]:
        """The buffers that it reads or writes, in order."""
        return {**self.reads, **self.writes}

    def effects_on(self, buffer: ir.Var) -> list[Effect]:
        """Its effects on a buffer that is no view, by whichever name."""
        return [effect for effect in self.accesses if effect.root.same_as(buffer)]

    def conflicts(self, other: PipelineStmt) -> list[ir.Var]:
        """The buffers that both touch and one of them writes, in order."""
        return [
            var
            for var in self.touches
            if var in other.writes or (var in self.writes and var in other.reads)
        ]

    @property
    def binds(self) -> bool:
        """Tell whether it binds a name."""
        return isinstance(self.stmt, tirx.Bind)

    @property
    def has_effects(self) -> bool:
        """Tell whether it does more than to compute and to write buffers: a barrier, a print."""
        return has_effects(self.stmt)

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


def has_effects(node: ir.Node) -> bool:
    """Tell whether a statement does more than to compute and to write buffers, or a value does."""
    return contains(node, ir.Call, _has_effect)


def _has_effect(call: ir.Call) -> bool:
    return effect_of(call) > PURE and not takes_address(call) and operator_of(call) is None


@dataclass
class Body:
    """The body of a pipelined loop, taken apart."""

    declarations: list[tirx.Stmt] = field(default_factory=list)
    """Allocations and views, which hold for all iterations."""
    bindings: dict[ir.Var, tirx.Bind] = field(default_factory=dict)
    """Names with a value that can be computed again anywhere in an iteration, in program order."""
    units: list[PipelineStmt] = field(default_factory=list)
    """The units that a plan gives a stage to."""

    def bindings_for(self, statements: Sequence[tirx.Stmt]) -> list[tirx.Bind]:
        """The bindings that statements use, directly or through others, in program order."""
        needed: set[ir.Var] = set()
        pending = [var for stmt in statements for var in variables_of(stmt)]
        while pending:
            var = pending.pop()
            if var in self.bindings and var not in needed:
                needed.add(var)
                pending.extend(variables_of(self.bindings[var].value))
        return [bind for var, bind in self.bindings.items() if var in needed]


def body_of(loop: tirx.For, tiles: KernelInfo, *, split: bool = False) -> Body:
    """Take the body of a loop apart.

    With `split` a branch that holds several statements becomes several units, if its condition can be
    computed again for each.

    Raises
    ------
    Obstacle
        If an iteration may end early.
    """
    if leaves_loop(loop.body) or contains(loop.body, tirx.Evaluate, is_thread_return):
        raise Obstacle("an iteration may be left early")
    body = Body()
    scheduled: set[ir.Var] = set()
    is_known = is_rematerializable(loop, tiles)

    def is_replayable(value: ir.Expr) -> bool:
        return is_known(value) and not scheduled.intersection(variables_of(value))

    for stmt in flattened(loop.body):
        if isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer):
            if {loop.loop_var, *body.bindings, *scheduled}.intersection(variables_of(stmt)):
                raise Obstacle(f"{buffer_of(stmt).name} is declared anew in each iteration")
            body.declarations.append(stmt)
        elif isinstance(stmt, tirx.Bind) and is_replayable(stmt.value):
            body.bindings[stmt.var] = stmt
        else:
            parts = _split(stmt, is_replayable) if split else [stmt]
            body.units.extend(unit_of(part, tiles, is_replayable) for part in parts)
            if isinstance(stmt, tirx.Bind):
                scheduled.add(stmt.var)
    return body


def is_rematerializable(loop: tirx.For, tiles: KernelInfo) -> Callable[[ir.Expr], bool]:
    """Tell of a value whether it can be computed again anywhere in an iteration of a loop."""
    written = {tiles.root(a.buffer) for a in effects_of(loop.body) if a.writes}

    def is_replayable(value: ir.Expr) -> bool:
        return (
            not has_effects(value)
            and not contains(value, ir.Call, lambda call: operator_of(call) is not None)
            and not contains(value, ir.TensorLoad, lambda x: tiles.root(buffer_of(x)) in written)
        )

    return is_replayable


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


def _is_guard(stmt: tirx.Stmt, is_replayable: Any) -> TypeGuard[tirx.IfThenElse]:
    return (
        isinstance(stmt, tirx.IfThenElse)
        and stmt.else_case is None
        and is_replayable(stmt.condition)
    )


def unit_of(
    stmt: tirx.Stmt, tiles: KernelInfo, is_replayable: Any = lambda _: False
) -> PipelineStmt:
    """A statement and what it touches, with the conditions around it that can be computed again."""
    accesses = effects_of(stmt)
    names = [var for var in variables_of(stmt) if not is_buffer_var(var)]
    reads = dict.fromkeys([*(tiles.root(a.buffer) for a in accesses if a.reads), *names])
    writes = dict.fromkeys(tiles.root(a.buffer) for a in accesses if a.writes)
    if isinstance(stmt, tirx.Bind):
        reads.pop(stmt.var, None)
        writes[stmt.var] = None
    conditions, inner = [], stmt
    while _is_guard(inner, is_replayable):
        conditions.append(inner.condition)
        inner = inner.then_case
    return PipelineStmt(stmt, conditions, inner, accesses, reads, writes)


# What an iteration writes before it reads it ------------------------------------------------------


_MOST_STEPS = 64  # iterations of a serial loop that are followed one by one


class Coverage:
    """The elements of a tile that an iteration has written, as a mask."""

    def __init__(self, buffer: ir.Var, tiles: KernelInfo) -> None:
        self._buffer = buffer
        self._tiles = tiles
        self._shape = tuple(constant(extent) or 0 for extent in buffer.ty.shape)
        extents = {
            loop.loop_var: constant(loop.extent)
            for loop in (*tiles.launch.blocks, *tiles.launch.threads)
        }
        self._ranges = {var: range(count) for var, count in extents.items() if count is not None}

    def holds_own_values(self, units: Sequence[PipelineStmt]) -> bool:
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

    def is_complete(self, units: Sequence[PipelineStmt]) -> bool:
        """Tell whether every iteration writes the whole tile."""
        return bool(self._written_by([u for u in units if not u.conditions]).all())

    def _read_by(self, unit: PipelineStmt) -> tuple[slice, ...]:
        everything = tuple(slice(None) for _ in self._shape)
        op = operator_of(unit.inner.value) if isinstance(unit.inner, tirx.Evaluate) else None
        if op is None:
            return everything
        operands = [o for o in op.reads() if self._tiles.root(buffer_of(o)).same_as(self._buffer)]
        boxes = [self._box(o) if buffer_of(o).same_as(self._buffer) else None for o in operands]
        return boxes[0] if len(boxes) == 1 and boxes[0] is not None else everything

    def _written_by(self, units: Sequence[PipelineStmt]) -> np.ndarray:
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
        op = operator_of(stmt)
        if op is None or not op.is_tile:
            return mask
        for operand in op.writes():
            box = self._box(operand)
            if buffer_of(operand).same_as(self._buffer) and box is not None:
                mask[box] = True
        return mask

    def _by_store(self, store: tirx.BufferStore, parallel: Mapping[ir.Var, range]) -> np.ndarray:
        """A store whose indices are constants and different loop variables writes a box."""
        mask = np.zeros(self._shape, bool)
        if not buffer_of(store).same_as(self._buffer):
            return mask
        ranges = {**self._ranges, **parallel}
        box = []
        for index in indices_of(store):
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

    def _box(self, operand: ir.Expr) -> tuple[slice, ...] | None:
        origin = [constant(low) for low in origin_of(operand)]
        extents = [constant(extent) for extent in extents_of(operand) or []]
        if None in origin or None in extents:
            return None
        return tuple(
            slice(low, low + extent)
            for low, extent in zip(origin, extents, strict=True)
            if low is not None and extent is not None
        )


def _implied(conditions: Sequence[ir.Expr], known: Sequence[ir.Expr]) -> bool:
    return all(any(structural_equal(c, k) for k in known) for c in conditions)


# Iterations of which a condition says whether they do anything, as those of block masks -----------


def guard_of(loop: tirx.For, tiles: KernelInfo) -> ir.Expr | None:
    """The condition for an iteration of a loop, in terms of its variable; None where all are done.

    The iterations are one branch each, with nothing but names before it. All threads of a block take it
    or none. What that depends on, no iteration writes, so whoever knows the number of an iteration
    knows whether it is done.
    """
    names, conditions, _ = _apart(loop)
    values: dict[ir.Var, ir.Expr] = {}
    for each in names:
        if isinstance(each, tirx.Bind):
            values[each.var] = substitute(each.value, values)
    is_replayable = is_rematerializable(loop, tiles)
    known = [substitute(condition, values) for condition in conditions]
    if not known or not all(map(is_replayable, known)):
        return None
    return None if any(map(tiles.variance.may_diverge, known)) else tirx.all(*known)


def without_guard(loop: tirx.For) -> tirx.For:
    """A loop with a guard: what is done of an iteration for which it holds."""
    names, _, inside = _apart(loop)
    return replace_loop(loop, body=seq([*names, *inside]))


def _apart(loop: tirx.For) -> tuple[list[tirx.Stmt], list[ir.Expr], list[tirx.Stmt]]:
    """The names before branches that are all of an iteration, their conditions, and what is inside."""
    names: list[tirx.Stmt] = []
    conditions: list[ir.Expr] = []
    inside = list(flattened(loop.body))
    while True:
        *first, branch = inside
        if not isinstance(branch, tirx.IfThenElse) or branch.else_case is not None:
            return names, conditions, inside
        if not all(map(_only_names, first)):
            return names, conditions, inside
        names += first
        conditions.append(branch.condition)
        inside = list(flattened(branch.then_case))


def _only_names(stmt: tirx.Stmt) -> bool:
    """Tell whether a statement means the same wherever it stands in an iteration."""
    if isinstance(stmt, tirx.Bind):
        return not has_effects(stmt.value)
    return isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer)
