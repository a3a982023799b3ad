"""The loops of a kernel between two roles: rings, counters, stages, copies before the loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated, nodes_in
from tvmtile.analysis.effects import Effect
from tvmtile.ir.kernels import Launch, flattened, leaves_loop, outermost_loops_in
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.rewriting import contains, defined_in, variables_of
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP
from tvmtile.passes.tile.schedule.body import Body, KernelTiles, body_of, without_guard
from tvmtile.passes.tile.schedule.candidates import (
    Candidate,
    CrossIterationOverlap,
    Unskewed,
    Unsuitable,
    skew_of,
)
from tvmtile.passes.tile.schedule.iteration_space import FilteredIterationSpace, IterationSpace
from tvmtile.passes.tile.schedule.resources import BlockMemory
from tvmtile.passes.tile.schedule.rings import Mbarriers, Ring


@dataclass(frozen=True)
class Preload:
    """A copy before a split loop, of a tile that only the consumers of the loop read."""

    tile: ir.Var
    variable: ir.Var
    """Of the loop."""
    ring: Ring
    """Of the copies of the tile, one for each execution of the loop."""
    around: ir.Var | None
    """Of the innermost serial loop around it."""
    counter: ir.Var | None
    """Counts the executions before, where there may be some."""
    is_free_early: bool
    """The second of a loop's products, which goes on behind the loop, does not use it."""

    def fills(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement is the copy."""
        op = operator_of(stmt)
        return op is not None and any(buffer_of(at).same_as(self.tile) for at in op.writes())

    def renamed(self, before: tirx.For, behind: tirx.For) -> Preload:
        """The same in a kernel whose tiles have got copies."""
        pairs = zip(
            nodes_in(before, tirx.AllocBuffer), nodes_in(behind, tirx.AllocBuffer), strict=True
        )
        (tile,) = (buffer_of(new) for old, new in pairs if buffer_of(old).same_as(self.tile))
        return replace(self, tile=tile)

    def counted(self) -> list[tirx.Stmt]:
        """What counts an execution."""
        if self.counter is None:
            return []
        return [tirx.BufferStore(self.counter, tirx.BufferLoad(self.counter, [0]) + 1, [0])]


Preloaded: TypeAlias = list[tuple[ir.Var, Candidate, "tirx.For | None"]]
"""Tiles, the loops before which they are copied, and the innermost serial loops around these."""


def preloaded_in(
    body: tirx.Stmt,
    candidates: Sequence[Candidate],
    tiles: KernelTiles,
    why_not: Callable[[TileOp, int], str | None],
) -> Preloaded:
    """The tiles that are copied before a loop and then only read by its consumers.

    With each are the loop, and the innermost serial loop around the copy, if there is one.

    `candidates` are the loops that are split, `why_not` is as of `candidates_in`.
    """
    found: Preloaded = []
    around: list[tirx.For] = []

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        around.append(loop)
        mutator.default_mutate(loop)
        around.pop()
        return loop

    def sequence(node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        before: list[TileOp] = []
        for child in flattened(node):
            op = _copy_of(child)
            if op is not None and why_not(op, 1) is None:
                before.append(op)
            elif leaves_loop(child):  # consumers that leave do not come to wait for the copies
                before.clear()
            for candidate in candidates:
                if child.same_as(candidate.loop):
                    outer = around[-1] if around else None
                    found.extend((_written(op), candidate, outer) for op in before)
            mutator.mutate(child)
        return node

    mutated(body, (tirx.SeqStmt, sequence), (tirx.For, visit))
    return [each for each in found if _belongs_to(each[0], each[1], tiles)]


def _copy_of(stmt: tirx.Stmt) -> TileOp | None:
    """The copy of a tile that a statement is, if all that it needs is known from the block."""
    op = operator_of(stmt)
    if op is None or not op.is_tile or not op.is_copy:
        return None
    return None if contains(stmt, ir.TensorLoad) else op


def _written(op: TileOp) -> ir.Var:
    (operand,) = op.writes()
    return buffer_of(operand)


def _belongs_to(tile: ir.Var, candidate: Candidate, tiles: KernelTiles) -> bool:
    if tile not in tiles.allocated or not is_shared(tile) or tiles.views_of(tile):
        return False
    writes, *reads = [each for each in tiles.accesses if each.root.same_as(tile)]
    sources = [tiles.root(buffer_of(at)) for at in _operator(writes).reads()]
    is_constant = not any(
        each.writes and any(each.root.same_as(source) for source in sources)
        for each in tiles.accesses
    )
    inside = [
        access
        for number in candidate.order
        for access in candidate.units[number].accesses
        if access.root.same_as(tile)
    ]
    is_only_read = writes.writes and not any(access.writes for access in (*reads, *inside))
    return is_constant and is_only_read and len(inside) == len(reads)


def _operator(access: Effect) -> TileOp:
    assert access.operator is not None, "the first access is the copy"
    return access.operator


# Loops --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """A loop that is split."""

    candidate: Candidate
    """The loop as it was."""
    rings: list[Ring]
    """Of its tiles."""
    space: IterationSpace
    """Its iterations."""

    @property
    def variable(self) -> ir.Var:
        """The variable of the loop."""
        return self.candidate.loop.loop_var

    def filled(self, ring: Ring) -> list[ir.Var]:
        """The tiles of a ring."""
        return [tile for unit in ring.units for tile in self.candidate.units[unit].writes]


Splits = Mapping[ir.Var, Split]
"""By the variable of the loop."""


def counters_of(splits: Splits, preloads: Sequence[Preload]) -> list[tirx.Stmt]:
    """Counters that begin."""
    counters = [
        *(each.space.counter for each in splits.values()),
        *(each.counter for each in preloads),
    ]
    return [
        statement
        for counter in dict.fromkeys(each for each in counters if each is not None)
        for statement in (
            tirx.AllocBuffer(counter),
            tirx.BufferStore(counter, tirx.const(0, str(counter.ty.dtype)), [0]),
        )
    ]


def parts_of(loop: tirx.For, split: Split, tiles: KernelTiles) -> Body:
    """The statements of the loop, in a kernel whose tiles have their buffer copies."""
    if split.candidate.condition is not None:
        loop = without_guard(loop)
    body = body_of(loop, tiles, split=True)
    assert len(body.units) == len(split.candidate.units), "the loop was split before"
    return body


# Rings, counters and stages -----------------------------------------------------------------------


class Splitter:
    """Splits the candidates of a kernel, of which all tiles have room in `memory`.

    A thread that multiplies has so many `registers`.

    Raises
    ------
    Unsuitable
        If one can't be split.
    """

    def __init__(
        self,
        launch: Launch,
        candidates: Sequence[Candidate],
        memory: BlockMemory,
        registers: int,
        kind: str,
    ) -> None:
        self._launch = launch
        self._candidates = candidates
        self._memory = memory
        self._registers = registers
        self._kind = kind
        self._outermost = outermost_loops_in(launch.body)
        self._unskewed: dict[ir.Var, Unskewed] = {}
        self.splits: dict[ir.Var, Split] = {}
        """The loops with their rings, by their variables."""
        for candidate in candidates:
            split = self._split(candidate, list(self.splits.values()))
            self.splits[candidate.loop.loop_var] = split

    def preloads(self, preloaded: Preloaded) -> list[Preload]:
        """The copies before the loops, with their rings."""
        return [
            self._preload(tile, self.splits[candidate.loop.loop_var].candidate, around)
            for tile, candidate, around in preloaded
        ]

    def _split(self, candidate: Candidate, before: list[Split]) -> Split:
        """A loop with its rings; those of a loop before that has the same tiles go on."""
        candidate = self._skewed(candidate.with_stages(self._stages_of(candidate)))
        loop = candidate.loop
        former = next((s for s in before if candidate.shares_tiles_with(s.candidate)), None)
        counter = self._counter_of(candidate) if former is None else former.space.counter
        space = IterationSpace(loop, counter)
        if candidate.condition is not None:
            assert counter is not None, "where some are left out, iterations are counted"
            space = FilteredIterationSpace.named(loop, counter, candidate.condition)
        warps = self._launch.num_threads // WARP_SIZE
        rings = [
            Ring(
                space.number,
                tuple(units),
                *between,
                full=Mbarriers.named("full", candidate.stages, _arrivals(candidate, units)),
                empty=Mbarriers.named("empty", candidate.stages, warps),
            )
            for between, units in candidate.uses().items()
        ]
        _check_own(candidate, rings)
        split = Split(candidate, rings, space)
        return split if former is None else _going_on(split, former)

    def _preload(self, tile: ir.Var, candidate: Candidate, around: tirx.For | None) -> Preload:
        """A copy before a loop, with its mbarriers.

        If it is done several times, the next one goes on while the tile of this one is used, where
        there is room for that, and for a result of as many bytes.
        """
        is_once = any(map(candidate.loop.same_as, self._outermost))
        count = None if is_once else tirx.decl_buffer((1,), "int32", name="times", scope="local")
        number = tirx.const(0, "int32") if count is None else tirx.BufferLoad(count, [0])
        copies = 1 if is_once or not self._memory.has_room_for({tile: 3}) else 2
        self._memory.take({tile: copies})
        ring = Ring(
            number,
            (),
            candidate.order[0],
            candidate.order[-1],
            in_flight=False,
            full=Mbarriers.named("full", copies, 1),
            empty=Mbarriers.named("empty", copies, self._launch.num_threads // WARP_SIZE),
        )
        skew = candidate.skew
        is_early = skew is None or tile not in candidate.units[skew.second].touches
        variable = None if around is None else around.loop_var
        return Preload(tile, candidate.loop.loop_var, ring, variable, count, is_early)

    def skews(self) -> list[CrossIterationOverlap | Unskewed | None]:
        """How the products of each loop overlap, or why they don't; None where there are not two."""
        return [
            self._unskewed.get(variable, split.candidate.skew)
            for variable, split in self.splits.items()
        ]

    def _skewed(self, candidate: Candidate) -> Candidate:
        """A loop, with the order of its statements if the products of two iterations overlap."""
        try:
            skew = self._skew_of(candidate)
        except Unskewed as obstacle:
            self._unskewed[candidate.loop.loop_var] = obstacle
            return candidate
        return candidate if skew is None else replace(candidate, skew=skew, in_flight=frozenset())

    def _skew_of(self, candidate: Candidate) -> CrossIterationOverlap | None:
        threads = self._launch.num_threads
        skew = skew_of(candidate.units, candidate.producers, self._kind, threads, self._registers)
        if skew is not None and candidate.stages == 1:
            raise Unskewed("its tiles have one buffer copy")
        if skew is not None and candidate.condition is not None:
            _check_names(candidate, skew.second)
        return skew

    def _counter_of(self, candidate: Candidate) -> ir.Var | None:
        """What counts iterations, if others than those of one execution of the loop are counted."""
        loop = candidate.loop
        sharing = [each for each in self._candidates if each.shares_tiles_with(candidate)]
        are_all_done = all(each.condition is None for each in sharing)
        if are_all_done and len(sharing) == 1 and any(map(loop.same_as, self._outermost)):
            return None
        dtypes = {str(each.loop.loop_var.ty.dtype) for each in sharing}
        if len(dtypes) > 1:
            raise Unsuitable("loops with the same tiles count in different dtypes")
        return tirx.decl_buffer(
            (1,), dtypes.pop(), name=f"{loop.loop_var.name}_done", scope="local"
        )

    def _stages_of(self, candidate: Candidate) -> int:
        """Buffer copies of its tiles, and of those of loops with the same tiles."""
        sharing = [each for each in self._candidates if each.shares_tiles_with(candidate)]
        for stages in range(min(each.stages for each in sharing), 0, -1):
            copies = dict.fromkeys(candidate.tiles, stages)
            if self._memory.has_room_for(copies):
                break
        self._memory.take(copies)
        return stages


def _check_names(candidate: Candidate, second: int) -> None:
    """Decline where a product needs names of an iteration of which only the number is known later."""
    own = {candidate.loop.loop_var, *defined_in(candidate.loop.body)}
    used = (var for var in variables_of(candidate.units[second].stmt) if var in own)
    for var in used:
        raise Unskewed(
            f"the second product would need {var.name} of the last iteration that was done"
        )


def _check_own(candidate: Candidate, rings: Sequence[Ring]) -> None:
    """Make sure that fragments on the way to tiles are those of one ring, which is filled in order."""
    needed = [number for ring in rings for number in candidate.needed_by(ring.units)]
    if len(set(needed)) < len(needed):
        raise Unsuitable("tiles are computed from the same fragments, and used at different places")


def _going_on(split: Split, former: Split) -> Split:
    """A loop whose rings are those of one before it."""
    known = {frozenset(former.filled(ring)): ring for ring in former.rings}
    rings = []
    for ring in split.rings:
        other = known.pop(frozenset(split.filled(ring)), None)
        if other is not None and _arrivals(former.candidate, other.units) != _arrivals(
            split.candidate, ring.units
        ):
            raise Unsuitable(f"loops fill {split.filled(ring)[0].name} by different threads")
        if other is None:
            raise Unsuitable(
                f"loops use {split.filled(ring)[0].name} together with different tiles"
            )
        rings.append(replace(ring, full=other.full, empty=other.empty))
    if known:
        raise Unsuitable(f"a loop does not use {former.filled(next(iter(known.values())))[0].name}")
    return replace(split, rings=rings)


def _arrivals(candidate: Candidate, units: Sequence[int]) -> int:
    """How often a phase of a ring is arrived at by who fills it (see `Ring.fill`)."""
    by_threads = candidate.by_threads.intersection(units)
    if not by_threads:
        return 1
    copying = 0 if by_threads <= candidate.computed else WARPGROUP
    return copying + WARPGROUP // WARP_SIZE
