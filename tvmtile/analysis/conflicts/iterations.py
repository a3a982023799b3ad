"""The values of loops' variables in two accesses, by what is known of their iterations."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile.analysis.conflicts.dependence import Distance, Side
from tvmtile.analysis.conflicts.domain import UNBOUNDED, Domain
from tvmtile.analysis.conflicts.expressions import period, repetition
from tvmtile.analysis.conflicts.points import Free
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.operands import constant, integer_range, literal
from tvmtile.ir.rewriting import substitute, variables_of
from tvmtile.ir.types import is_integer

_MAX_ITERATIONS = 4096
_MAX_CASES = 64
_MANY_CASES = 16

Case = tuple[Any, Any]
"""The values of a loop's variable in the earlier and in the later access."""


class Iterations:
    """The loops around two accesses.

    `distances` are those of the accesses along loops; any, for loops that are not in it. With
    `by_one_thread` one does both: it goes through divergent loops in their order too.
    """

    def __init__(
        self,
        earlier: Effect,
        later: Effect,
        distances: Mapping[Loop, Distance],
        domain: Domain,
        *,
        by_one_thread: bool = False,
    ) -> None:
        self._accesses = (earlier, later)
        self._distances = distances
        self._domain = domain
        self._by_one_thread = by_one_thread
        # Threads do not go through other loops together, so an order of their iterations says nothing.
        self._related = [
            loop
            for loop in earlier.loops
            if loop in later.loops
            and self._has_order(loop)
            and _side(distances.get(loop)) == Side.BOTH
        ]

    def _has_order(self, loop: Loop) -> bool:
        return loop.is_uniform or self._by_one_thread

    @property
    def decisive(self) -> list[Loop]:
        """The loops around both whose iterations decide which elements are touched."""
        return [
            loop
            for loop in self._related
            if any(loop in access.decisive_loops for access in self._accesses)
        ]

    @property
    def have_many_cases(self) -> bool:
        """Looking at all iterations at once is less work than going through their cases."""
        ways = (self.cases_of(loop) for loop in self.decisive)
        return any(not way or len(way[0]) > _MANY_CASES for way in ways)

    def key(self, side: int, cases: Mapping[Loop, Case]) -> Hashable:
        """Tells apart the iterations of one of the accesses that `values` speaks of."""
        access = self._accesses[side]
        loops = [loop for loop in access.loops if loop in access.decisive_loops]
        return (
            access,
            side if loops else 0,
            *(
                hash(self._case(loop, cases)[side])
                if loop in self._related
                else (self._distances.get(loop), self._has_order(loop))
                for loop in loops
            ),
        )

    def _case(self, loop: Loop, cases: Mapping[Loop, Case]) -> Case:
        if loop in cases:
            return cases[loop]
        key = ("case", loop, self._distances[loop])
        return self._domain.cached(key, lambda: self._any_case(loop))

    def values(self, side: int, cases: Mapping[Loop, Case]) -> tuple[dict[ir.Var, Any], list[Free]]:
        """The values of the loops' variables in one of the accesses, and what to enumerate."""
        access = self._accesses[side]
        values: dict[ir.Var, ir.Expr] = {}
        free: list[Free] = []
        for loop in access.loops:
            if loop not in access.decisive_loops or loop.var is None:
                continue
            if loop in self._related:
                values[loop.var] = self._case(loop, cases)[side]
            else:
                values[loop.var] = self._alone(loop, side, values, free)
        for name, numbers in self._domain.cached(
            (access, "loaded"), lambda: self._loaded(access)
        ).items():
            dtype, low, count = str(name.ty.dtype), int(numbers[0]), len(numbers)
            chosen = self._domain.symbol((name, low, count), "loaded", dtype, low, count)
            free.append(Free(chosen, numbers, chosen >= tirx.const(low, dtype)))
            values[name] = chosen
        return values, free

    def _loaded(self, access: Effect) -> dict[ir.Var, np.ndarray]:
        """The values that conditions leave to names in indices that threads load from memory."""
        loops = {loop.var for loop in access.loops}
        names = [name for name in variables_of(access.indices or ()) if name not in loops]
        if not any(map(self._domain.is_loaded, names)):
            return {}
        parts = list(itertools.chain.from_iterable(map(conjuncts, access.conditions)))
        found = {}
        for name in filter(self._domain.is_loaded, dict.fromkeys(names)):
            bounds = known_bounds(name, [part for part in parts if name in variables_of(part)])
            if bounds is not None and bounds[1] - bounds[0] < _MAX_ITERATIONS:
                found[name] = np.arange(bounds[0], bounds[1] + 1)
        return found

    def _any_case(self, loop: Loop) -> Case:
        """The values of a loop's variable in both accesses, as far as their distance tells."""
        assert loop.var is not None
        low, extent = literal(loop.low), literal(loop.extent)
        if low is not None and extent is not None and literal(loop.step) == 1:
            iteration = self._symbol(loop, "iteration", low, max(extent, 1))
        else:
            iteration = self._symbol(loop, "iteration", -UNBOUNDED, 2 * UNBOUNDED)
        distance = self._distances[loop]
        if distance.is_exact:
            return iteration, iteration + loop.step * distance.iterations
        later = self._symbol(loop, "distance", distance.iterations, UNBOUNDED)
        return iteration, iteration + later * loop.step

    def cases_of(self, loop: Loop, chosen: Mapping[Loop, Case] | None = None) -> list[list[Case]]:
        """The cases that a loop's iterations fall into, in the ways that are not too many.

        The fewest come first; those by the remainders say the least, since they know no bounds. The
        bounds of a loop may be known in the cases that are `chosen` of loops around it.
        """
        if loop.var is None:
            return []
        distance, cached = self._distances[loop], self._domain.cached
        number = math.lcm(*(self._period(access, loop) for access in self._accesses))
        bounds = self._bounds(loop, chosen or {})
        ways = [
            cached((loop, distance, number), lambda: self._remainders(loop, distance, number)),
            cached((loop, distance, bounds), lambda: self._each(loop, distance, bounds)),
        ]
        return sorted(filter(None, ways), key=len)

    def _bounds(self, loop: Loop, chosen: Mapping[Loop, Case]) -> tuple[int, int] | None:
        """The first value and the number of iterations of a loop, where both accesses have the same."""
        found = []
        for side in range(2):
            values = {outer.node.loop_var: case[side] for outer, case in chosen.items()}
            found += [constant(substitute(each, values)) for each in (loop.low, loop.extent)]
        low, extent = found[:2]
        same = found[:2] == found[2:]
        return (low, extent) if same and low is not None and extent is not None else None

    def _period(self, access: Effect, loop: Loop) -> int:
        var = loop.var
        if var is None or loop not in access.decisive_loops:
            return 1
        return self._domain.cached((access, loop), lambda: period(access.indices or (), var))

    def _each(self, loop: Loop, distance: Distance, bounds: tuple[int, int] | None) -> list[Case]:
        """A case for each iteration, or pair of them."""
        assert loop.var is not None
        step = literal(loop.step)
        if bounds is None or step is None or bounds[1] > _MAX_CASES:
            return []
        low, extent = bounds
        pairs = _pairs(distance, extent)
        if len(pairs) > _MAX_CASES:
            return []
        dtype = str(loop.var.ty.dtype)
        return [
            (tirx.const(low + step * a, dtype), tirx.const(low + step * b, dtype)) for a, b in pairs
        ]

    def _remainders(self, loop: Loop, distance: Distance, number: int) -> list[Case]:
        """The cases by the remainders of the two iterations' numbers."""
        if literal(loop.step) != 1:
            return []
        if number == 1 or number * number > _MAX_CASES:
            return []
        whole = self._symbol(loop, "whole", -UNBOUNDED, 2 * UNBOUNDED)
        cases: list[Case] = []
        for remainder in range(number):
            base = whole * number + remainder
            if distance.is_exact:
                cases.append((base, base + distance.iterations))
                continue
            more = self._symbol(loop, "more", 0, UNBOUNDED)
            nearest = range(distance.iterations, distance.iterations + number)
            cases += [(base, base + (apart + more * number)) for apart in nearest]
        return cases

    def _alone(
        self, loop: Loop, side: int, values: dict[ir.Var, ir.Expr], free: list[Free]
    ) -> ir.Expr:
        """The value of the variable of a loop whose iterations are those of one access only."""
        assert loop.var is not None
        low = substitute(loop.low, values)
        extent = substitute(loop.extent, values)
        distance = self._distances.get(loop)
        has_order = self._has_order(loop)
        if has_order and side == 1 and _side(distance) == Side.LATER and distance is not None:
            return low + loop.step * distance.iterations
        if has_order and side == 0 and distance == Distance.LAST and literal(loop.step) == 1:
            return low + (extent - 1)
        most = self._domain.upper_bound(extent)
        role = ("earlier", "later")[side]
        if most > _MAX_ITERATIONS:
            return self._symbol(loop, f"{role}_value", -UNBOUNDED, 2 * UNBOUNDED)
        iteration = self._symbol(loop, role, 0, max(most, 1))
        numbers = self._distinct(loop, self._accesses[side], np.arange(max(most, 1)))
        free.append(Free(iteration, numbers, iteration < extent))
        return low + iteration * loop.step

    def _distinct(self, loop: Loop, access: Effect, numbers: np.ndarray) -> np.ndarray:
        """Iterations of a loop that stand for all others.

        What an access touches repeats with the remainders that its indices take of the variable. Of
        the conditions, those on the variable alone are decided here, and those that nobody knows do not
        count.
        """
        low, step = literal(loop.low), literal(loop.step)
        if loop.var is None or low is None or step is None or literal(loop.extent) is None:
            return numbers
        relevant: list[ir.Expr | None] = list(access.indices or ())
        relevant += [bound for other in access.loops for bound in (other.low, other.extent)]
        for condition in itertools.chain.from_iterable(map(conjuncts, access.conditions)):
            others = [var for var in variables_of(condition) if not var.same_as(loop.var)]
            if any(map(self._domain.is_uniform, others)):
                continue
            holds = None if others else self._decided(condition, loop.var, low + step * numbers)
            if holds is None:
                relevant.append(condition)
            else:
                numbers = numbers[holds]
        period = repetition([each for each in relevant if each is not None], loop.var)
        if period is None or step != 1:
            return numbers
        return numbers[np.sort(np.unique(numbers % period, return_index=True)[1])]

    def _decided(self, condition: ir.Expr, var: ir.Var, values: Any) -> Any:
        """The values for which a condition on a variable holds; None if that is not known."""
        try:
            found = evaluate(condition, {var: values}, self._domain.is_uniform, 0)
        except NotSeparable:
            return None
        known = found.term is None
        return np.broadcast_to(np.asarray(found.numbers, bool), values.shape) if known else None

    def _symbol(self, loop: Loop, role: str, low: int, extent: int) -> ir.Var:
        assert loop.var is not None
        return self._domain.symbol(loop, role, str(loop.var.ty.dtype), low, extent)


def known_bounds(name: ir.Var, conditions: list[ir.Expr]) -> tuple[int, int] | None:
    """The least and the greatest value of a name where conditions hold; None where one is unknown."""
    if not is_integer(name):  # but a buffer, say
        return None
    analyzer = Analyzer()
    with contextlib.ExitStack() as stack:
        for condition in conditions:
            stack.enter_context(analyzer.constraint_scope(condition))
        bound = analyzer.const_int_bound(name)
        low, high = int(bound.min_value), int(bound.max_value)
    least, greatest = integer_range(str(name.ty.dtype))
    return (low, high) if least < low <= high < greatest else None


def _pairs(distance: Distance, extent: int) -> list[tuple[int, int]]:
    """The iterations of a loop that two accesses may be in."""
    if distance.is_exact:
        return [
            (number, number + distance.iterations) for number in range(extent - distance.iterations)
        ]
    pairs = itertools.combinations(range(extent), 2)
    return [(first, second) for first, second in pairs if second - first >= distance.iterations]


def _side(distance: Distance | None) -> Side | None:
    return None if distance is None else distance.side
