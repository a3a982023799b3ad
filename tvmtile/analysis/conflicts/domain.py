"""The threads of a kernel, and what is known of its variables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer, ConstIntBound

from tvmtile._tvm import mapped, nodes_in
from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.conflicts.expressions import period
from tvmtile.analysis.conflicts.symbolic import NotSeparable, Value, evaluate, may_wrap
from tvmtile.analysis.effects import Effect
from tvmtile.ir.kernels import Launch
from tvmtile.ir.operands import integer_range, literal
from tvmtile.ir.rewriting import defined_in, substitute, variables_of
from tvmtile.ir.threads import WARP_SIZE

UNBOUNDED = 1 << 28
"""More than the values of a variable with no bounds."""
_MAX_CASES = 64
Result = TypeVar("Result")


class Domain:
    """Says which values variables have, and simplifies what is made of them.

    `uniform` are names that have one value for all threads, as long as a block runs.

    Attributes
    ----------
    num_threads : int
        Of a block.
    indices_of : callable
        The indices along the axes of a block, of threads by their numbers.
    """

    def __init__(self, launch: Launch, uniform: set[ir.Var]) -> None:
        self._analyzer = Analyzer()
        self.indices_of = launch.indices_of
        self.num_threads = launch.num_threads
        for loop in (*launch.blocks, *launch.threads):
            self._analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
        self._threads = {loop.loop_var for loop in launch.threads}
        self._varying = (self._threads | defined_in(launch.body)) - uniform
        self._symbols: dict[tuple[Hashable, str], ir.Var] = {}
        self._known: dict[Hashable, Any] = {}
        self._canonical: dict[int, tuple[ir.Expr, ir.Expr]] = {}

    @property
    def thread_indices(self) -> set[ir.Var]:
        """The indices of the threads of a block."""
        return self._threads

    @property
    def worst(self) -> ConflictScope:
        """The scope of a conflict where nothing is known."""
        if self.num_threads == 1:
            return ConflictScope.NONE
        return ConflictScope.WARP if self.num_threads <= WARP_SIZE else ConflictScope.BLOCK

    def symbol(self, of: Hashable, role: str, dtype: str, low: int, extent: int) -> ir.Var:
        """A variable with a range that is known, the same one for each role of a thing."""
        key = (of, role)
        if key not in self._symbols:
            var = self._symbols[key] = tirx.Var(role, dtype)
            least, greatest = integer_range(dtype)
            low, high = max(low, least), min(low + extent - 1, greatest)
            if high - low < greatest:
                bounds = (tirx.const(low, dtype), tirx.const(high - low + 1, dtype))
                self._analyzer.bind(var, ir.Range.from_min_extent(*bounds))
            else:  # a narrow dtype, which does not hold the extent
                self._analyzer.update(var, ConstIntBound(low, high))
        return self._symbols[key]

    def cached(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """The value for a key, computed when it is first asked for."""
        if key not in self._known:
            self._known[key] = compute()
        result: Result = self._known[key]
        return result

    def is_uniform(self, var: ir.Var) -> bool:
        """Tell whether a variable has one value for all threads, in all iterations."""
        return var not in self._varying

    def is_loaded(self, name: ir.Var) -> bool:
        """Tell whether a name, of no loop, has a value that a thread gets from memory."""
        return name in self._varying and name not in self._threads and ir.is_prim_expr(name)

    def rows_of(self, access: Effect, threads: np.ndarray) -> list[ir.Expr]:
        """Conditions by which loaded values stay in rows of each thread's own; none without such rows.

        `s[row * 4 + value]`: that `value` is 0 to 3.
        """
        if access.indices is None:
            return []
        found: list[ir.Expr] = []
        index = access.indices[-1]
        for name in filter(self.is_loaded, dict.fromkeys(variables_of(index))):
            start = substitute(index, {name: tirx.const(0, str(name.ty.dtype))})
            value = self.by_threads(start, threads)
            if value is None or literal(self.simplified(index - start - name)) != 0:
                continue
            starts = np.unique(value.numbers)
            length = int(np.diff(starts).min()) if len(starts) == len(threads) > 1 else 1
            if length > 1:
                found += [name >= 0, name < length]
        return found

    def upper_bound(self, expression: ir.Expr) -> int:
        """The largest value of an expression, as far as is known."""
        return int(self._analyzer.const_int_bound(expression).max_value)

    def lower_bound(self, expression: ir.Expr) -> int:
        """The smallest value of an expression, as far as is known."""
        return int(self._analyzer.const_int_bound(expression).min_value)

    def simplified(self, expression: Any) -> ir.Expr:
        """An expression, simplified by the ranges of its variables."""
        return self._analyzer.simplify(expression)

    def canonical(self, expression: ir.Expr) -> ir.Expr:
        """An expression, simplified where it does not wrap around."""
        if type(expression) is tirx.IntImm:
            return expression
        known = self._canonical.get(hash(expression))  # by address; keeps the node alive
        if known is None:
            # One node for all that are alike, so that what is known of it is known of all.
            key = tvm_ffi.StructuralKey(expression)
            simple = self.cached(("simple", key), lambda: self._simple(expression))
            known = self._canonical[hash(expression)] = expression, simple
        return known[1]

    def _simple(self, expression: ir.Expr) -> ir.Expr:
        return expression if may_wrap(expression) else self.simplified(expression)

    def evaluated(
        self,
        expression: ir.Expr,
        threads: np.ndarray | None = None,
        iterations: Mapping[ir.Var, Any] = MappingProxyType({}),
        lanes: int | np.ndarray = 0,
    ) -> Value:
        """An expression at points, simplified where it does not wrap around.

        A point has a thread, if that matters, the values of variables of loops, and a lane.

        Raises
        ------
        NotSeparable
            As of `evaluate`.
        """
        simple = self.canonical(expression)
        if type(simple) is tirx.IntImm:
            return Value(int(simple.value))
        used = self.cached((hash(simple), "used"), lambda: nodes_in(simple, (ir.Var, tirx.Ramp)))
        by_threads = threads is not None and not self._threads.isdisjoint(used)
        if not any(type(node) is tirx.Ramp or node in iterations for node in used):
            # Many points are of one thread, and many accesses use alike expressions.
            found = self.cached((hash(simple), by_threads), lambda: self._found(simple, by_threads))
            if found is not None and by_threads and np.ndim(found.numbers):
                return Value(found.numbers[threads], found.term)
            if found is not None:
                return found
            if not by_threads:
                raise NotSeparable
        indices = {} if threads is None else self.indices_of(threads)
        return evaluate(simple, {**indices, **iterations}, self.is_uniform, lanes)

    def _found(self, simple: ir.Expr, by_threads: bool) -> Value | None:
        """The value of an expression in each thread, or in all; None where it is not separable."""
        points = self.indices_of(np.arange(self.num_threads)) if by_threads else {}
        try:
            return evaluate(simple, points, self.is_uniform, 0)
        except NotSeparable:
            return None

    def by_threads(self, condition: ir.Expr, threads: np.ndarray) -> Value | None:
        """A condition for each of some threads; None where that depends on more."""
        try:
            return self.evaluated(condition, threads)
        except NotSeparable:
            return None

    def excludes(self, expression: ir.Expr, low: Any, high: Any) -> bool:
        """Tell whether an expression is certainly no number from `low` to `high`."""
        bound = self._analyzer.const_int_bound(expression)
        if int(bound.min_value) > high or int(bound.max_value) < low:
            return True
        if low != high:
            return False
        wanted = int(low)
        if self._analyzer.can_prove(expression != wanted):
            return True
        cases = self._by_remainders(expression)
        return bool(cases) and all(self._analyzer.can_prove(case != wanted) for case in cases)

    def _by_remainders(self, expression: ir.Expr) -> list[ir.Expr]:
        """An expression for each combination of the remainders that it takes of its variables.

        None, if it takes none, or there are too many.
        """
        expression = mapped(expression, (tirx.FloorMod, _with_positive_divisor))
        numbers = {var: period([expression], var) for var in variables_of(expression)}
        numbers = {var: number for var, number in numbers.items() if number > 1}
        if not numbers or math.prod(numbers.values()) > _MAX_CASES:
            return []
        found: list[Any] = []
        for remainders in itertools.product(*map(range, numbers.values())):
            values = {
                var: self._quotient(var) * numbers[var] + remainder
                for var, remainder in zip(numbers, remainders, strict=True)
            }
            found.append(substitute(expression, values))
        return found

    def _quotient(self, var: ir.Var) -> ir.Var:
        return self.symbol(var, "quotient", str(var.ty.dtype), -UNBOUNDED, 2 * UNBOUNDED)

    def remainder(self, expression: ir.Expr) -> tuple[int, int]:
        """A number, and what is left of an expression when it is divided by that."""
        known = self._analyzer.modular_set(expression)
        return int(known.coeff) or 1, int(known.base)

    def threads(self, access: Effect) -> tuple[Any, Any, Any]:
        """The threads to enumerate, and the first and last thread that each stands for."""
        threads = np.arange(self.num_threads)
        if not access.is_collective:
            return threads, threads, threads
        if not access.is_gathered:
            threads = threads[::WARP_SIZE]
        leaders = threads // WARP_SIZE * WARP_SIZE
        return threads, leaders, np.minimum(leaders + WARP_SIZE, self.num_threads) - 1


def _with_positive_divisor(remainder: tirx.FloorMod) -> ir.Expr:
    """TVM makes `-(x % -3)` of `(-x) % 3`, and does not see through it."""
    divisor = literal(remainder.b)
    if divisor is None or divisor >= 0:
        return remainder
    return 0 - tirx.floormod(0 - remainder.a, -divisor)
