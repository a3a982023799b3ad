"""The pipelined loops of a kernel that can be split between a producer and consumers, and how."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var, nodes_in
from tvmtile.analysis.kernel_info import KernelInfo, let_values
from tvmtile.ir.annotations import STAGE_ANNOTATION, STAGES_ANNOTATION
from tvmtile.ir.operands import bits_of, describe, static_shape
from tvmtile.ir.operators import TileOp, operator_of, operators_in
from tvmtile.ir.rewriting import contains, substitute
from tvmtile.ir.scopes import is_fragment, is_shared
from tvmtile.layout.shared import bytes_of
from tvmtile.passes.tile.schedule.body import (
    Body,
    Obstacle,
    PipelineStmt,
    body_of,
    guard_of,
    without_guard,
)
from tvmtile.passes.tile.schedule.copies import computed_ahead, is_computed, why_not_from_tiles
from tvmtile.passes.tile.schedule.iteration_space import IterationSpace
from tvmtile.passes.tile.schedule.plan import (
    PipelinePlan,
    Producers,
    async_units,
    buffer_copies_of,
    later_units,
    units_in_flight,
    work_of,
)
from tvmtile.passes.tile.schedule.rings import Ring

_BYTES_ON_THE_WAY = 32 << 10
"""The bytes that a multiprocessor must ask for at any time to get as much as memory gives."""


@dataclass(frozen=True)
class SplitLoop:
    """A pipelined loop that is split between a producer and consumers."""

    loop: tirx.For
    space: IterationSpace
    """Its iterations."""
    stages: int
    """Buffer copies of its tiles that it asks for."""
    producers: tuple[int, ...]
    """The units that copy tiles ahead, of `units`."""
    units: list[PipelineStmt]
    """The statements of its body."""
    in_flight: frozenset[int]
    """The units whose work may go on until the next iteration has issued its own."""
    by_threads: frozenset[int]
    """The producers that are loops over elements, which threads do; the others go by tensor maps."""
    computed: frozenset[int]
    """Of these, those whose elements threads compute, or load to compute with, and do not just move."""
    not_computed: str | None = None
    """Why consumers compute operands of products that the producer could compute, if they do."""
    condition: ir.Expr | None = None
    """Whether an iteration is done, in terms of the loop's variable; None where all are."""
    skew: CrossIterationOverlap | None = None
    """How an iteration begins in the one before, if it does."""
    not_skewed: str | None = None
    """Why it does not, though it has two products."""
    rings: tuple[Ring, ...] = ()
    """Of its tiles."""

    def with_stages(self, stages: int) -> SplitLoop:
        """The loop with so many buffer copies."""
        found = replace(self, stages=stages)
        return found if found.may_hold_a_copy else replace(found, in_flight=frozenset())

    @property
    def may_hold_a_copy(self) -> bool:
        """Tell whether enough is on the way while one copy is being read, and one held besides."""
        on_the_way = (self.stages - 2) * sum(map(bytes_of, self.tiles))
        return on_the_way >= _BYTES_ON_THE_WAY

    @property
    def order(self) -> tuple[int, ...]:
        """The units that consumers do, in order."""
        if self.skew is not None:
            return self.skew.order
        return tuple(i for i in range(len(self.units)) if i not in self.producers)

    @property
    def tiles(self) -> list[ir.Var]:
        """The tiles that the producer fills, in order."""
        written = (var for number in self.producers for var in self.units[number].writes)
        return list(dict.fromkeys(filter(is_shared, written)))

    def tiles_of(self, units: Sequence[int]) -> tuple[ir.Var, ...]:
        """The tiles that some of its units write."""
        return tuple(dict.fromkeys(tile for unit in units for tile in self.units[unit].writes))

    def needed_by(self, units: Sequence[int]) -> list[int]:
        """The producers that fill fragments for others, in order."""
        found = set(units)
        for number in sorted(self.computed, reverse=True):
            unit = self.units[number]
            if any(unit.writes.keys() & self.units[other].reads.keys() for other in found):
                found.add(number)
        return sorted(found.difference(units))

    def shares_tiles_with(self, other: SplitLoop) -> bool:
        """Tell whether two loops copy into one of their tiles both."""
        return not set(self.tiles).isdisjoint(other.tiles)

    def filled_together(self) -> list[list[int]]:
        """The producers, by where what they copy is used.

        A small tile that is used just before a large one, as the scales of its rows are, or between
        the first and the last use of one, is waited for and given back with that one.
        """
        used: dict[_Between, list[int]] = {}
        for number in self.producers:
            if not any(map(is_shared, self.units[number].writes)):
                continue
            users = [
                other
                for other in self.order
                if self.units[other].touches.keys() & self.units[number].writes.keys()
            ]
            between = (users[0], users[-1], not self.in_flight.isdisjoint(users))
            used.setdefault(between, []).append(number)
        for small, large in itertools.permutations(list(used), 2):
            if {small, large} <= used.keys() and self._go_together(small, large, used):
                together = small[0], max(small[1], large[1]), small[2] or large[2]
                numbers = used.pop(small) + used.pop(large)
                used[together] = sorted([*used.get(together, ()), *numbers])
        for small in list(used):
            around = [each for each in used if self._is_inside(small, each, used)]
            if around:
                shortest = min(around, key=lambda between: between[1] - between[0])
                used[shortest] = sorted([*used[shortest], *used.pop(small)])
        return list(used.values())

    def _go_together(self, small: _Between, large: _Between, used: Mapping[_Between, Any]) -> bool:
        before = [self.units[n].stmt for n in self.order if small[0] <= n < large[0]]
        multiplies = any(op.role == "product" for stmt in before for op in operators_in(stmt))
        is_small = self._is_much_smaller(used[small], used[large])
        return small[0] < large[0] and is_small and not multiplies

    def _is_inside(self, small: _Between, large: _Between, used: Mapping[_Between, Any]) -> bool:
        is_inside = large[0] <= small[0] and small[1] <= large[1] and small[2] <= large[2]
        return is_inside and self._is_much_smaller(used[small], used[large])

    def _is_much_smaller(self, some: Sequence[int], others: Sequence[int]) -> bool:
        """Compare the bytes of the tiles that units write."""
        sizes = [sum(map(bytes_of, self.tiles_of(units))) for units in (some, others)]
        return sizes[0] * _MUCH_LARGER <= sizes[1]


_MUCH_LARGER = 16
_Between: TypeAlias = tuple[int, int, bool]
"""The first and the last unit that uses some tiles, and whether one that does is in flight."""


def pipelined_loops_in(body: tirx.Stmt) -> list[tirx.For]:
    """The loops that ask for stages, one at least, in the order of the program."""
    loops = nodes_in(body, tirx.For, order="pre")
    return [loop for loop in loops if int(loop.annotations.get(STAGES_ANNOTATION, 0)) > 0]


@dataclass(frozen=True)
class LoopSplitter:
    """Finds out which units of the loops of a kernel a producer can do."""

    tiles: KernelInfo
    kind: str
    """Of the target."""
    why_not: Callable[[TileOp, int], str | None]
    """`(op, stages)`: why a copy can't go on by itself until an mbarrier says that it is done, where
    its tile has so many buffer copies; None where it can.
    """
    why_not_compute: Callable[[SplitLoop], str | None]
    """Why threads of the producer should not compute tiles."""

    def loops_in(self, kernel: tirx.For) -> list[SplitLoop]:
        """The pipelined loops of a kernel, if all of them can be split.

        Raises
        ------
        Obstacle
            If one can't be split.
        """
        for op in operators_in(kernel):
            if not op.effects().is_complete:
                product = f"{op.name} of {describe(buffer_of(op.writes()[0]))}"
                raise Obstacle(f"the {product} goes on until the kernel waits for it")
        loops = pipelined_loops_in(kernel)
        found = [self._split(loop, guard_of(loop, self.tiles)) for loop in loops]
        for tile in dict.fromkeys(tile for each in found for tile in each.tiles):
            inside = sum(_uses(tile, each) for each in found)
            if inside < len(self.tiles.effects_on(tile)):
                raise Obstacle(f"{tile.name} is used outside of the loop too")
        return found

    def _split(self, loop: tirx.For, guard: ir.Expr | None) -> SplitLoop:
        """A loop whose iterations are done where a guard holds."""
        if STAGE_ANNOTATION in loop.annotations:
            raise Obstacle("its stages and its order are given")
        if len(pipelined_loops_in(loop)) > 1:
            raise Obstacle("a pipelined loop is inside of it")
        body = body_of(loop if guard is None else without_guard(loop), self.tiles, split=True)
        copied, none = self._copied(body.units)
        chain = computed_ahead(body.units, self.tiles, copied)
        reason = None if chain else why_not_from_tiles(body.units, self.tiles, copied)
        if chain:
            try:
                found = self._planned(loop, guard, body, copied, chain)
                reason = self.why_not_compute(found)
            except Obstacle as obstacle:
                reason = str(obstacle)
            if reason is None:
                return found
        if not copied:
            raise Obstacle(reason or none)
        found = self._planned(loop, guard, body, copied)
        if found.computed and (why := self.why_not_compute(found)) is not None:
            raise Obstacle(why)
        return replace(found, not_computed=reason)

    def _copied(self, units: Sequence[PipelineStmt]) -> tuple[frozenset[int], str]:
        """The units that copy global memory to shared tiles and those they need, or why none."""
        try:
            return Producers(units, self.tiles).ahead(), ""
        except Obstacle as obstacle:
            return frozenset(), str(obstacle)

    def _planned(
        self,
        loop: tirx.For,
        guard: ir.Expr | None,
        body: Body,
        copied: frozenset[int],
        chain: frozenset[int] = frozenset(),
    ) -> SplitLoop:
        """A loop of which a producer copies what some units do, and computes what others do."""
        producers = copied | chain
        units, count, tiles = body.units, len(body.units), self.tiles
        plan = PipelinePlan.of_producers(producers, count, 1)
        buffer_copies_of(loop, body, plan, tiles)
        stages = int(loop.annotations[STAGES_ANNOTATION])
        are_async, are_later = async_units(units, plan, tiles), later_units(units, plan, tiles)
        by_threads: set[int] = set()
        computed: set[int] = set()
        for number in sorted(producers):
            unit = units[number]
            operators = [op for op in operators_in(unit.stmt) if op.is_tile]
            if number in chain or (are_later[number] and is_computed(unit)):
                computed.add(number)
            elif not are_async[number]:
                raise Obstacle(f"{unit.describe()} is no copy that can go on by itself")
            if number in computed or not operators:
                by_threads.add(number)
                if not tiles.threads.isdisjoint(unit.reads):
                    raise Obstacle(f"{unit.describe()} asks which thread does it")
                continue
            if contains(unit.stmt, tirx.BufferStore):
                raise Obstacle(f"{unit.describe()} is a copy or a loop of threads, by a condition")
            for op in operators:
                reason = self.why_not(_by_values(op, unit.stmt), stages)
                if reason is not None:
                    raise Obstacle(reason)
        found = SplitLoop(
            loop,
            IterationSpace(loop, None, stages),
            stages,
            tuple(sorted(producers)),
            units,
            units_in_flight(units, producers, self.kind),
            frozenset(by_threads),
            frozenset(computed),
            condition=guard,
        )
        for tile in found.tiles:
            _check_tile(tile, found, body, tiles)
        return found.with_stages(stages)


def _uses(tile: ir.Var, split: SplitLoop) -> int:
    """The number of accesses of a tile in a loop that fills it."""
    if tile not in split.tiles:
        return 0
    return sum(len(unit.effects_on(tile)) for unit in split.units)


def _check_tile(tile: ir.Var, found: SplitLoop, body: Body, tiles: KernelInfo) -> None:
    if tile not in tiles.allocated or not is_shared(tile) or tiles.views_of(tile):
        raise Obstacle(f"{tile.name} has views")
    for number, unit in enumerate(body.units):
        if number not in found.producers and tile in unit.writes:
            raise Obstacle(f"{unit.describe()} writes {tile.name} too")


def _by_values(op: TileOp, stmt: tirx.Stmt) -> TileOp:
    """A copy without the names that its unit binds for itself, which the kernel doesn't know."""
    values = let_values(stmt)
    if not values:
        return op
    found = operator_of(substitute(op.to_call(), values))
    assert found is not None, "it was one"
    return found


# Overlap of the products of neighbouring iterations -----------------------------------------------


@dataclass(frozen=True)
class CrossIterationOverlap:
    """The statements of an iteration of two products, of which the second goes on under the next one.

    Where a statement between the products needs the sums of the first, the matrix unit would be idle
    for as long as threads compute. So the second product of an iteration is issued behind the first
    one of the next iteration, and goes on under the statements of that one that do not touch what it
    works on:

        first(0), others(0)
        for i in 1 .. n - 1:  first(i), second(i - 1), others(i)
        second(n - 1)

    All other statements keep their order.
    """

    leading: tuple[int, ...]
    """Up to the first product."""
    early: tuple[int, ...]
    """The units that run while the second product of the iteration before goes on."""
    late: tuple[int, ...]
    """The units that wait for it."""
    second: int
    """The second product."""

    @property
    def first(self) -> int:
        """The first product."""
        return self.leading[-1]

    @property
    def order(self) -> tuple[int, ...]:
        """All of them, in the order of an iteration."""
        return (*self.leading, *self.early, *self.late, self.second)

    @property
    def issued(self) -> tuple[int, ...]:
        """All of them, the second product being that of the iteration before."""
        return (*self.leading, self.second, *self.early, *self.late)


def skew_of(
    units: Sequence[PipelineStmt],
    producers: Collection[int],
    kind: str,
    threads: int,
    registers: int,
) -> CrossIterationOverlap | None:
    """The overlap of a loop's products with its next iteration; None where there are not two.

    The statements `producers` are another role's; `registers` is what each of the consumers has.

    Raises
    ------
    Obstacle
        If they don't.
    """
    own = [number for number in range(len(units)) if number not in producers]
    products = [number for number in own if work_of(units[number], kind) is not None]
    if len(products) != 2:
        return None
    first, second = products
    if second != own[-1]:
        raise Obstacle("the second product is not the last statement of the loop")
    for number in own:
        if units[number].binds or units[number].has_effects:
            raise Obstacle(f"{units[number].describe()} keeps its place")
    leading = tuple(number for number in own if number <= first)
    others = [number for number in own if first < number < second]
    shared = [var for number in leading for var in units[number].conflicts(units[second])]
    if shared:
        raise Obstacle(f"{shared[0].name} would be needed for two iterations at once")
    late = _behind(second, others, units)
    early = tuple(number for number in others if number not in late)
    if not early:
        raise Obstacle("all statements between the products wait for the second one")
    held = registers_held(units, own, threads)
    if held + _SPARE > registers:
        raise Obstacle(
            f"the fragments take {held} registers of a thread, of which it has {registers}; "
            f"{_SPARE} are for all else"
        )
    return CrossIterationOverlap(leading, early, late, second)


_SPARE = 24
"""Registers of a thread for addresses, counters and what is computed on the way."""
REGISTER_BITS = 32


def _behind(second: int, others: Sequence[int], units: Sequence[PipelineStmt]) -> tuple[int, ...]:
    """The statements that depend on the end of a product, directly or through others."""
    late = [second]
    for number in others:
        if any(units[number].conflicts(units[other]) for other in late):
            late.append(number)
    return tuple(late[1:])


def registers_held(units: Sequence[PipelineStmt], own: Sequence[int], threads: int) -> int:
    """The registers of each thread that the fragments of some statements take."""
    return sum(_registers_of(var, threads) for var in _fragments(units, own))


def _fragments(units: Sequence[PipelineStmt], own: Sequence[int]) -> list[ir.Var]:
    touched = (var for number in own for var in units[number].touches)
    return [var for var in dict.fromkeys(touched) if is_buffer_var(var) and is_fragment(var)]


def _registers_of(fragment: ir.Var, threads: int) -> int:
    bits = bits_of(fragment) * math.prod(static_shape(fragment))
    return -(-bits // REGISTER_BITS // threads)
