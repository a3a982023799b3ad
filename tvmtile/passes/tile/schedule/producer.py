"""The producer of a specialised kernel: its copies, and what they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile.analysis.effects import effects_of
from tvmtile.ir.asynchronous import CP_ASYNC, asynchronously
from tvmtile.ir.conditions import is_assumption
from tvmtile.ir.kernels import flattened, is_loop_exit, leaves_loop
from tvmtile.ir.rewriting import (
    contains,
    defined_in,
    has_effect,
    mentions,
    replace_loop,
    retyped,
    seq,
    substitute,
    variables_of,
    with_fresh_variables,
)
from tvmtile.ir.scopes import is_local_array, is_shared
from tvmtile.passes.tile.schedule.body import Obstacle, has_effects
from tvmtile.passes.tile.schedule.emit import Conditional, Emitter
from tvmtile.passes.tile.schedule.rings import Filling, Ring
from tvmtile.passes.tile.schedule.roles import SplitKernel
from tvmtile.passes.tile.schedule.schedule import Action, RoleSchedule, Step
from tvmtile.passes.tile.schedule.split_loops import SplitLoop


@dataclass(frozen=True)
class Producer:
    """The statements of a producer."""

    body: tirx.Stmt
    """The copies, in the loops and under the conditions around them, and what they need."""
    replayed: list[tirx.Stmt]
    """The other work of the kernel that it does: index tiles, bounds."""

    def needed_by(self, others: tirx.Stmt) -> list[tirx.Stmt]:
        """The replayed statements that write what other statements need."""
        return [
            stmt
            for stmt in self.replayed
            if any(mentions(others, buffer) for buffer in _written_in([stmt]))
        ]

    def apart_from(self, others: tirx.Stmt) -> tuple[list[tirx.Stmt], tirx.Stmt]:
        """The body with buffers of its own for what others compute too, and their allocations."""
        own = {buffer: retyped(buffer) for buffer in _written_in(self.needed_by(others))}
        return [tirx.AllocBuffer(buffer) for buffer in own.values()], substitute(self.body, own)


def producer_of(kernel: SplitKernel, thread: ir.Expr, threads: int) -> Producer:
    """The work of the producer; `thread` is a number among its `threads`.

    Raises
    ------
    Obstacle
        If the copies depend on what only consumers know.
    """
    slicer = _Slicer(kernel, thread, threads)
    whole = with_fresh_variables(seq([*kernel.counters(), *slicer.slice()]))
    _check_known(whole, kernel.body)
    return Producer(whole, slicer.replayed)


class _Slicer:
    """Keeps the loops to be split, what is around them, and what they need."""

    def __init__(self, kernel: SplitKernel, thread: ir.Expr, threads: int) -> None:
        self.replayed: list[tirx.Stmt] = []
        self._kernel = kernel
        self._body, self._tiles = kernel.body, kernel.tiles
        self._thread = thread
        self._threads = threads
        self._filled: set[ir.Var] = set()

    def slice(self) -> list[tirx.Stmt]:
        kept = self._of(self._body)
        self._check_replayed(kept)
        return kept

    def _of(self, stmt: tirx.Stmt) -> list[tirx.Stmt]:
        """The producer's part of a statement; nothing without loops to split and exits of loops."""
        loops = self._kernel.loops
        if isinstance(stmt, tirx.For) and stmt.loop_var in loops:
            return self._producing(stmt, loops[stmt.loop_var])
        if is_loop_exit(stmt):
            return [stmt]
        has_split = contains(stmt, tirx.For, lambda loop: loop.loop_var in loops)
        if not has_split and not leaves_loop(stmt):
            return []
        if isinstance(stmt, tirx.SeqStmt):
            return self._sequence(stmt)
        if isinstance(stmt, tirx.For):
            self._check_pure(stmt.min, stmt.extent)
            return [replace_loop(stmt, body=seq(self._of(stmt.body)))]
        if isinstance(stmt, tirx.IfThenElse):
            self._check_pure(stmt.condition)
            other = None if stmt.else_case is None else seq(self._of(stmt.else_case))
            return [tirx.IfThenElse(stmt.condition, seq(self._of(stmt.then_case)), other)]
        if isinstance(stmt, tirx.AttrStmt):
            return [tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, seq(self._of(stmt.body)))]
        raise Obstacle("the loop is inside of a statement that only consumers do")

    def _sequence(self, stmt: tirx.SeqStmt) -> list[tirx.Stmt]:
        """The loops, and before them what they use."""
        kept: list[tirx.Stmt] = []
        used: set[ir.Var] = set()
        for child in reversed(list(flattened(stmt))):
            parts = self._needed(child, used)
            used |= self._used(parts)
            kept = [*parts, *kept]
        return kept

    def _needed(self, child: tirx.Stmt, used: set[ir.Var]) -> list[tirx.Stmt]:
        """The producer's part of a statement, of whose later ones something is used."""
        if isinstance(child, tirx.Bind):
            if child.var not in used:
                return []
            self._check_pure(child.value)
            return [child]
        if is_assumption(child):
            inside = defined_in(self._body)
            unknown = any(v in inside and v not in used for v in variables_of(child))
            return [] if unknown else [child]
        for each in self._kernel.preloads:
            if each.fills(child):
                self._filled.add(each.tile)
                filling = Filling(each.ring, self._thread, self._threads)
                copy = each.ring.arriving(child)
                return [filling.acquired(), copy, *filling.filled(), *each.counted()]
        parts = self._of(child)
        if parts or used.isdisjoint(self._roots_written(child)):
            return parts
        self.replayed.insert(0, child)
        return [child]

    def _used(self, statements: Sequence[tirx.Stmt]) -> set[ir.Var]:
        """The names and buffers that statements need, but for what the producer fills."""
        used = {self._tiles.root(var) for stmt in statements for var in variables_of(stmt)}
        return used - self._filled

    def _roots_written(self, *statements: tirx.Stmt) -> list[ir.Var]:
        return [self._tiles.root(buffer) for buffer in _written_in(statements)]

    def _check_replayed(self, kept: list[tirx.Stmt]) -> None:
        """Make sure that what is used is computed by the producer, and that it may compute it."""
        own = self._roots_written(*self.replayed)
        for root in dict.fromkeys(own):
            if root not in self._tiles.allocated or not _may_be_each_roles(root):
                raise Obstacle(f"the copies depend on {root.name}, which only consumers know")
            if self._tiles.views_of(root):
                raise Obstacle(f"the copies depend on {root.name}, which has views")
        everywhere, written = Counter(self._roots_written(self._body)), Counter(own)
        for root in self._used(kept):
            if everywhere[root] != written[root]:
                raise Obstacle(f"the copies depend on {root.name}, which only consumers know")
        if any(has_effects(stmt) for stmt in self.replayed):
            raise Obstacle(f"the copies depend on {own[0].name}, which is not just computed")

    def _check_pure(self, *values: object) -> None:
        for value in values:
            if has_effect(value):
                raise Obstacle(f"{value} has an effect, which the copies would repeat")

    def _producing(self, loop: tirx.For, split: SplitLoop) -> list[tirx.Stmt]:
        body, space = self._kernel.parts_of(loop), split.space.of(loop)
        for number in split.producers:
            self._filled.update(body.units[number].writes)
        role, _ = self._kernel.schedules[loop.loop_var].roles
        ring_of = {n: ring for ring in split.rings for n in ring.units}
        copies = split.by_threads - split.computed
        fillings = {ring: self._filling(ring, split) for ring in split.rings}

        def write(step: Step, _: ir.Expr | None) -> list[Conditional]:
            if step.action is Action.RUN:
                number, stmt = step.subject, body.units[step.subject].stmt
                found = [stmt]
                if number in copies:
                    found = [asynchronously(CP_ASYNC.name, stmt)]
                    ring = ring_of[number]
                    if number == [n for n in ring.units if n in copies][-1]:
                        found.append(fillings[ring].copied())
                elif number not in split.by_threads:
                    found = [ring_of[number].arriving(stmt)]
            else:
                filling = fillings[split.rings[step.subject]]
                is_first = step.action is Action.ACQUIRE
                found = [filling.acquired()] if is_first else filling.filled()
            return [((), stmt) for stmt in found]

        written = Emitter(role, body, [space], write).emit()
        return [*space.begun([space.each(written.each)]), *space.counted()]

    def _filling(self, ring: Ring, split: SplitLoop) -> Filling:
        copies = any(n in split.by_threads - split.computed for n in ring.units)
        computes = any(n in split.computed for n in ring.units)
        return Filling(ring, self._thread, self._threads, copies, computes)


def producer_role(split: SplitLoop) -> RoleSchedule:
    """The steps of a producer: ring by ring, loads of operands begin before the tiles are free.

    The order in which threads fill a tile: what they copy themselves, the copies of tensor maps, what
    they compute.
    """
    steps: list[Step] = []
    for number, ring in enumerate(split.rings):
        own = sorted({*split.needed_by(ring.units), *split.computed.intersection(ring.units)})
        first = next((place for place, n in enumerate(own) if n in ring.units), 0)
        loops = [n for n in ring.units if n in split.by_threads - split.computed]
        copies = [n for n in ring.units if n not in split.by_threads]
        steps += [Step(Action.RUN, n) for n in own[:first]]
        steps.append(Step(Action.ACQUIRE, number))
        steps += [Step(Action.RUN, n) for n in (*loops, *copies, *own[first:])]
        steps.append(Step(Action.FILLED, number))
    return RoleSchedule(tuple(steps))


def _written_in(statements: Sequence[tirx.Stmt]) -> list[ir.Var]:
    """The buffers that statements write, once for each time."""
    return [a.root for stmt in statements for a in effects_of(stmt) if a.writes]


def _may_be_each_roles(buffer: ir.Var) -> bool:
    """Tell whether each of two roles may have such a buffer for itself."""
    return is_shared(buffer) or is_local_array(buffer)


def _check_known(producer: tirx.Stmt, body: tirx.Stmt) -> None:
    """Make sure that it uses no name that something else in the kernel binds."""
    bound = defined_in(body)
    unknown = next((var for var in variables_of(producer) if var in bound), None)
    if unknown is not None:
        raise Obstacle(f"the copies depend on {unknown.name}, which only consumers know")
