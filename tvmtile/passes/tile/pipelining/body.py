"""The body of a pipelined loop, cut into the units that a plan moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from tvm import ir, tirx

from tvmtile._tvm import PURE, buffer_of, is_buffer_var
from tvmtile.analysis.accesses import Access, accesses_of
from tvmtile.errors import SourceLocation
from tvmtile.ir.calls import effect_of, takes_address
from tvmtile.ir.kernels import flattened, is_thread_return, leaves_loop
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import contains, seq, variables_of, with_fresh_variables
from tvmtile.passes.tile.pipelining.tiles import KernelTiles


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


@dataclass
class PipelineStmt:
    """A statement of a pipelined loop, which a plan moves as a whole."""

    stmt: tirx.Stmt
    """The statement."""
    conditions: list[ir.Expr]
    """Those under which it runs, where they have the same value anywhere in an iteration."""
    inner: tirx.Stmt
    """The statement without these conditions."""
    accesses: list[Access]
    """What it does to buffers."""
    reads: dict[ir.Var, None]
    writes: dict[ir.Var, None]
    """The buffers that it touches, views resolved, and the names that it uses or binds, in order.
    """

    @property
    def touches(self) -> dict[ir.Var, None]:
        """What it reads or writes, in order."""
        return {**self.reads, **self.writes}

    def conflicts(self, other: PipelineStmt) -> list[ir.Var]:
        """What both touch and one of them writes, in order."""
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
    """What a plan gives a stage to."""

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


def body_of(loop: tirx.For, tiles: KernelTiles, *, split: bool = False) -> Body:
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
            body.units.extend(_unit(part, tiles, is_replayable) for part in parts)
            if isinstance(stmt, tirx.Bind):
                scheduled.add(stmt.var)
    return body


def is_rematerializable(loop: tirx.For, tiles: KernelTiles) -> Callable[[ir.Expr], bool]:
    """Tell of a value whether it can be computed again anywhere in an iteration of a loop."""
    written = {tiles.root(a.buffer) for a in accesses_of(loop.body) if a.writes}

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


def _unit(stmt: tirx.Stmt, tiles: KernelTiles, is_replayable: Any) -> PipelineStmt:
    accesses = accesses_of(stmt)
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
