"""The loops of a kernel between two roles: rings, counters, stages, copies before the loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated
from tvmtile.analysis.kernel_info import KernelInfo
from tvmtile.ir.kernels import Launch, flattened, leaves_loop, outermost_loops_in
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.rewriting import contains, defined_in, variables_of
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP
from tvmtile.passes.tile.schedule.body import (
    Body,
    Obstacle,
    PipelineStmt,
    body_of,
    unit_of,
    without_guard,
)
from tvmtile.passes.tile.schedule.iteration_space import counter_begun, iteration_space
from tvmtile.passes.tile.schedule.resources import BlockMemory
from tvmtile.passes.tile.schedule.rings import Mbarriers, Position, Ring
from tvmtile.passes.tile.schedule.schedule import Action, RoleSchedule, Schedule, Step
from tvmtile.passes.tile.schedule.split_loops import (
    CrossIterationOverlap,
    SplitLoop,
    skew_of,
)


@dataclass(frozen=True)
class Preload:
    """A copy before a split loop, of a tile that only the consumers of the loop read."""

    tile: ir.Var
    unit: PipelineStmt
    """The copy."""
    variable: ir.Var
    """Of the loop."""
    ring: Ring
    """Of the copies of the tile, one for each execution of the loop."""
    around: ir.Var | None
    """Of the innermost serial loop around it."""
    counter: ir.Var | None
    """Counts the executions before, where there may be some."""

    def fills(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement is the copy."""
        op = operator_of(stmt)
        return op is not None and any(buffer_of(at).same_as(self.tile) for at in op.writes())

    def counted(self) -> list[tirx.Stmt]:
        """The statements that count an execution."""
        if self.counter is None:
            return []
        return [tirx.BufferStore(self.counter, tirx.BufferLoad(self.counter, [0]) + 1, [0])]


def schedule_around(loop: SplitLoop, preloads: Sequence[Preload], warps: int) -> Schedule:
    """The executions of a loop as iterations of what is around it, each with the copies before it.

    So many warps use the tiles. A second product, which goes on behind the loop, is done behind the
    release of those that it does not use.
    """
    units = [*(each.unit for each in preloads), *(loop.units[n] for n in loop.order)]
    copies = range(len(preloads))
    runs = [Step(Action.RUN, number) for number in range(len(preloads), len(units))]
    behind = [] if loop.skew is None else [runs.pop()]
    early = [n for n in copies if behind and preloads[n].tile not in units[-1].touches]
    produced = [
        Step(action, n) for n in copies for action in (Action.ACQUIRE, Action.RUN, Action.FILLED)
    ]
    consumed = [
        *(Step(Action.WAIT, n) for n in copies),
        *(*runs, *(Step(Action.RELEASE, n) for n in early), *behind),
        *(Step(Action.RELEASE, n) for n in copies if n not in early),
    ]
    roles = RoleSchedule(tuple(produced)), RoleSchedule(tuple(consumed), arrivals=warps)
    rings = [replace(each.ring, units=(n,)) for n, each in enumerate(preloads)]
    return Schedule(units, roles, rings, {each.tile: each.ring.slots for each in preloads})


Preloaded: TypeAlias = list[tuple[PipelineStmt, SplitLoop, "tirx.For | None"]]
"""Copies, the loops before which they are done, and the innermost serial loops around these."""


def preloaded_in(
    body: tirx.Stmt,
    loops: Sequence[SplitLoop],
    tiles: KernelInfo,
    why_not: Callable[[TileOp, int], str | None],
) -> Preloaded:
    """The copies before a loop of tiles that its consumers then only read.

    `loops` are those that are split, `why_not` is as of `LoopSplitter`.
    """
    found: Preloaded = []
    around: list[tirx.For] = []

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        around.append(loop)
        mutator.default_mutate(loop)
        around.pop()
        return loop

    def sequence(node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        before: list[tuple[tirx.Stmt, TileOp]] = []
        for child in flattened(node):
            op = _copy_of(child)
            if op is not None:
                before.append((child, op))
            elif leaves_loop(child):  # consumers that leave do not come to wait for the copies
                before.clear()
            for split in loops:
                if child.same_as(split.loop):
                    outer = around[-1] if around else None
                    found.extend(
                        (unit_of(stmt, tiles), split, outer)
                        for stmt, op in before
                        if _belongs_to(_written(op), split, tiles) and why_not(op, 1) is None
                    )
            mutator.mutate(child)
        return node

    mutated(body, (tirx.SeqStmt, sequence), (tirx.For, visit))
    return found


def _copy_of(stmt: tirx.Stmt) -> TileOp | None:
    """The copy of a tile that a statement is, if all that it needs is known from the block."""
    op = operator_of(stmt)
    if op is None or op.role != "copy":
        return None
    return None if contains(stmt, ir.TensorLoad) else op


def _written(op: TileOp) -> ir.Var:
    (operand,) = op.writes()
    return buffer_of(operand)


def _belongs_to(tile: ir.Var, split: SplitLoop, tiles: KernelInfo) -> bool:
    if tile not in tiles.allocated or not is_shared(tile) or tiles.views_of(tile):
        return False
    writes, *reads = tiles.effects_on(tile)
    if writes.operator is None:
        return False
    sources = [tiles.root(buffer_of(at)) for at in writes.operator.reads()]
    is_constant = tiles.written.isdisjoint(sources)
    inside = [access for number in split.order for access in split.units[number].effects_on(tile)]
    is_only_read = writes.writes and not any(access.writes for access in (*reads, *inside))
    return is_constant and is_only_read and len(inside) == len(reads)


@dataclass(frozen=True)
class SplitKernel:
    """A kernel that a producer and consumers share, whose tiles have their buffer copies."""

    body: tirx.Stmt
    """The work of a block."""
    tiles: KernelInfo
    loops: Mapping[ir.Var, SplitLoop]
    schedules: Mapping[ir.Var, Schedule]
    """By the variables of the loops; of the roles the producer is the first."""
    around: Mapping[ir.Var, Schedule]
    """Of the executions of a loop, with its preloads as rings."""
    preloads: Sequence[Preload]

    def preloads_of(self, loop: tirx.For) -> list[Preload]:
        """The preloads of a loop."""
        return [each for each in self.preloads if each.variable.same_as(loop.loop_var)]

    def counters(self) -> list[tirx.Stmt]:
        """The statements by which a role begins its counters."""
        counters = [*(each.space.counter for each in self.loops.values())]
        counters += [each.counter for each in self.preloads]
        return [stmt for counter in dict.fromkeys(counters) for stmt in counter_begun(counter)]

    def parts_of(self, loop: tirx.For) -> Body:
        """The statements of a loop."""
        planned = self.loops[loop.loop_var]
        if planned.condition is not None:
            loop = without_guard(loop)
        body = body_of(loop, self.tiles, split=True)
        assert len(body.units) == len(planned.units), "the loop was split before"
        return body


# Rings, counters and stages -----------------------------------------------------------------------


class RolePlanner:
    """Gives the loops of a kernel, of which all tiles have room in `memory`, what two roles need.

    A thread that multiplies has so many `registers`.

    Raises
    ------
    Obstacle
        If one can't be split.
    """

    def __init__(
        self,
        launch: Launch,
        loops: Sequence[SplitLoop],
        memory: BlockMemory,
        registers: int,
        kind: str,
    ) -> None:
        self._launch = launch
        self._loops = loops
        self._memory = memory
        self._registers = registers
        self._kind = kind
        self._outermost = outermost_loops_in(launch.body)
        self.loops: dict[ir.Var, SplitLoop] = {}
        """The loops with their rings, by their variables."""
        for split in loops:
            planned = self._planned(split, list(self.loops.values()))
            self.loops[split.loop.loop_var] = planned

    def preloads(self, preloaded: Preloaded) -> list[Preload]:
        """The copies before the loops, with their rings."""
        return [
            self._preload(unit, self.loops[split.loop.loop_var], around)
            for unit, split, around in preloaded
        ]

    def _planned(self, split: SplitLoop, before: list[SplitLoop]) -> SplitLoop:
        """A loop with its rings; those of a loop before that has the same tiles go on."""
        split = self._skewed(split.with_stages(self._stages_of(split)))
        loop = split.loop
        former = next((s for s in before if split.shares_tiles_with(s)), None)
        counter = self._counter_of(split) if former is None else former.space.counter
        space = iteration_space(loop, split.stages, counter, split.condition)
        warps = self._launch.num_threads // WARP_SIZE
        rings = tuple(
            Ring(
                split.tiles_of(units),
                tuple(units),
                space.position,
                full=Mbarriers.named("full", split.stages, _arrivals(split, units)),
                empty=Mbarriers.named("empty", split.stages, warps),
            )
            for units in split.filled_together()
        )
        _check_own(split, rings)
        split = replace(split, rings=rings, space=space)
        return split if former is None else _going_on(split, former)

    def _preload(self, unit: PipelineStmt, split: SplitLoop, around: tirx.For | None) -> Preload:
        """A copy before a loop, with its mbarriers.

        If it is done several times, the next one goes on while the tile of this one is used, where
        there is room for that, and for a result of as many bytes.
        """
        (tile,) = unit.writes
        is_once = any(map(split.loop.same_as, self._outermost))
        count = None if is_once else tirx.decl_buffer((1,), "int32", name="times", scope="local")
        number = tirx.const(0, "int32") if count is None else tirx.BufferLoad(count, [0])
        copies = 1 if is_once or not self._memory.has_room_for({tile: 3}) else 2
        self._memory.take({tile: copies})
        ring = Ring(
            (tile,),
            (),
            Position.of(number, copies),
            full=Mbarriers.named("full", copies, 1),
            empty=Mbarriers.named("empty", copies, self._launch.num_threads // WARP_SIZE),
        )
        variable = None if around is None else around.loop_var
        return Preload(tile, unit, split.loop.loop_var, ring, variable, count)

    def _skewed(self, split: SplitLoop) -> SplitLoop:
        """A loop, with the order of its statements if the products of two iterations overlap."""
        try:
            skew = self._skew_of(split)
        except Obstacle as obstacle:
            return replace(split, not_skewed=str(obstacle))
        return split if skew is None else replace(split, skew=skew, in_flight=frozenset())

    def _skew_of(self, split: SplitLoop) -> CrossIterationOverlap | None:
        threads = self._launch.num_threads
        skew = skew_of(split.units, split.producers, self._kind, threads, self._registers)
        if skew is not None and split.stages == 1:
            raise Obstacle("its tiles have one buffer copy")
        if skew is not None and split.condition is not None:
            _check_names(split, skew.second)
        return skew

    def _counter_of(self, split: SplitLoop) -> ir.Var | None:
        """The counter of iterations, if not only those of one execution are counted."""
        loop = split.loop
        sharing = [each for each in self._loops if each.shares_tiles_with(split)]
        are_all_done = all(each.condition is None for each in sharing)
        if are_all_done and len(sharing) == 1 and any(map(loop.same_as, self._outermost)):
            return None
        dtypes = {str(each.loop.loop_var.ty.dtype) for each in sharing}
        if len(dtypes) > 1:
            raise Obstacle("loops with the same tiles count in different dtypes")
        return tirx.decl_buffer(
            (1,), dtypes.pop(), name=f"{loop.loop_var.name}_done", scope="local"
        )

    def _stages_of(self, split: SplitLoop) -> int:
        """Buffer copies of its tiles, and of those of loops with the same tiles."""
        sharing = [each for each in self._loops if each.shares_tiles_with(split)]
        for stages in range(min(each.stages for each in sharing), 0, -1):
            copies = dict.fromkeys(split.tiles, stages)
            if self._memory.has_room_for(copies):
                break
        self._memory.take(copies)
        return stages


def _check_names(split: SplitLoop, second: int) -> None:
    """Decline where a product needs names of an iteration of which only the number is known later."""
    own = {split.loop.loop_var, *defined_in(split.loop.body)}
    used = (var for var in variables_of(split.units[second].stmt) if var in own)
    for var in used:
        raise Obstacle(
            f"the second product would need {var.name} of the last iteration that was done"
        )


def _check_own(split: SplitLoop, rings: Sequence[Ring]) -> None:
    """Make sure that fragments on the way to tiles are those of one ring, which is filled in order."""
    needed = [number for ring in rings for number in split.needed_by(ring.units)]
    if len(set(needed)) < len(needed):
        raise Obstacle("tiles are computed from the same fragments, and used at different places")


def _going_on(split: SplitLoop, former: SplitLoop) -> SplitLoop:
    """A loop whose rings are those of one before it."""
    known = {frozenset(ring.tiles): ring for ring in former.rings}
    rings = []
    for ring in split.rings:
        other = known.pop(frozenset(ring.tiles), None)
        if other is not None and _arrivals(former, other.units) != _arrivals(split, ring.units):
            raise Obstacle(f"loops fill {ring.tiles[0].name} by different threads")
        if other is None:
            raise Obstacle(f"loops use {ring.tiles[0].name} together with different tiles")
        rings.append(replace(ring, full=other.full, empty=other.empty))
    if known:
        raise Obstacle(f"a loop does not use {next(iter(known.values())).tiles[0].name}")
    return replace(split, rings=tuple(rings))


def _arrivals(split: SplitLoop, units: Sequence[int]) -> int:
    """The arrivals in a phase of a ring by those who fill it (see `Ring.fill`)."""
    by_threads = split.by_threads.intersection(units)
    if not by_threads:
        return 1
    copying = 0 if by_threads <= split.computed else WARPGROUP
    return copying + WARPGROUP // WARP_SIZE
