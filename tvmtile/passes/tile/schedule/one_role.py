"""Pipelined loops of one role: the threads of a block copy ahead and compute.

A planner gives the units of each loop stages and an order, as its user says or as the memory of a block
and the dependences let copies run ahead; then loops are written out, outer ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.analysis.kernel_info import info_of
from tvmtile.errors import InvalidOperand, warn
from tvmtile.ir.annotations import ORDER_ANNOTATION, STAGE_ANNOTATION, STAGES_ANNOTATION
from tvmtile.ir.asynchronous import CP_ASYNC, asynchronously
from tvmtile.ir.kernels import Launch, flattened, outermost_loops_in, with_launch_body
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import contains, reads_no_memory, replace_loop, seq
from tvmtile.ir.spans import first_location
from tvmtile.passes.tile.schedule.body import Body, Obstacle, PipelineStmt, body_of
from tvmtile.passes.tile.schedule.emit import Conditional, Emitter, Writer
from tvmtile.passes.tile.schedule.iteration_space import (
    IterationSpace,
    counter_begun,
    iteration_space,
)
from tvmtile.passes.tile.schedule.plan import (
    PIPELINE_ANNOTATIONS,
    PLAN,
    BufferCopies,
    PipelinePlan,
    Producers,
    async_units,
    buffer_copies_of,
    other_annotations,
    with_work_in_flight,
    work_of,
)
from tvmtile.passes.tile.schedule.resources import BlockMemory, warn_of_fewer_stages
from tvmtile.passes.tile.schedule.rings import Mbarriers, Ring, StageAxis, with_stage_axes
from tvmtile.passes.tile.schedule.schedule import (
    Action,
    Batch,
    RoleSchedule,
    Schedule,
    Step,
    verify,
)
from tvmtile.target import GpuCapability
from tvmtile.tileop.registry import ON_MBARRIER, implementation_of


def with_one_role(
    kernel: tirx.For, kind: str, capability: GpuCapability | None, limit: int | None
) -> tirx.For:
    """A kernel whose pipelined loops are written out; none has more than a limit of stages.

    Raises
    ------
    InvalidOperand
        If a user's stages or order do not fit the statements of the loop.
    """
    if not contains(kernel, tirx.For, _is_pipelined):
        return kernel
    planner = _PipelinePlanner(kernel, kind, capability, limit)
    planned = planner.rewrite(kernel)
    if not planner.plans:
        return planned
    axes = {each.loop.loop_var: each.axes() for each in planner.plans}
    expanded, _ = with_stage_axes(planned, info_of(kernel), axes)
    writer = _LoopWriter(expanded, planner.plans)
    written = writer.rewrite(expanded)
    if not writer.setup:
        return written
    return with_launch_body(written, seq([*writer.setup, Launch(written).body]))


_Copies: TypeAlias = dict[ir.Var, BufferCopies]
"""Of tiles that get several."""


@dataclass(frozen=True)
class _Bulk:
    """Copies of a stage that complete on mbarriers, and how many of these there are."""

    units: tuple[int, ...]
    slots: int


@dataclass(frozen=True)
class _PlannedLoop:
    """A loop, and the order in which its statements are done."""

    loop: tirx.For
    plan: PipelinePlan
    copies: _Copies
    units: Sequence[PipelineStmt]
    is_split: bool
    """Branches are cut into several units."""
    role: RoleSchedule
    """Of whose batches tokens are kinds of work."""
    bulk: Sequence[_Bulk]
    """By the ring of the role."""

    def axes(self) -> dict[ir.Var, StageAxis]:
        """The buffer copies of its tiles."""
        return {
            tile: StageAxis(each.count, _stage_index(self.loop, each))
            for tile, each in self.copies.items()
        }

    def schedule(self) -> Schedule:
        """The schedule that is proven."""
        copies = {tile: each.count for tile, each in self.copies.items()}
        rings = [
            _ring_of(bulk, self.units, IterationSpace(self.loop, None, bulk.slots))
            for bulk in self.bulk
        ]
        return Schedule(self.units, (self.role,), rings, copies)


def _ring_of(bulk: _Bulk, units: Sequence[PipelineStmt], space: IterationSpace) -> Ring:
    """The mbarriers on which copies of a stage complete.

    The copies of an iteration make its phase last until they have come; the thread that begins them
    ends it.
    """
    tiles = tuple(dict.fromkeys(tile for n in bulk.units for tile in units[n].writes))
    return Ring(tiles, bulk.units, space.position, Mbarriers.named("arrived", bulk.slots))


def _is_pipelined(loop: tirx.For) -> bool:
    return not loop.annotations.keys().isdisjoint(PIPELINE_ANNOTATIONS)


class _PipelinePlanner:
    """Gives each statement of a pipelined loop a stage, and a place in the order.

    Attributes
    ----------
    plans : list of _PlannedLoop
        Those that have one, outer loops first.
    """

    def __init__(
        self, kernel: tirx.For, kind: str, capability: GpuCapability | None, limit: int | None
    ) -> None:
        self.plans: list[_PlannedLoop] = []
        self._limit = limit
        self._has_async_copies = capability is not None and capability.has_async_copies
        self._kind = kind
        self._tiles = info_of(kernel)
        self._memory = BlockMemory(kernel, capability)
        self._multi_buffered: set[ir.Var] = set()  # by the loops around

    def rewrite(self, kernel: tirx.For) -> tirx.For:
        return mutated(kernel, (tirx.For, self._loop))

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        outer = self._multi_buffered
        result = mutator.default_mutate(self._planned(loop))
        self._multi_buffered = outer
        return result

    def _planned(self, loop: tirx.For) -> tirx.For:
        if not _is_pipelined(loop):
            return loop
        annotations = other_annotations(loop)
        try:
            if STAGE_ANNOTATION in loop.annotations:
                body, plan, copies, is_split = self._user_schedule(loop)
            else:
                stages = int(loop.annotations[STAGES_ANNOTATION])
                body, plan, copies = self._that_fit(loop, stages)
                is_split = True
        except Obstacle as obstacle:
            name = loop.loop_var.name
            warn(f"the loop over {name} is not pipelined: {obstacle}", first_location(loop))
            return replace_loop(loop, annotations=annotations)
        if plan.distance > 0 or list(plan.order) != sorted(plan.order):
            annotations[PLAN] = len(self.plans)
            self.plans.append(self._with_role(loop, body, plan, copies, is_split=is_split))
            verify(self.plans[-1].schedule())
        return replace_loop(loop, annotations=annotations)

    # The user's stages and order ---------------------------------------------------------------

    def _user_schedule(self, loop: tirx.For) -> tuple[Body, PipelinePlan, _Copies, bool]:
        stages, orders = (
            [int(entry) for entry in loop.annotations[name]]
            for name in (STAGE_ANNOTATION, ORDER_ANNOTATION)
        )
        body = body_of(loop, self._tiles)
        kept = _scheduled(loop, body)
        if len(stages) == len(kept) > len(body.units):
            stages, orders = ([x[i] for i in range(len(x)) if kept[i]] for x in (stages, orders))
        if is_split := len(stages) != len(body.units):
            body = body_of(loop, self._tiles, split=True)
        _check_entries(stages, orders, body, loop)
        first = min(stages, default=0)
        plan = PipelinePlan(tuple(stage - first for stage in stages), tuple(orders))
        return body, plan, self._copies(loop, body, plan), is_split

    # As many stages as the memory of a block has room for ---------------------------------------

    def _that_fit(self, loop: tirx.For, num_stages: int) -> tuple[Body, PipelinePlan, _Copies]:
        outer = self._multi_buffered
        awaited = CP_ASYNC.max_behind + 2 if self._has_async_copies else None
        # One copy is in use, and one is issued while others fly.
        limits = (limit for limit in (self._limit, awaited) if limit is not None)
        most = min([num_stages, *map(int, limits)])
        for stages in range(max(1, most), 0, -1):
            self._multi_buffered = outer
            body, plan, copies = self._by_dependences(loop, stages)
            counts = {buffer: each.count for buffer, each in copies.items()}
            if self._memory.has_room_for(counts):
                self._memory.take(counts)
                break
        if stages < num_stages:
            cannot = "can't wait" if stages == awaited else "has no room"
            warn_of_fewer_stages(loop, stages, num_stages, f"{self._memory.name} {cannot}")
        return body, plan, copies

    # What can run ahead ------------------------------------------------------------------------

    def _by_dependences(
        self, loop: tirx.For, num_stages: int
    ) -> tuple[Body, PipelinePlan, _Copies]:
        if num_stages < 2:
            return Body(), PipelinePlan((), ()), {}
        body = body_of(loop, self._tiles, split=True)
        producers = Producers(body.units, self._tiles)
        while True:
            count = len(body.units)
            plan = PipelinePlan.of_producers(producers.ahead(), count, num_stages - 1)
            plan = with_work_in_flight(plan, body.units, self._kind)
            try:
                copies = self._copies(loop, body, plan)
            except Obstacle as obstacle:
                producers.refuse_writers_of(obstacle.buffer, str(obstacle))
                continue
            for unit, reason in producers.refused:
                warn(f"{unit.describe()} does not run ahead: {reason}", unit.location)
            return body, plan, copies

    def _copies(self, loop: tirx.For, body: Body, plan: PipelinePlan) -> _Copies:
        """The buffer copies that a plan needs, none of which are those of a loop around."""
        copies = buffer_copies_of(loop, body, plan, self._tiles)
        for buffer in copies:
            if buffer in self._multi_buffered:
                raise Obstacle(f"a loop around has copies of {buffer.name}", buffer)
        self._multi_buffered = self._multi_buffered | set(copies)
        return copies

    # What a role does --------------------------------------------------------------------------

    def _with_role(
        self, loop: tirx.For, body: Body, plan: PipelinePlan, copies_of: _Copies, *, is_split: bool
    ) -> _PlannedLoop:
        units = body.units
        are_async = [False] * len(units)
        if self._has_async_copies:
            are_async = async_units(units, plan, self._tiles)
        order = sorted(range(len(units)), key=plan.order.__getitem__)
        steps = _StageSteps(units, plan)
        for _, group in groupby(order, plan.stage.__getitem__):
            members = list(group)
            copies = [n for n in members if are_async[n]]
            bulk = tuple(n for n in copies if self._is_bulk(units[n]))
            steps.add(members, tuple(n for n in copies if n not in bulk), bulk, self._kind)
        return _PlannedLoop(loop, plan, copies_of, units, is_split, steps.role, steps.bulk)

    def _is_bulk(self, unit: PipelineStmt) -> bool:
        op = operator_of(unit.inner.value) if isinstance(unit.inner, tirx.Evaluate) else None
        chosen = None if op is None else implementation_of(op, self._kind)
        return chosen is not None and chosen.completion == ON_MBARRIER


class _StageSteps:
    """The steps of threads that copy ahead and compute.

    At the start of an iteration they wait for what it uses and earlier ones have copied, before its
    own copies: so one barrier behind the waits lets other threads see what has arrived, and keeps the
    copies from elements that others still read.
    """

    def __init__(self, units: Sequence[PipelineStmt], plan: PipelinePlan) -> None:
        self._units, self._plan = units, plan
        self._waits: list[Step] = []
        self._steps: list[Step] = []
        self._batches: list[Batch] = []
        self.bulk: list[_Bulk] = []

    @property
    def role(self) -> RoleSchedule:
        return RoleSchedule((*self._waits, *self._steps), tuple(self._batches))

    def add(
        self, members: list[int], copies: tuple[int, ...], bulk: tuple[int, ...], kind: str
    ) -> None:
        """Adjacent units in the order that do the same iteration, and their asynchronous copies."""
        offset = self._plan.distance - self._plan.stage[members[0]]
        end = []
        if copies:
            self._waits.append(Step(Action.AWAIT, len(self._batches), self._used(copies)))
            end.append(Step(Action.SIGNAL, len(self._batches), offset))
            self._batches.append(Batch(CP_ASYNC.name, copies))
        if bulk:
            self._waits.append(Step(Action.WAIT, len(self.bulk), self._used(bulk)))
            end.insert(0, Step(Action.FILLED, len(self.bulk), offset))
            self.bulk.append(_Bulk(bulk, offset + 1))
        for unit in members:
            self._steps.append(Step(Action.RUN, unit, offset))
            if unit in self._plan.in_flight:
                work, number = work_of(self._units[unit], kind), len(self._batches)
                assert work is not None, "it is in flight"
                self._batches.append(Batch(work.name, (unit,)))
                self._steps.append(Step(Action.SIGNAL, number, offset))
                self._steps.append(Step(Action.AWAIT, number, offset - 1))
        self._steps += end

    def _used(self, copies: Sequence[int]) -> int:
        """The distance to the first later stage that uses a tile that some units copy."""
        tiles = {tile for number in copies for tile in self._units[number].writes}
        stages = [
            stage
            for stage, unit in zip(self._plan.stage, self._units, strict=True)
            if stage > self._plan.stage[copies[0]] and tiles & unit.touches.keys()
        ]
        return self._plan.distance - min(stages)


# The user's stages and order -------------------------------------------------------------------


def _scheduled(loop: tirx.For, body: Body) -> list[bool]:
    """The statements but declarations, each scheduled or, as a name, computed again."""
    return [
        not (isinstance(stmt, tirx.Bind) and stmt.var in body.bindings)
        for stmt in flattened(loop.body)
        if not isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer)
    ]


def _check_entries(
    stages: Sequence[int], orders: Sequence[int], body: Body, loop: tirx.For
) -> None:
    count = len(body.units)
    if len(stages) != count or len(orders) != count:
        raise InvalidOperand(
            f"T.Pipelined: stage has {len(stages)} and order {len(orders)} entries, the loop over "
            f"{loop.loop_var.name} has {count} statements",
            help="give one entry a statement; names whose value can be computed again have none",
            location=first_location(loop),
        )
    if min(stages, default=0) < 0:
        raise InvalidOperand(
            f"T.Pipelined: stage={list(stages)}",
            help="a stage is 0 or more",
            location=first_location(loop),
        )
    if len(set(orders)) < count:
        raise InvalidOperand(
            f"T.Pipelined: order={list(orders)} names a place twice",
            help="the order says which statement of an iteration is the first, the second, ...",
            location=first_location(loop),
        )


# Loops, written out -------------------------------------------------------------------------------


class _LoopWriter:
    """Writes out planned loops, outer ones first.

    Attributes
    ----------
    setup : list of Stmt
        What a block does first.
    """

    def __init__(self, kernel: tirx.For, plans: Sequence[_PlannedLoop]) -> None:
        self._tiles = info_of(kernel)
        self._plans = plans
        self._outermost = outermost_loops_in(Launch(kernel).body)
        self.setup: list[tirx.Stmt] = []
        self._tokens = 0

    def rewrite(self, kernel: tirx.For) -> tirx.For:
        return mutated(kernel, (tirx.For, self._loop))

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if PLAN not in loop.annotations:
            return mutator.default_mutate(loop)
        planned = self._plans[int(loop.annotations[PLAN])]
        body = body_of(loop, self._tiles, split=planned.is_split)
        assert len(body.units) == len(planned.units), "the loop was planned before"
        is_repeated = not any(map(loop.same_as, self._outermost))
        bounds, loop = _with_named_bounds(loop)
        role = replace(planned.role, batches=self._with_tokens(planned))
        spaces = [IterationSpace(loop, None, 1)]
        rings = []
        for bulk in planned.bulk:
            name, dtype = f"{loop.loop_var.name}_done", str(loop.loop_var.ty.dtype)
            counter = tirx.decl_buffer((1,), dtype, name=name, scope="local")
            space = iteration_space(loop, bulk.slots, counter if is_repeated else None)
            rings.append(_ring_of(bulk, body.units, space))
            spaces.append(space)
            self.setup += [*rings[-1].declared(), *counter_begun(space.counter)]
        written = Emitter(role, body, spaces, _writer(role, body.units, rings)).emit()
        inside = written.each
        for space in spaces:
            inside = space.inside(inside)
        counted = [stmt for space in spaces for stmt in space.counted()]
        whole = [*written.before, replace_loop(loop, body=seq(inside)), *written.behind, *counted]
        return mutator.mutate(seq([*body.declarations, *bounds, *whole]))

    def _with_tokens(self, planned: _PlannedLoop) -> tuple[Batch, ...]:
        """The batches, each with a token of its own: work in flight first."""
        batches = list(planned.role.batches)
        order = sorted(range(len(batches)), key=lambda n: batches[n].token == CP_ASYNC.name)
        for number in order:
            self._tokens += 1
            token = f"{batches[number].token}/{self._tokens}"
            batches[number] = replace(batches[number], token=token)
        return tuple(batches)


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


def _stage_index(loop: tirx.For, copies: BufferCopies) -> ir.Expr:
    """The buffer copy that an iteration works on."""
    number: ir.Expr = loop.loop_var
    if copies.is_read_after:
        last = constant(loop.min + loop.extent - 1)
        shift = None if last is None else -last % copies.count
        number = number - (loop.min + loop.extent - 1) if shift is None else number + shift
    return tirx.floormod(number, tirx.const(copies.count, str(loop.loop_var.ty.dtype)))
