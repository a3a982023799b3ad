"""PlanPipeline: give the statements of a pipelined loop stages and an order."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.analysis.kernel_info import KernelInfo, info_of
from tvmtile.errors import InvalidOperand, warn
from tvmtile.ir.annotations import (
    IN_FLIGHT_ANNOTATION,
    ORDER_ANNOTATION,
    STAGE_ANNOTATION,
    STAGES_ANNOTATION,
)
from tvmtile.ir.asynchronous import CP_ASYNC
from tvmtile.ir.kernels import bound_target, flattened, with_kernels
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import replace_loop, seq
from tvmtile.ir.spans import first_location
from tvmtile.passes.tile.schedule.body import Body, Obstacle, body_of
from tvmtile.passes.tile.schedule.plan import (
    PIPELINE_ANNOTATIONS,
    PipelinePlan,
    Producers,
    buffer_copies_of,
    other_annotations,
    with_work_in_flight,
)
from tvmtile.passes.tile.schedule.resources import BlockMemory, warn_of_fewer_stages
from tvmtile.target import gpu

MOST_STAGES = "tvmtile.most_stages"
"""Attribute of a function: no pipelined loop has more stages."""


@prim_func_pass("PlanPipeline", requires=(Property.REGIONS,), establishes=(Property.PLANNED,))
def PlanPipeline(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give each statement of a pipelined loop a stage, and a place in the order.

    With `num_stages=s` there are `s` copies of a tile: what copies from global memory into shared
    tiles, and what must come before that, gets stage 0, everything else stage `s - 1`, so that copies
    run `s - 1` iterations ahead. In an iteration the copies come first. A branch with a copy in it
    becomes one branch a statement, where its condition can be computed again for each. The stages and
    the order that a user gives are taken, if they leave the result as it is; like TileLang's, they have
    an entry a statement and none for names whose value can be computed again (with one for each name,
    those are ignored).

    With three stages and more, a product that the hardware computes in the background and whose sums
    nothing else in the loop touches stays in flight: it is waited for when the next iteration has begun
    its own, and holds a buffer copy for so long, so copies run one iteration less ahead.

    The plan is written as the annotations `tvmtile.stage` and `tvmtile.order`, and `tvmtile.in_flight`
    where some of the work is, an entry for each statement but those names, allocations and views. A
    loop that can't be pipelined loses its annotations, and a warning says why; what it computes never
    depends on the plan. There are fewer stages, and a warning too, where a block has no memory for so
    many buffer copies, or the target's instructions can't leave so many copies in flight; the attribute
    `tvmtile.most_stages` of a function is a limit that whoever runs the passes sets. Loops of no or one
    stage have nothing to plan.

    Raises
    ------
    InvalidOperand
        If a user's stages or order do not fit the statements of the loop.
    """
    target = bound_target(func)
    capability = gpu(target)
    kind = str(target.kind.name) if target is not None else ""
    limit = func.attrs.get(MOST_STAGES) if func.attrs is not None else None
    has_waits = capability is not None and capability.has_async_copies
    awaited = CP_ASYNC.max_behind + 2 if has_waits else None  # in use, and issued while others fly

    def plan(kernel: tirx.For) -> tirx.For:
        memory = BlockMemory(kernel, capability)
        return _PipelinePlanner(info_of(kernel), memory, limit, awaited, kind).rewrite(kernel)

    return with_kernels(func, plan)


class _PipelinePlanner:
    def __init__(
        self,
        tiles: KernelInfo,
        memory: BlockMemory,
        limit: int | None,
        awaited: int | None = None,
        kind: str = "",
    ) -> None:
        self._limit = limit
        self._awaited = awaited
        self._kind = kind
        self._tiles = tiles
        self._memory = memory
        self._multi_buffered: set[ir.Var] = set()  # by the loops around

    def rewrite(self, kernel: tirx.For) -> tirx.For:
        return mutated(kernel, (tirx.For, self._loop))

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        outer = self._multi_buffered
        result = mutator.default_mutate(self._planned(loop))
        self._multi_buffered = outer
        return result

    def _planned(self, loop: tirx.For) -> tirx.For:
        if not set(PIPELINE_ANNOTATIONS) & set(loop.annotations):
            return loop
        try:
            if STAGE_ANNOTATION in loop.annotations:
                body, plan = self._user_schedule(loop)
            else:
                body, plan = self._that_fit(loop, int(loop.annotations[STAGES_ANNOTATION]))
        except Obstacle as obstacle:
            name = loop.loop_var.name
            warn(f"the loop over {name} is not pipelined: {obstacle}", first_location(loop))
            return _without_plan(loop)
        return (
            _without_plan(loop)
            if plan.distance == 0 and list(plan.order) == sorted(plan.order)
            else _annotated(loop, body, plan)
        )

    # The user's stages and order ---------------------------------------------------------------

    def _user_schedule(self, loop: tirx.For) -> tuple[Body, PipelinePlan]:
        stages, orders = (
            [int(entry) for entry in loop.annotations[name]]
            for name in (STAGE_ANNOTATION, ORDER_ANNOTATION)
        )
        body = body_of(loop, self._tiles)
        kept = _scheduled(loop, body)
        if len(stages) == len(kept) > len(body.units):
            stages, orders = ([x[i] for i in range(len(x)) if kept[i]] for x in (stages, orders))
        if len(stages) != len(body.units):
            body = body_of(loop, self._tiles, split=True)
        _check_entries(stages, orders, body, loop)
        first = min(stages, default=0)
        plan = PipelinePlan(tuple(stage - first for stage in stages), tuple(orders))
        self._check(loop, body, plan)
        return body, plan

    # As many stages as the memory of a block has room for ---------------------------------------

    def _that_fit(self, loop: tirx.For, num_stages: int) -> tuple[Body, PipelinePlan]:
        outer = self._multi_buffered
        limits = (limit for limit in (self._limit, self._awaited) if limit is not None)
        most = min([num_stages, *map(int, limits)])
        for stages in range(max(1, most), 0, -1):
            self._multi_buffered = outer
            body, plan = self._by_dependences(loop, stages)
            copies = buffer_copies_of(loop, body, plan, self._tiles)
            counts = {buffer: each.count for buffer, each in copies.items()}
            if self._memory.has_room_for(counts):
                self._memory.take(counts)
                break
        if stages < num_stages:
            cannot = "can't wait" if stages == self._awaited else "has no room"
            warn_of_fewer_stages(loop, stages, num_stages, f"{self._memory.name} {cannot}")
        return body, plan

    # What can run ahead ------------------------------------------------------------------------

    def _by_dependences(self, loop: tirx.For, num_stages: int) -> tuple[Body, PipelinePlan]:
        if num_stages < 2:
            return Body(), PipelinePlan((), ())
        body = body_of(loop, self._tiles, split=True)
        producers = Producers(body.units, self._tiles)
        while True:
            plan = producers.plan(num_stages - 1)
            plan = with_work_in_flight(plan, body.units, self._kind)
            try:
                self._check(loop, body, plan)
            except Obstacle as obstacle:
                producers.refuse_writers_of(obstacle.buffer, str(obstacle))
                continue
            for unit, reason in producers.refused:
                warn(f"{unit.describe()} does not run ahead: {reason}", unit.location)
            return body, plan

    def _check(self, loop: tirx.For, body: Body, plan: PipelinePlan) -> None:
        copies = buffer_copies_of(loop, body, plan, self._tiles)
        for buffer in copies:
            if buffer in self._multi_buffered:
                raise Obstacle(f"a loop around has copies of {buffer.name}", buffer)
        self._multi_buffered = self._multi_buffered | set(copies)


# Annotations -------------------------------------------------------------------------------------


def _scheduled(loop: tirx.For, body: Body) -> list[bool]:
    """For each statement that is no declaration, whether it is scheduled or a name computed again."""
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


def _annotated(loop: tirx.For, body: Body, plan: PipelinePlan) -> tirx.For:
    annotations = other_annotations(loop)
    annotations[STAGE_ANNOTATION] = list(plan.stage)
    annotations[ORDER_ANNOTATION] = list(plan.order)
    if plan.in_flight:
        annotations[IN_FLIGHT_ANNOTATION] = [
            int(i in plan.in_flight) for i in range(len(plan.stage))
        ]
    statements = [*body.declarations, *body.bindings.values(), *(u.stmt for u in body.units)]
    in_place = list(flattened(loop.body))
    units = [stmt for stmt in in_place if any(stmt.same_as(unit.stmt) for unit in body.units)]
    unchanged = len(units) == len(body.units)
    return replace_loop(
        loop, annotations=annotations, body=loop.body if unchanged else seq(statements)
    )


def _without_plan(loop: tirx.For) -> tirx.For:
    return replace_loop(loop, annotations=other_annotations(loop))
