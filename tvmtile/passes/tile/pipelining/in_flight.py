"""Which work of a pipelined loop may go on while the next iteration begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.ir.asynchronous import Kind
from tvmtile.ir.operators import operator_of
from tvmtile.ir.scopes import is_shared
from tvmtile.passes.tile.pipelining.body import PipelineStmt
from tvmtile.passes.tile.pipelining.plan import PipelinePlan
from tvmtile.tileop.registry import implementation_of


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
    in_flight = frozenset(
        number for number in range(len(units)) if _may_go_on(number, units, ahead, kind)
    )
    if plan.distance < 2 or not in_flight:
        return plan
    return PipelinePlan(tuple(max(0, stage - 1) for stage in plan.stage), plan.order, in_flight)


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
    chosen = implementation_of(op, kind) if op is not None and op.is_complete else None
    return chosen.completion if chosen is not None else None
