"""InjectPipeline: let the first stages of a pipelined loop run ahead of the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import Mutator, mutated, nodes_in
from tvmtile.analysis.kernel_info import KernelInfo, info_of
from tvmtile.errors import VerifyError
from tvmtile.ir.asynchronous import CP_ASYNC, asynchronously, kind_of, signal, wait
from tvmtile.ir.kernels import (
    Launch,
    bound_target,
    outermost_loops_in,
    with_kernels,
    with_launch_body,
)
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_for, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import (
    reads_no_memory,
    replace_loop,
    seq,
    substitute,
    with_fresh_variables,
)
from tvmtile.passes.tile.schedule.body import Body, Obstacle, PipelineStmt, body_of
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
from tvmtile.passes.tile.schedule.rings import Mbarriers, StageAxis, folded, with_stage_axes
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
        are_async = [False] * len(body.units)
        if self._async_copies:
            are_async = async_units(body.units, plan, self._tiles)
        issued = [
            _Issued(
                unit,
                is_async,
                is_async and self._completes_on_mbarrier(unit),
                self._token(self._kind_of(unit)) if number in plan.in_flight else None,
            )
            for number, (unit, is_async) in enumerate(zip(body.units, are_async, strict=True))
        ]
        bounds, loop = _with_named_bounds(loop)
        order = sorted(range(len(issued)), key=lambda number: plan.order[number])
        groups = []
        for stage, members in groupby(order, plan.stage.__getitem__):
            units = [issued[number] for number in members]
            by_groups = any(each.is_async and not each.on_mbarrier for each in units)
            phases = None
            if any(each.on_mbarrier for each in units):
                phases = self._phases(loop, plan.distance - stage + 1, is_repeated)
            groups.append(_StageGroup(stage, units, self._token() if by_groups else None, phases))
        stages = Stages(loop, plan.distance, body, groups)
        return mutator.mutate(seq([*body.declarations, *bounds, *stages.emit()]))

    def _phases(self, loop: tirx.For, count: int, is_repeated: bool) -> Phases:
        name, dtype = f"{loop.loop_var.name}_done", str(loop.loop_var.ty.dtype)
        counter = tirx.decl_buffer((1,), dtype, name=name, scope="local")
        phases = Phases(iteration_space(loop, count, counter if is_repeated else None))
        self.setup += phases.setup
        return phases

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


# A loop, written out by stages --------------------------------------------------------------------


class Phases:
    """The mbarriers on which copies of a stage complete.

    The copies of an iteration make its phase last until they have come; the thread that begins them
    ends it.
    """

    def __init__(self, space: IterationSpace) -> None:
        self.space = space
        arrived = Mbarriers.named("arrived", space.stages)
        self._arrived = arrived.at(space.position)
        self.setup = [*arrived.declared(), *counter_begun(space.counter)]
        """What a block does first."""

    def begun(self, copy: Any) -> tirx.Stmt:
        """A copy of an iteration, begun by one thread."""
        op = operator_of(copy)
        begun = None if op is None else op.begun_on(self._arrived)
        assert begun is not None, "only such copies complete on mbarriers"
        return tirx.Evaluate(begun.to_call(copy.value.span), copy.span)

    def ended(self) -> tirx.Stmt:
        """Behind the copies of an iteration, if there are any: nothing else is waited for."""
        return tirx.Evaluate(operator_for("end of phase")(self._arrived).to_call())

    def awaited(self) -> tirx.Stmt:
        """Wait for the copies of an iteration."""
        wait = operator_for("wait for phase")(self._arrived, self.space.position.parity)
        return tirx.Evaluate(wait.to_call())


@dataclass(frozen=True)
class _Issued:
    """A unit, and how its work goes on."""

    unit: PipelineStmt
    is_async: bool
    """It copies asynchronously, for a later stage."""
    on_mbarrier: bool
    """Its copy completes on an mbarrier."""
    token: str | None
    """Its work goes on until the next iteration has issued its own."""


@dataclass(frozen=True)
class _StageGroup:
    """Adjacent units in the order that do the same iteration of the source loop."""

    stage: int
    units: list[_Issued]
    token: str | None
    """Of its asynchronous copies, if it has any: each iteration signals it once."""
    phases: Phases | None
    """Of its copies that complete on mbarriers, if it has any."""

    @property
    def copied(self) -> set[ir.Var]:
        """The tiles that it copies into asynchronously."""
        return {tile for each in self.units if each.is_async for tile in each.unit.writes}

    def uses(self, tiles: set[ir.Var]) -> bool:
        """Tell whether it touches some of the tiles."""
        return any(tiles & each.unit.touches.keys() for each in self.units)


class Stages:
    """A pipelined loop that is written out: the stages that run ahead, the loop, and the rest."""

    def __init__(
        self, loop: tirx.For, distance: int, body: Body, groups: Sequence[_StageGroup]
    ) -> None:
        self._loop = loop
        self._distance = distance
        self._body = body
        self._groups = groups
        counting = [group.phases.space for group in groups if group.phases]
        self._spaces = [IterationSpace(loop, None, 1), *counting]

    def emit(self) -> list[tirx.Stmt]:
        ahead = [stmt for number in range(self._distance) for stmt in self._step(number)]
        steady = self._step(self._distance)
        for space in self._spaces:
            steady = space.inside(steady)
        # What the last iterations leave in flight are empty batches, and copies that nothing has used.
        tokens = [
            token
            for group in self._groups
            for token in (group.token, *(each.token for each in group.units))
        ]
        drain = [wait(token, 0) for token in tokens if token]
        for space in self._spaces:
            drain += space.counted()
        return [*ahead, replace_loop(self._loop, body=seq(steady)), *drain]

    def _step(self, number: int) -> list[tirx.Stmt]:
        """A step before the loop, of the stages that have an iteration to do, or one of the loop."""
        statements = self._wait(number)
        for group in self._groups:
            if group.stage <= number:
                statements += self._of_stage(group.stage, number, self._group(group))
            statements += [signal(group.token)] if group.token else []
        return statements

    def _of_stage(self, stage: int, number: int, stmt: tirx.Stmt) -> list[tirx.Stmt]:
        """What a stage does in a step, of the iteration that it is at, if there is one."""
        ahead, loop, var = number - stage, self._loop, self._loop.loop_var
        count, is_before = constant(loop.extent), number < self._distance
        if is_before and count is not None and ahead >= count:
            return []
        names = {
            name: value
            for space in self._spaces
            for name, value in (space.started if is_before else space.shifted)(ahead).items()
        }
        done = with_fresh_variables(folded(substitute(stmt, names)))
        if (ahead == 0 and not is_before) or (is_before and count is not None):
            return [done]
        if is_before:
            return [tirx.IfThenElse(tirx.const(ahead, var.ty.dtype) < loop.extent, done, None)]
        return [tirx.IfThenElse(names[var] < folded(loop.min + loop.extent), done, None)]

    # Asynchronous copies -----------------------------------------------------------------------
    #
    # Every iteration signals every token, also where it has no copy to issue: in those before the loop,
    # in the last ones, where a condition does not hold. So how many batches may be in flight at a wait
    # is one number for all. A drain that counts down would need the last iterations as code of their
    # own, which costs more instructions and registers than an empty batch an iteration does; with a
    # dynamic count of iterations it would need a branch for each.

    def _wait(self, number: int) -> list[tirx.Stmt]:
        """At the start of an iteration: waits for what it uses and earlier ones have copied.

        They stand before the copies of the iteration, so that one barrier after them lets other threads
        see what has arrived and keeps the copies from elements that others still read.
        """
        found: list[tirx.Stmt] = []
        for group in self._groups:
            users = [
                user.stage
                for user in self._groups
                if group.stage < user.stage <= number and user.uses(group.copied)
            ]
            if group.token and users:
                behind = min(users) - group.stage - 1
                found.append(wait(group.token, min(behind, kind_of(group.token).max_behind)))
            if group.phases and users:
                found += self._of_stage(min(users), number, group.phases.awaited())
        return found

    def _group(self, group: _StageGroup) -> tirx.Stmt:
        """What a stage does in an iteration, with the names that it needs."""
        bindings = self._body.bindings_for([each.unit.stmt for each in group.units])
        statements = [(each.unit.conditions, _issued(each, group)) for each in group.units]
        end = [group.phases.ended()] if group.phases else []
        return seq([*bindings, *_joined(statements), *end])


def _issued(each: _Issued, group: _StageGroup) -> tirx.Stmt:
    """A unit whose asynchronous work goes on: until a later stage, or the next iteration's."""
    stmt = each.unit.inner
    if each.token is not None:
        return seq([asynchronously(each.token, stmt), signal(each.token), wait(each.token, 1)])
    if group.phases is not None and each.on_mbarrier:
        return group.phases.begun(stmt)
    is_async = each.is_async and group.token is not None
    return asynchronously(str(group.token), stmt) if is_async else stmt


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


def _joined(parts: Sequence[tuple[Sequence[Any], tirx.Stmt]]) -> list[tirx.Stmt]:
    """Statements under their conditions, adjacent ones with the same condition in one branch."""
    result: list[tirx.Stmt] = []
    position = 0
    while position < len(parts):
        conditions, stmt = parts[position]
        position += 1
        if not conditions:
            result.append(stmt)
            continue
        inside = [(conditions[1:], stmt)]
        while position < len(parts) and _begins(parts[position][0], conditions[0]):
            inside.append((parts[position][0][1:], parts[position][1]))
            position += 1
        result.append(tirx.IfThenElse(conditions[0], seq(_joined(inside)), None))
    return result


def _begins(conditions: Sequence[ir.Expr], condition: ir.Expr) -> bool:
    return bool(conditions) and structural_equal(conditions[0], condition)
