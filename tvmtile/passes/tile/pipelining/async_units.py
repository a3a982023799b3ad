"""Which copies of a pipelined loop may be asynchronous: nothing needs them in their own stage."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.ir.kernels import flattened, is_parallel, statements_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.scopes import is_shared, is_tensor
from tvmtile.passes.tile.pipelining.body import PipelineStmt
from tvmtile.passes.tile.pipelining.plan import PipelinePlan
from tvmtile.passes.tile.pipelining.tiles import KernelTiles


def async_units(
    units: Sequence[PipelineStmt], plan: PipelinePlan, tiles: KernelTiles
) -> list[bool]:
    """Tell of each unit whether what it writes may arrive when a later stage begins.

    That is so of moves into shared tiles which the rest of their iteration touches in later stages
    only. An element is not moved twice in a group, since the copies of a thread arrive in any order;
    nor is it moved from a tensor that the kernel writes.
    """
    later = later_units(units, plan, tiles)
    return [is_later and _is_move(unit.inner) for is_later, unit in zip(later, units, strict=True)]


def later_units(
    units: Sequence[PipelineStmt], plan: PipelinePlan, tiles: KernelTiles
) -> list[bool]:
    """The same of units that may compute what they write."""
    written = {tiles.root(access.buffer) for access in tiles.accesses if access.writes}
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
    op = operator_of(stmt)
    return op is not None and op.copied() is not None


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
