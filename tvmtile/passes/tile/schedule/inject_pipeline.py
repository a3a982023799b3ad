"""InjectPipeline: let the first stages of a pipelined loop run ahead of the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated, nodes_in
from tvmtile.analysis.kernel_info import KernelInfo, info_of
from tvmtile.errors import VerifyError
from tvmtile.ir.asynchronous import CP_ASYNC, asynchronously
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
from tvmtile.ir.rewriting import reads_no_memory, replace_loop, seq
from tvmtile.passes.tile.schedule.body import Body, Obstacle, PipelineStmt, body_of
from tvmtile.passes.tile.schedule.emit import Conditional, Emitter, Writer
from tvmtile.passes.tile.schedule.iteration_space import (
    IterationSpace,
    counter_begun,
    iteration_space,
)
from tvmtile.passes.tile.schedule.plan import (
    BufferCopies,
    PipelinePlan,
    async_units,
    buffer_copies_of,
    other_annotations,
    plan_of,
    work_of,
)
from tvmtile.passes.tile.schedule.rings import Mbarriers, Ring, StageAxis, with_stage_axes
from tvmtile.passes.tile.schedule.schedule import Action, Batch, RoleSchedule, Step
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
    tiles = info_of(kernel)
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


def _body_of(loop: tirx.For, plan: PipelinePlan, tiles: KernelInfo) -> Body:
    body = body_of(loop, tiles)
    if not len(plan.stage) == len(plan.order) == len(body.units):
        raise VerifyError(
            f"the plan of the loop over {loop.loop_var.name} does not fit its "
            f"{len(body.units)} statements",
            help="run PlanPipeline before InjectPipeline",
        )
    return body


def _buffer_copies_in(
    loop: tirx.For, plan: PipelinePlan, tiles: KernelInfo
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
        self._tiles = info_of(kernel)
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
        is_repeated = not any(map(loop.same_as, self._outermost))
        bounds, loop = _with_named_bounds(loop)
        groups = self._groups_of(loop, body.units, plan, is_repeated=is_repeated)
        rings = [group.ring for group in groups if group.ring is not None]
        spaces = [IterationSpace(loop, None, 1), *(ring.space for ring in rings)]
        role = _role_of(groups, plan, body.units)
        write = _writer(role, body.units, [each.ring for each in rings])
        written = Emitter(role, body, spaces, write).emit()
        inside = written.each
        for space in spaces:
            inside = space.inside(inside)
        counted = [stmt for space in spaces for stmt in space.counted()]
        whole = [*written.before, replace_loop(loop, body=seq(inside)), *written.behind, *counted]
        return mutator.mutate(seq([*body.declarations, *bounds, *whole]))

    def _groups_of(
        self,
        loop: tirx.For,
        units: Sequence[PipelineStmt],
        plan: PipelinePlan,
        *,
        is_repeated: bool,
    ) -> list[_StageGroup]:
        are_async = [False] * len(units)
        if self._async_copies:
            are_async = async_units(units, plan, self._tiles)
        in_flight = {n: self._token(self._kind_of(units[n])) for n in sorted(plan.in_flight)}
        order = sorted(range(len(units)), key=plan.order.__getitem__)
        groups = []
        for stage, members in groupby(order, plan.stage.__getitem__):
            group = tuple(members)
            copies = [n for n in group if are_async[n]]
            bulk = tuple(n for n in copies if self._is_bulk(units[n]))
            others = tuple(n for n in copies if n not in bulk)
            slots = plan.distance - stage + 1
            ring = self._ring(loop, slots, bulk, units, is_repeated=is_repeated) if bulk else None
            batches = [Batch(self._token(), others)] if others else []
            batches += [Batch(in_flight[n], (n,)) for n in group if n in in_flight]
            groups.append(_StageGroup(stage, group, ring, batches))
        return groups

    def _ring(
        self,
        loop: tirx.For,
        slots: int,
        copies: tuple[int, ...],
        units: Sequence[PipelineStmt],
        *,
        is_repeated: bool,
    ) -> _CountedRing:
        """The mbarriers on which copies of a stage complete.

        The copies of an iteration make its phase last until they have come; the thread that begins
        them ends it.
        """
        name, dtype = f"{loop.loop_var.name}_done", str(loop.loop_var.ty.dtype)
        counter = tirx.decl_buffer((1,), dtype, name=name, scope="local") if is_repeated else None
        space = iteration_space(loop, slots, counter)
        tiles = tuple(dict.fromkeys(tile for n in copies for tile in units[n].writes))
        ring = Ring(tiles, copies, space.position, Mbarriers.named("arrived", slots))
        self.setup += [*ring.declared(), *counter_begun(counter)]
        return _CountedRing(ring, space)

    def _is_bulk(self, unit: PipelineStmt) -> bool:
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


# The role of a block's threads ----------------------------------------------------------------------


@dataclass(frozen=True)
class _CountedRing:
    """A ring, and what numbers the iterations for it."""

    ring: Ring
    space: IterationSpace


@dataclass(frozen=True)
class _StageGroup:
    """Adjacent units in the order that do the same iteration of the source loop."""

    stage: int
    units: tuple[int, ...]
    ring: _CountedRing | None
    """Of its copies that complete on mbarriers, if it has any."""
    batches: list[Batch]
    """Of its other asynchronous copies, and of each unit that is in flight."""


def _role_of(
    groups: Sequence[_StageGroup], plan: PipelinePlan, units: Sequence[PipelineStmt]
) -> RoleSchedule:
    """The steps of the threads that copy ahead and compute.

    At the start of an iteration they wait for what it uses and earlier ones have copied, before its own
    copies: so one barrier behind the waits lets other threads see what has arrived, and keeps the
    copies from elements that others still read.
    """
    batches = tuple(batch for group in groups for batch in group.batches)
    rings = [group.ring for group in groups if group.ring is not None]
    waits, steps = list[Step](), list[Step]()
    for group in groups:
        offset = plan.distance - group.stage
        copies = [batch for batch in group.batches if not plan.in_flight.intersection(batch.units)]
        for batch in copies:
            used = _offset_of_use(batch.units, plan, units)
            waits.append(Step(Action.AWAIT, batches.index(batch), used))
        if group.ring is not None:
            number = rings.index(group.ring)
            used = _offset_of_use(group.ring.ring.units, plan, units)
            waits.append(Step(Action.WAIT, number, used))
        for unit in group.units:
            steps.append(Step(Action.RUN, unit, offset))
            if unit in plan.in_flight:
                number = next(n for n, batch in enumerate(batches) if batch.units == (unit,))
                steps += [
                    Step(Action.SIGNAL, number, offset),
                    Step(Action.AWAIT, number, offset - 1),
                ]
        if group.ring is not None:
            steps.append(Step(Action.FILLED, rings.index(group.ring), offset))
        steps += [Step(Action.SIGNAL, batches.index(batch), offset) for batch in copies]
    return RoleSchedule((*waits, *steps), batches)


def _offset_of_use(
    copies: Sequence[int],
    plan: PipelinePlan,
    units: Sequence[PipelineStmt],
) -> int:
    """How far ahead the first later stage is that uses what some units copy."""
    tiles = {tile for number in copies for tile in units[number].writes}
    stage = plan.stage[copies[0]]
    users = [n for n, unit in enumerate(units) if tiles & unit.touches.keys()]
    return plan.distance - min(plan.stage[n] for n in users if plan.stage[n] > stage)


def _writer(role: RoleSchedule, units: Sequence[PipelineStmt], rings: Sequence[Ring]) -> Writer:
    arrives_on = {n: ring for ring in rings for n in ring.units}

    def write(step: Step, _: ir.Expr | None) -> list[Conditional]:
        if step.action is Action.WAIT:
            return [((), rings[step.subject].wait_until_full())]
        if step.action is Action.FILLED:
            return [((), rings[step.subject].ended())]
        unit, batch = units[step.subject], role.batch_of(step.subject)
        stmt = unit.inner
        if batch is not None:
            stmt = asynchronously(role.batches[batch].token, stmt)
        elif step.subject in arrives_on:
            stmt = arrives_on[step.subject].arriving(stmt)
        return [(unit.conditions, stmt)]

    return write


def _with_named_bounds(loop: tirx.For) -> tuple[list[tirx.Bind], tirx.For]:
    """A loop that is no pipelined one, whose bounds are computed once, and their names."""
    names: list[tirx.Bind] = []

    def named(name: str, value: ir.Expr) -> ir.Expr:
        if reads_no_memory(value):
            return value
        names.append(tirx.Bind(ir.Var(name, value.ty), value))
        return names[-1].var

    first, count = named("start", loop.min), named("count", loop.extent)
    return names, replace_loop(loop, min=first, extent=count, annotations=other_annotations(loop))
