"""The order that mbarriers ensure between groups of threads, each of which has loops of its own.

The statements at mbarriers are run, group by group, for every number of iterations that matters, with
vector clocks: which statements of which threads certainly come before. One schedule tells for all.
A wait is for the phase after the last one that its threads know to be over, if it has that parity, and
orders nothing otherwise. An arrival counts in a phase for certain if its threads know that the one
before is over; where they do not, its mbarrier orders nothing: a thread that arrives twice in a phase
ends it before another one has come. Nothing is said of kernels whose threads wait for ever.

Loops whose number of iterations is not known run `q + c` times for a constant c each: from some q on,
a kernel is in the same state `period` iterations later, what is longer ago than a period being the same
to it. What holds for as many iterations holds for all. Fewer iterations are the first ones of more,
unless something comes behind the loops: then each number of them is run. A condition that is not
known, the same in all iterations, is tried both ways.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import nodes_in
from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.thread_effects import Effects
from tvmtile.ir.barriers import is_barrier, scope_of
from tvmtile.ir.kernels import Launch
from tvmtile.ir.operands import constant, literal
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import mentions, statements_in, substitute, variables_of
from tvmtile.ir.threads import Group
from tvmtile.ir.types import Binary
from tvmtile.passes.gpu.barriers.handover_runs import Event, Execution
from tvmtile.passes.gpu.barriers.handover_steps import (
    Number,
    Reader,
    UnknownHandover,
    Values,
    accesses_in,
    ends_of,
    steps_of_group,
)
from tvmtile.passes.gpu.barriers.items import (
    Barriers,
    Branch,
    Leaf,
    MbarrierStep,
    Sequence,
    UserBarrier,
    items_in,
)
from tvmtile.passes.gpu.barriers.races import may_race

_LONGEST_PERIOD = 256  # three of which are run
_MOST_CHOICES = 2  # conditions that are not known
_MOST_BLOCKS = 16  # whose numbers of iterations are all run
_MOST_CLASSES = 8  # remainders of the number of iterations that differ


class Handovers:
    """Tells which accesses mbarriers order, whatever their iterations."""

    def __init__(
        self,
        launch: Launch,
        effects: Effects,
        footprints: Footprints,
        group: Group | None,
        program: Sequence,
        barriers: Barriers,
    ) -> None:
        self._footprints = footprints
        self._in_sync = footprints.all_threads.bit_length() if group is None else group.count
        self._placed: dict[tuple[int, Any], Effect] = {}
        self._colliding: dict[tuple[int, int, ConflictScope | None], bool] = {}
        self._ordered: dict[tuple[int, int], bool] = {}
        self._runs: list[Execution] = []
        self._steps: set[int] = set()
        self.doubtful: dict[MbarrierStep, None] = {}
        self._family: TripCountFamily | None = None
        self._recurrences: dict[int, tuple[bool, list[ir.Expr]]] = {}
        with contextlib.suppress(UnknownHandover):
            reader = Reader(launch, effects, footprints, group, barriers)
            self._runs = list(self._of_kernel(launch, reader, program))

    @property
    def are_known(self) -> bool:
        """Tell whether the operations of threads at mbarriers are known."""
        return bool(self._runs)

    def order(self, a: Effect, b: Effect) -> bool:
        """Tell whether one of two accesses is over before the other, or they never meet."""
        key = id(a), id(b)
        if key not in self._ordered:
            are_known = self.are_known and self._steps.issuperset(key)  # some are never done
            self._ordered[key] = are_known and all(self._orders(run, a, b) for run in self._runs)
        return self._ordered[key]

    def unordered(self, but: set[tuple[Effect, Effect]]) -> tuple[Effect, Effect] | None:
        """Two accesses by different groups, or one that goes on, that nothing orders; none of some.

        Lanes of a warp that are groups of their own count as one: the order of the text is theirs.
        """
        accesses = {
            id(event.access): event.access
            for run in self._runs
            for events in run.events.values()
            for event in events
        }
        by_root: dict[ir.Var, list[Effect]] = defaultdict(list)
        for access in accesses.values():
            by_root[access.root].append(access)
        for of_root in by_root.values():
            for a, b in itertools.combinations_with_replacement(of_root, 2):
                if not may_race(a, b) or (a, b) in but or (b, a) in but:
                    continue
                if not all(self._orders(run, a, b, in_group=False) for run in self._runs):
                    return a, b
        return None

    def _orders(self, run: Execution, a: Effect, b: Effect, *, in_group: bool = True) -> bool:
        """Tell whether it is so in a run; of the same group only where asked, or what goes on."""
        concurrent = run.concurrent(a, b, in_group=in_group)
        return not any(self._collide(*each) for each in concurrent)

    def _collide(self, one: Event, other: Event, scope: ConflictScope | None) -> bool:
        a, b = self._at(one), self._at(other)
        key = id(a), id(b), scope
        if key not in self._colliding:
            self._colliding[key] = (
                self._footprints.collision(a, b, {}) != Collision.NEVER
                if scope is None
                else self._footprints.conflict(a, b, {}) > scope
            )
        return self._colliding[key]

    def _at(self, event: Event) -> Effect:
        """An access in some iterations."""
        access = event.access
        key = id(access), event.values
        if key not in self._placed:
            recurring, conditions = self._recurring(access)
            first = ends_of(access)  # iterations, which are the same ones however many there are
            values = {
                var: tirx.const(number, str(var.ty.dtype))
                for var, number in event.values
                if recurring or var in first or not self._is_open(var)
            }
            indices = access.indices
            placed = access.changed(
                indices=None if indices is None else tuple(substitute(i, values) for i in indices),
                block=tuple((extent, substitute(by, values)) for extent, by in access.block),
                conditions=tuple(substitute(each, values) for each in conditions),
                loops=tuple(loop for loop in access.loops if loop.var not in values),
            )
            self._placed[key] = self._footprints.first_like(placed)
        return self._placed[key]

    def _is_open(self, var: ir.Var) -> bool:
        return self._family is not None and self._family.is_open(var)

    def _recurring(self, access: Effect) -> tuple[bool, list[ir.Expr]]:
        """Tell whether each period touches the same elements; the conditions that recur."""
        family = self._family
        if family is None:
            return True, [*access.conditions]
        if id(access) not in self._recurrences:
            self._recurrences[id(access)] = (
                family.recur(_elements(access)),
                [each for each in access.conditions if family.recur([each])],
            )
        return self._recurrences[id(access)]

    def _of_kernel(self, launch: Launch, reader: Reader, program: Sequence) -> Iterator[Execution]:
        steps = reader.steps(program)
        self._steps = {id(access) for access in accesses_in(steps)}
        groups = [self._footprints.all_threads]
        for mask in dict.fromkeys(reader.masks):
            groups = [part for each in groups for part in (each & mask, each & ~mask) if part]
        counts = {**_counts(launch), None: (self._in_sync,)}

        threads = [(group, steps_of_group(steps, group, self._footprints)) for group in groups]

        def run(values: Values, *cuts: Any) -> Execution:
            doubtful: dict[Any, MbarrierStep | None] = {}
            while True:
                known = len(doubtful)
                done = Execution(threads, self._footprints, counts, values, doubtful, *cuts)
                if len(doubtful) == known:
                    self.doubtful |= {step: None for step in doubtful.values() if step}
                    return done

        family = TripCountFamily(reader)
        if family.base is None:
            yield run({})
            return
        self._family = family
        some = run(next(family.values(1, 2)))
        accesses = [event.access for events in some.events.values() for event in events]
        family.tiles = [_elements(each) for each in accesses]
        few = family.all_values(launch)
        if few and not all(map(family.recur, family.tiles)):
            self._family = None  # all runs are whole, and nothing need recur
            yield from map(run, few)
            return
        period = family.period
        are_prefixes = family.are_prefixes
        for values in family.values(3 * period + 2, 3 * period + 3):
            longest = run(values, {loop.var for loop in reader.open_loops}, period)
            if longest.states[2 * period] != longest.states[3 * period]:
                raise UnknownHandover
            are_prefixes = are_prefixes and not longest.goes_on
            yield longest
        if not are_prefixes:
            for values in family.values(-1, 3 * period + 2):
                yield run(values)


def growth(value: ir.Expr, growing: Mapping[ir.Var, int]) -> tuple[int, int]:
    """The number of iterations after which a value has grown, and the growth.

    Of what is no sum, quotient or remainder the step only tells whether it is 0.
    """
    if isinstance(value, ir.Var):
        return 1, growing.get(value, 0)
    if not isinstance(value, Binary):
        periods = (growth(each, growing)[0] for each in nodes_in(value, tirx.FloorMod))
        return math.lcm(*periods), int(any(name in growing for name in variables_of(value)))
    (n, a), (m, b) = growth(value.a, growing), growth(value.b, growing)
    period = math.lcm(n, m)
    a, b = a * period // n, b * period // m
    by = literal(value.b)
    if isinstance(value, tirx.FloorDiv | tirx.FloorMod) and by:
        shared = math.gcd(a, by)
        return period * abs(by) // shared, a // shared if isinstance(value, tirx.FloorDiv) else 0
    if isinstance(value, tirx.Add | tirx.Sub):
        return period, a + b if isinstance(value, tirx.Add) else a - b
    if isinstance(value, tirx.Mul) and by is not None:
        return period, a * by
    return period, int(bool(a or b))


def _elements(access: Effect) -> list[ir.Expr]:
    """The expressions that tell the elements of an access."""
    return [*(access.indices or ()), *(stride for _, stride in access.block)]


def orders_groups(program: Sequence) -> bool:
    """Tell whether mbarriers are all that warps of different branches wait for each other at."""
    items = items_in(program)
    parting = [item for item in items if isinstance(item, Branch) and item.diverges]
    return any(item.hands_over for item in parting) and not any(
        is_barrier(child.statement) and scope_of(child.statement) != "warp"
        for item in parting
        for child in items_in(item)
        if isinstance(child, Leaf | UserBarrier)
    )


def _counts(launch: Launch) -> dict[ir.Var | None, tuple[int, ...]]:
    """The number of threads that arrive at each mbarrier in a phase."""
    found: dict[ir.Var | None, tuple[int, ...]] = {}
    for call in nodes_in(launch.body, ir.Call):
        op = operator_of(call)
        counted = None if op is None else op.effects().counts
        if counted is not None:
            if counted[0] in found:
                raise UnknownHandover
            found[counted[0]] = counted[1]
    for loop in statements_in(launch.body, tirx.For, tirx.While):
        ops = map(operator_of, nodes_in(loop, ir.Call))
        if any(op is not None and op.effects().counts is not None for op in ops):
            raise UnknownHandover
    return found


class TripCountFamily:
    """The numbers of iterations that a kernel's loops may have.

    Attributes
    ----------
    base : Var or None
        What they depend on.
    tiles : list
        What tells the elements of each access.
    """

    def __init__(self, reader: Reader) -> None:
        self._numbers = reader.numbers
        self._loops = reader.open_loops
        self._inner = {loop.var for loop in reader.open_loops}
        self.base: ir.Var | None = None
        self.tiles: list[list[ir.Expr]] = []
        self._scale = 1
        self._is_shifted = False
        if not self._loops:
            return
        self.base = self._only_symbol()
        extents = [loop.extent.expression for loop in self._loops]
        divisions = nodes_in(extents, (tirx.FloorDiv, tirx.FloorMod))
        self._scale = math.lcm(*(constant(each.b) or 0 for each in divisions))
        if not 1 <= self._scale <= 1024:
            raise UnknownHandover
        self._count = tirx.Var("count", self.base.ty.dtype)
        self._rest = tirx.Var("rest", self.base.ty.dtype)
        self._analyzer = Analyzer()
        bound = ir.Range.from_min_extent
        self._analyzer.bind(self._rest, bound(0, self._scale))
        scaled = {self.base: self._count * self._scale + self._rest}
        for extent in extents:
            ahead = self._analyzer.simplify(substitute(extent, scaled) - self._count)
            if mentions(ahead, self._count):
                raise UnknownHandover
        self._choices = self._free_conditions(reader.uniform)

    def _free_conditions(self, uniform: list[ir.Var]) -> list[ir.Var]:
        """Conditions on other symbols, the same in all iterations: each may hold or not."""
        found: dict[tvm_ffi.StructuralKey, ir.Var] = {}
        assert self.base is not None
        uniform = [*uniform, self.base]  # all runs take it for one number
        for number in self._numbers:
            is_open = any(not name.same_as(self.base) for name in number.names)
            is_alike = all(any(map(name.same_as, uniform)) for name in number.names)
            if is_open and is_alike and str(number.expression.ty.dtype) == "bool":
                key = tvm_ffi.StructuralKey(number.expression)
                number.become(found.setdefault(key, tirx.Var("choice", "bool")))
        if len(found) > _MOST_CHOICES:
            raise UnknownHandover
        return list(found.values())

    def _only_symbol(self) -> ir.Var:
        """The symbol that the numbers depend on beside iterations, or the difference of two."""
        symbols: dict[ir.Var, None] = {}
        for loop in self._loops:
            symbols.update(dict.fromkeys(loop.extent.names))
        if len(symbols) == 1:
            return next(iter(symbols))
        if len(symbols) != 2:
            raise UnknownHandover
        for symbol, other in itertools.permutations(symbols):
            changed = [
                Analyzer().simplify(substitute(number.expression, {symbol: symbol + other}))
                for number in self._numbers
            ]
            if not any(mentions(each, other) for each in changed):
                for number, each in zip(self._numbers, changed, strict=True):
                    number.become(each)
                self._is_shifted = True
                return symbol
        raise UnknownHandover

    @cached_property
    def period(self) -> int:
        """The iterations after which threads do the same at mbarriers, and to tiles if they can."""
        others = [number.expression for number in self._steady]
        period = math.lcm(*(growth(each, self._growing)[0] for each in others))
        if period > _LONGEST_PERIOD or not self._recur(others, period):
            raise UnknownHandover
        for tile in self.tiles:
            found = [growth(each, self._growing) for each in tile]
            both = math.lcm(period, *(own for own, _ in found))
            if both <= _LONGEST_PERIOD and not any(step for _, step in found):
                period = both
        return period

    @cached_property
    def _growing(self) -> dict[ir.Var, int]:
        """The growth of names from one number of iterations, or iteration, to the next."""
        assert self.base is not None
        return {**dict.fromkeys(self._inner, 1), self.base: self._scale}

    @cached_property
    def _steady(self) -> list[Number]:
        """All numbers but those of iterations."""
        extents = {id(loop.extent) for loop in self._loops}
        return [number for number in self._numbers if id(number) not in extents]

    @property
    def are_prefixes(self) -> bool:
        """Tell whether fewer iterations are the first ones of more, but for what comes behind loops."""
        assert self.base is not None
        return not any(mentions(number.expression, self.base) for number in self._steady)

    def is_open(self, var: ir.Var) -> bool:
        """Tell whether it is the variable of a loop whose number of iterations is not known."""
        return var in self._inner

    def recur(self, expressions: list[ir.Expr]) -> bool:
        """Tell whether expressions are the same in each period of the loops, but for the first."""
        return self._recur(expressions, self.period)

    def _recur(self, expressions: list[ir.Expr], period: int) -> bool:
        """Tell whether expressions are the same after some iterations of the loops, but the first."""
        assert self.base is not None
        analyzer = Analyzer()
        values: dict[ir.Var, Any] = {}
        turns = []
        for name in (*self._inner, self._count):
            turn, rest = (tirx.Var(role, name.ty.dtype) for role in ("turn", "rest"))
            analyzer.bind(turn, ir.Range.from_min_extent(1, 1 << 20))
            analyzer.bind(rest, ir.Range.from_min_extent(0, period))
            values[name] = turn * period + rest
            turns.append(turn)
        analyzer.bind(self._rest, ir.Range.from_min_extent(0, self._scale))
        values[self.base] = values.pop(self._count) * self._scale + self._rest
        simple = [analyzer.simplify(substitute(each, values)) for each in expressions]
        return not any(mentions(each, turn) for each in simple for turn in turns)

    def values(self, first: int, last: int) -> Iterator[Values]:
        """Values of the base, for numbers of iterations from `first` on, one of each kind."""
        assert self.base is not None
        depending = [each for each in self._numbers if mentions(each.expression, self.base)]
        kinds: dict[Any, int] = {}
        for rest in range(self._scale):
            scaled = {self.base: self._count * self._scale + rest}
            kind = tuple(
                str(Analyzer().simplify(substitute(each.expression, scaled))) for each in depending
            )
            kinds.setdefault(kind, rest)
        if len(kinds) > _MOST_CLASSES:
            raise UnknownHandover
        for count, rest, way in itertools.product(range(first, last), kinds.values(), self._ways):
            yield {self.base: count * self._scale + rest, **way}

    def all_values(self, launch: Launch) -> list[Values]:
        """All values of a base that is the index of a block among few; none of others."""
        for loop in launch.blocks:
            base, extent = loop.loop_var, constant(loop.extent) or 0
            if base.same_as(self.base) and extent <= _MOST_BLOCKS and not self._is_shifted:
                return [{base: number, **way} for number in range(extent) for way in self._ways]
        return []

    @property
    def _ways(self) -> list[Values]:
        ways = itertools.product((0, 1), repeat=len(self._choices))
        return [dict(zip(self._choices, way, strict=True)) for way in ways]
