"""InjectPipeline: let the first stages of a pipelined loop run ahead of the last."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated, nodes_in
from tvmtile.errors import VerifyError
from tvmtile.ir.asynchronous import CP_ASYNC
from tvmtile.ir.kernels import (
    Launch,
    bound_target,
    outermost_loops_in,
    with_kernels,
    with_launch_body,
)
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import (
    seq,
)
from tvmtile.passes.tile.pipelining import (
    Body,
    BufferCopies,
    KernelTiles,
    Obstacle,
    Phases,
    PipelinePlan,
    PipelineStmt,
    StageAxis,
    Stages,
    async_units,
    body_of,
    buffer_copies_of,
    plan_of,
    with_stage_axes,
    work_of,
)
from tvmtile.target import gpu
from tvmtile.tileop.registry import implementation_of


@prim_func_pass("InjectPipeline", requires=(Property.PLANNED,), establishes=(Property.PIPELINED,))
def InjectPipeline(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Carry out the plans of PlanPipeline.

    A tile that is written in one stage and used in a later one gets a leading axis of buffer
    copies: iteration `k` works on copy `k % copies`, and what stands outside of the loop on copy 0. If
    the value of the last iteration is read there, the count begins so that it works on copy 0.

    Where the first stage runs `s` iterations ahead, its first `s` iterations become statements before
    the loop, without the last stage. In the loop, which keeps its bounds, statements of earlier stages
    do a later iteration where there is one; so the last iterations need no statements of their own, and
    loops of any number of iterations are right. Names of values are bound again for each iteration that
    needs them. A group of statements that do the same iteration stands in one branch.

    Where the target has asynchronous copies, moves from global memory into tiles that only later stages
    touch are issued on a token, one for each stage that has such moves. Each iteration signals it
    behind the stage's statements, and begins with waits that leave in flight what no stage uses yet:
    `s - 2` batches with `num_stages=s`. Behind the loop nothing is in flight.

    What the plan leaves in flight is issued on a token of its own, which is signalled at once; all but
    its latest batch are waited for.

    Allocations and views in the loop move before it.

    Raises
    ------
    VerifyError
        If a plan, which PlanPipeline has not made, changes what the loop computes.
    """
    target = bound_target(func)
    capability = gpu(target)
    async_copies = capability is not None and capability.has_async_copies
    kind = str(target.kind.name) if target is not None else ""
    return with_kernels(func, lambda kernel: _inject(kernel, kind, async_copies=async_copies))


def _inject(kernel: tirx.For, kind: str, *, async_copies: bool) -> tirx.For:
    tiles = KernelTiles(kernel)
    copies = {
        loop.loop_var: {
            tile: StageAxis(each.count, _stage_index(loop, each))
            for tile, each in _buffer_copies_in(loop, plan, tiles).items()
        }
        for loop, plan in _planned_loops(kernel)
    }
    if not copies:
        return kernel
    expanded = with_stage_axes(kernel, tiles, copies)
    stager = _Stager(expanded, kind, async_copies=async_copies)
    staged = stager.rewrite(expanded)
    if not stager.setup:
        return staged
    return with_launch_body(staged, seq([*stager.setup, Launch(staged).body]))


def _planned_loops(kernel: tirx.For) -> list[tuple[tirx.For, PipelinePlan]]:
    plans = ((loop, plan_of(loop)) for loop in nodes_in(kernel, tirx.For))
    return [(loop, plan) for loop, plan in plans if plan is not None]


def _body_of(loop: tirx.For, plan: PipelinePlan, tiles: KernelTiles) -> Body:
    body = body_of(loop, tiles)
    if not len(plan.stage) == len(plan.order) == len(body.units):
        raise VerifyError(
            f"the plan of the loop over {loop.loop_var.name} does not fit its "
            f"{len(body.units)} statements",
            help="run PlanPipeline before InjectPipeline",
        )
    return body


def _buffer_copies_in(
    loop: tirx.For, plan: PipelinePlan, tiles: KernelTiles
) -> dict[ir.Var, BufferCopies]:
    try:
        return buffer_copies_of(loop, _body_of(loop, plan, tiles), plan, tiles)
    except Obstacle as obstacle:
        raise VerifyError(
            f"the plan of the loop over {loop.loop_var.name} is wrong: {obstacle}",
            help="run PlanPipeline before InjectPipeline",
        ) from None


def _stage_index(loop: tirx.For, copies: BufferCopies) -> ir.Expr:
    """The buffer copy that an iteration works on."""
    number: ir.Expr = loop.loop_var
    if copies.is_read_after:
        last = constant(loop.min + loop.extent - 1)
        shift = None if last is None else -last % copies.count
        number = number - (loop.min + loop.extent - 1) if shift is None else number + shift
    return tirx.floormod(number, tirx.const(copies.count, str(loop.loop_var.ty.dtype)))


class _Stager:
    """Rewrites planned loops, outer ones first.

    Attributes
    ----------
    setup : list of Stmt
        What a block does first.
    """

    def __init__(self, kernel: tirx.For, kind: str, *, async_copies: bool) -> None:
        self._tiles = KernelTiles(kernel)
        self._kind = kind
        self._outermost = outermost_loops_in(Launch(kernel).body)
        self.setup: list[tirx.Stmt] = []
        self._async_copies = async_copies
        self._tokens = 0

    def rewrite(self, kernel: tirx.For) -> tirx.For:
        return mutated(kernel, (tirx.For, self._loop))

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        plan = plan_of(loop)
        if plan is None:
            return mutator.default_mutate(loop)
        body = _body_of(loop, plan, self._tiles)
        are_async = [False] * len(body.units)
        if self._async_copies:
            are_async = async_units(body.units, plan, self._tiles)
        in_flight = {unit: self._token(self._kind_of(body.units[unit])) for unit in plan.in_flight}
        on_mbarriers = [
            is_async and self._completes_on_mbarrier(unit)
            for unit, is_async in zip(body.units, are_async, strict=True)
        ]
        is_repeated = not any(map(loop.same_as, self._outermost))

        def new_phases(count: int) -> Phases:
            phases = Phases(count, is_repeated=is_repeated)
            self.setup += phases.setup
            return phases

        stages = Stages(
            loop, plan, body, are_async, on_mbarriers, in_flight, self._token, new_phases
        )
        return mutator.mutate(stages.emit())

    def _completes_on_mbarrier(self, unit: PipelineStmt) -> bool:
        op = operator_of(unit.inner.value) if isinstance(unit.inner, tirx.Evaluate) else None
        chosen = None if op is None else implementation_of(op, self._kind)
        return chosen is not None and chosen.on_mbarrier

    def _kind_of(self, unit: PipelineStmt) -> str:
        """The kind of asynchronous work that a unit issues."""
        issued = work_of(unit, self._kind)
        if issued is None:
            raise VerifyError(
                f"{unit.describe()} issues no asynchronous work",
                help="run PlanPipeline before InjectPipeline",
            )
        return issued.name

    def _token(self, kind: str = CP_ASYNC.name) -> str:
        self._tokens += 1
        return f"{kind}/{self._tokens}"
