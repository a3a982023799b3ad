"""Whether two threads of a block meet at an element, in two accesses.

The threads, and the loops that only one of the accesses knows, are enumerated: the indices are
evaluated for all of them with numpy, so swizzles, divisions and bit operations are nothing special.
What is the same for all threads (blocks, sizes, the loops around both accesses) stays symbolic: an
index is an array plus a symbolic term, and what counts is the difference of the two terms. Where
that is not a constant, the loops are looked at iteration by iteration, or by the remainder of the
iteration's number, which decides which version of a tile it uses.

Correctness rests on: an index that can't be evaluated is taken to be able to have any value, and a
condition that can't be evaluated to hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile.passes.barriers.effects import Loop, SharedAccess
from tvmtile.passes.barriers.symbolic import NotSeparable, Value, evaluate
from tvmtile.passes.kernels import Launch
from tvmtile.rewriting import contains, substitute

__all__ = ["Footprints", "Meeting", "Order"]

_SIMDGROUP = 32
_MAX_POINTS = 1 << 21  # threads times iterations times lanes that are enumerated
_MAX_ITERATIONS = 4096
_MAX_CASES = 64
_UNBOUNDED = 1 << 28


class Order(IntEnum):
    """In which iterations of a loop two accesses are, the earlier and the later one.

    `SAME`, `NEXT` and `LATER` are of a loop around both, `FIRST` of one around the later access only,
    which is in its first iteration, and `LAST` of one around the earlier access only.
    """

    SAME = 0
    NEXT = 1
    LATER = 2
    FIRST = 3
    LAST = 4


class Meeting(IntEnum):
    """Whether two threads meet at an element."""

    NEVER = 0
    IN_SIMDGROUP = 1
    """Threads of one simdgroup only."""
    IN_BLOCK = 2


_Case = tuple[Any, Any]
"""The values of a loop's variable in the earlier and in the later access."""


@dataclass
class _Points:
    """What is enumerated of an access: threads, iterations, lanes, places in a block.

    Attributes
    ----------
    values : dict of Var to ndarray
        Of threads' indices and loops' variables, at each point.
    lanes : ndarray
        The lane of a vector.
    offsets : list of ndarray
        The place in the access's block, an array an axis.
    first, last : ndarray
        The threads that may touch the element: one, or those of a simdgroup.
    """

    values: dict[ir.Var, Any]
    lanes: Any
    offsets: list[Any]
    first: Any
    last: Any

    def where(self, mask: Any) -> _Points:
        """The points at which a mask holds."""
        return _Points(
            {var: values[mask] for var, values in self.values.items()},
            self.lanes[mask],
            [offset[mask] for offset in self.offsets],
            self.first[mask],
            self.last[mask],
        )


class _TooMany(Exception):
    """More points than are worth enumerating."""


class Footprints:
    """Compares accesses of a kernel.

    Parameters
    ----------
    launch : Launch
        The loops over blocks and threads.
    """

    def __init__(self, launch: Launch) -> None:
        self._analyzer = Analyzer()
        self._threads = launch.threads_fastest_first
        self._num_threads = launch.num_threads
        for loop in (*launch.blocks, *launch.threads):
            self._analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
        self._varying = {loop.loop_var for loop in launch.threads} | _defined_in(launch.body)
        self._symbols: dict[tuple[Loop, str], ir.Var] = {}
        self._known: dict[Any, Meeting] = {}

    def meeting(
        self, earlier: SharedAccess, later: SharedAccess, orders: Mapping[Loop, Order]
    ) -> Meeting:
        """Tell whether two different threads touch one element, in the two accesses.

        Parameters
        ----------
        earlier, later : SharedAccess
            In the order of the program.
        orders : mapping of Loop to Order
            In which iterations they are; any, for loops that are not in it.
        """
        around = {*earlier.loops, *later.loops}
        known = frozenset((loop, order) for loop, order in orders.items() if loop in around)
        key = (earlier, later, known)
        if key not in self._known:
            self._known[key] = self._found(earlier, later, dict(known))
        return self._known[key]

    def _found(
        self, earlier: SharedAccess, later: SharedAccess, orders: dict[Loop, Order]
    ) -> Meeting:
        if not earlier.root.same_as(later.root):
            return Meeting.NEVER
        if earlier.indices is None or later.indices is None:
            return self._worst
        comparison = _Comparison(self, earlier, later, orders)
        shared = [loop for loop in orders if loop in comparison.related and comparison.uses(loop)]
        return self._refined(comparison, {}, shared)

    @property
    def _worst(self) -> Meeting:
        return Meeting.IN_SIMDGROUP if self._num_threads <= _SIMDGROUP else Meeting.IN_BLOCK

    def _refined(
        self, comparison: _Comparison, cases: dict[Loop, _Case], loops: list[Loop]
    ) -> Meeting:
        """Compare, and where that remains open go through the cases of one loop after the other."""
        try:
            meeting, is_exact = comparison.compare(cases)
        except _TooMany:
            return self._worst
        if meeting == Meeting.NEVER or is_exact:
            return meeting
        for number, loop in enumerate(loops):
            possible = comparison.cases_of(loop)
            if not possible:
                continue
            rest = loops[number + 1 :]
            worst = Meeting.NEVER
            for case in possible:
                worst = max(worst, self._refined(comparison, {**cases, loop: case}, rest))
                if worst == self._worst:
                    break
            return worst
        return meeting

    # What expressions are made of ----------------------------------------------------------------

    def symbol(self, loop: Loop, role: str, low: int, extent: int) -> ir.Var:
        """A variable for a loop's iteration, with a range that the analyzer knows."""
        key = (loop, role)
        if key not in self._symbols:
            dtype = "int32" if loop.var is None else str(loop.var.ty.dtype)
            var = tirx.Var(role, dtype)
            bounds = (tirx.const(low, dtype), tirx.const(extent, dtype))
            self._analyzer.bind(var, ir.Range.from_min_extent(*bounds))
            self._symbols[key] = var
        return self._symbols[key]

    def is_uniform(self, var: ir.Var) -> bool:
        """Tell whether a variable has one value for all threads, in all iterations."""
        return var not in self._varying

    def upper_bound(self, expression: Any) -> int:
        """The largest value of an expression, as far as is known."""
        return int(self._analyzer.const_int_bound(expression).max_value)

    def simplified(self, expression: Any) -> Any:
        """An expression, simplified by the ranges of its variables."""
        return self._analyzer.simplify(expression)

    def lanes_of_threads(self, is_collective: bool) -> tuple[Any, Any, Any]:
        """The threads to enumerate, and the first and last thread that each stands for."""
        threads = np.arange(self._num_threads)
        if not is_collective:
            return threads, threads, threads
        leaders = threads[::_SIMDGROUP]
        return leaders, leaders, np.minimum(leaders + _SIMDGROUP, self._num_threads) - 1

    def indices_of(self, threads: Any) -> dict[ir.Var, Any]:
        """The indices along the axes of a block, of threads by their numbers."""
        indices: dict[ir.Var, Any] = {}
        for loop in self._threads:
            extent = int(loop.extent)
            indices[loop.loop_var] = threads % extent
            threads = threads // extent
        return indices

    def differ(self, difference: Any, low: Any, high: Any) -> bool:
        """Tell whether an expression is certainly no number from `low` to `high`."""
        bound = self._analyzer.const_int_bound(difference)
        if int(bound.min_value) > high or int(bound.max_value) < low:
            return True
        if low != high:
            return False
        return bool(self._analyzer.can_prove(difference != int(low)))


def _defined_in(body: tirx.Stmt) -> set[ir.Var]:
    """The variables that a body defines: they have a value of their own in every iteration."""
    found: set[ir.Var] = set()
    tvm_ffi.structural_walk(
        body,
        [
            (tirx.For, lambda loop: found.add(loop.loop_var)),
            ((tirx.Bind, tirx.Let), lambda bind: found.add(bind.var)),
        ],
    )
    return found


class _Comparison:
    """Two accesses, side by side."""

    def __init__(
        self,
        footprints: Footprints,
        earlier: SharedAccess,
        later: SharedAccess,
        orders: dict[Loop, Order],
    ) -> None:
        self._of = footprints
        self._accesses = (earlier, later)
        self._orders = orders
        # Threads do not go through other loops together, so an order of their iterations says nothing.
        self.related = [
            loop
            for loop in earlier.loops
            if loop in later.loops
            and loop.is_uniform
            and orders.get(loop) in (Order.SAME, Order.NEXT, Order.LATER)
        ]

    def uses(self, loop: Loop) -> bool:
        """Tell whether an index or a condition depends on a loop."""
        return any(_mentions(access, loop.var) for access in self._accesses)

    # The values of the loops' variables ------------------------------------------------------------

    def _case(self, loop: Loop) -> _Case:
        """The values of a loop's variable in both accesses, as far as its order tells."""
        assert loop.var is not None
        low, extent = _constant(loop.node.min), _constant(loop.node.extent)
        bounded = low is not None and extent is not None and _constant(loop.step) == 1
        iteration = self._of.symbol(
            loop,
            "iteration",
            low if bounded and low is not None else -_UNBOUNDED,
            max(extent, 1) if bounded and extent is not None else 2 * _UNBOUNDED,
        )
        order = self._orders[loop]
        if order == Order.SAME:
            return iteration, iteration
        if order == Order.NEXT:
            return iteration, iteration + loop.step
        later = self._of.symbol(loop, "distance", 1, _UNBOUNDED)
        return iteration, iteration + later * loop.step

    def cases_of(self, loop: Loop) -> list[_Case]:
        """The cases that a loop's iterations fall into, none where there are too many."""
        if loop.var is None:
            return []
        order = self._orders[loop]
        low, extent, step = map(_constant, (loop.node.min, loop.node.extent, loop.step))
        dtype = str(loop.var.ty.dtype)
        if low is not None and extent is not None and step is not None:
            pairs = _pairs(order, extent)
            if len(pairs) <= _MAX_CASES:
                return [
                    (tirx.const(low + step * a, dtype), tirx.const(low + step * b, dtype))
                    for a, b in pairs
                ]
        return self._remainders(loop, order) if step == 1 else []

    def _remainders(self, loop: Loop, order: Order) -> list[_Case]:
        """The cases by the remainders of the two iterations' numbers."""
        period = math.lcm(1, *(_period(access, loop.var) for access in self._accesses))
        if period == 1 or period * period > _MAX_CASES:
            return []
        whole = self._of.symbol(loop, "whole", -_UNBOUNDED, 2 * _UNBOUNDED)
        cases: list[_Case] = []
        for remainder in range(period):
            base = whole * period + remainder
            if order == Order.SAME:
                cases.append((base, base))
            elif order == Order.NEXT:
                cases.append((base, base + 1))
            else:
                more = self._of.symbol(loop, "more", 0, _UNBOUNDED)
                cases += [
                    (base, base + (distance + more * period)) for distance in range(1, period + 1)
                ]
        return cases

    def _side(self, side: int, cases: dict[Loop, _Case]) -> tuple[dict[ir.Var, Any], list[Any]]:
        """The values of the loops' variables in an access, and the iterations to enumerate."""
        access = self._accesses[side]
        values: dict[ir.Var, Any] = {}
        free: list[Any] = []
        for loop in access.loops:
            if loop.var is None:
                continue
            if loop in self.related:
                case = cases[loop] if loop in cases else self._case(loop)
                values[loop.var] = case[side]
            elif _mentions(access, loop.var):
                values[loop.var] = self._alone(loop, side, values, free)
        return values, free

    def _alone(self, loop: Loop, side: int, values: dict[ir.Var, Any], free: list[Any]) -> Any:
        """The value of the variable of a loop whose iterations are those of one access only."""
        low = substitute(loop.node.min, values)
        extent = substitute(loop.node.extent, values)
        order = self._orders.get(loop)
        if loop.is_uniform and side == 1 and order == Order.FIRST:
            return low
        if loop.is_uniform and side == 0 and order == Order.LAST and _constant(loop.step) == 1:
            return low + (extent - 1)
        most = self._of.upper_bound(extent)
        role = ("earlier", "later")[side]
        if most > _MAX_ITERATIONS:
            return self._of.symbol(loop, f"{role}_value", -_UNBOUNDED, 2 * _UNBOUNDED)
        iteration = self._of.symbol(loop, role, 0, max(most, 1))
        free.append((iteration, max(most, 1), iteration < extent))
        return low + iteration * loop.step

    # Points ------------------------------------------------------------------------------------------

    def _points(self, access: SharedAccess, free: list[Any]) -> _Points:
        """Every thread, iteration, lane and place of a block, as arrays of the same length."""
        threads, first, last = self._of.lanes_of_threads(access.is_collective)
        assert access.indices is not None
        lanes = max(map(_lanes, access.indices))
        extents = [len(threads), *(most for _, most, _ in free), lanes]
        extents += [extent for extent, _ in access.block]
        if math.prod(extents) > _MAX_POINTS:
            raise _TooMany
        who, *iterations = np.indices(extents).reshape(len(extents), -1)
        values = self._of.indices_of(threads[who])
        for (var, _, _), numbers in zip(free, iterations, strict=False):
            values[var] = numbers
        lane, *offsets = iterations[len(free) :]
        return _Points(values, lane, offsets, first[who], last[who])

    def _restricted(self, points: _Points, conditions: list[Any]) -> _Points:
        for condition in conditions:
            for part in _conjuncts(condition):
                try:
                    value = self._evaluated(part, points)
                except NotSeparable:
                    continue
                if value.term is None:
                    mask = np.broadcast_to(np.asarray(value.numbers, bool), points.first.shape)
                    points = points.where(mask)
        return points

    def _evaluated(self, expression: Any, points: _Points) -> Value:
        simple = self._of.simplified(expression)
        return evaluate(simple, points.values, self._of.is_uniform, points.lanes)

    # Comparing ---------------------------------------------------------------------------------------

    def compare(self, cases: dict[Loop, _Case]) -> tuple[Meeting, bool]:
        """Whether threads meet, and whether that is known, or only can't be excluded."""
        sides: list[tuple[_Points, list[Callable[[], Value]]]] = []
        by_axis = self._same_axes()
        for side, access in enumerate(self._accesses):
            values, free = self._side(side, cases)
            points = self._points(access, free)
            conditions = [substitute(condition, values) for condition in access.conditions]
            points = self._restricted(points, [*(inside for _, _, inside in free), *conditions])
            if not len(points.first):
                return Meeting.NEVER, True
            sides.append((points, self._coordinates(access, values, points, by_axis)))
        (points_a, axes_a), (points_b, axes_b) = sides
        keys = [np.zeros(len(points_a.first), np.int64), np.zeros(len(points_b.first), np.int64)]
        is_exact = True
        for axis_a, axis_b in zip(axes_a, axes_b, strict=True):
            try:
                a, b = axis_a(), axis_b()
            except NotSeparable:
                is_exact = False
                continue
            numbers_a, numbers_b = np.asarray(a.numbers), np.asarray(b.numbers)
            difference = self._difference(a.term, b.term)
            if not isinstance(difference, int):
                lowest, highest = (
                    numbers_a.min() - numbers_b.max(),
                    numbers_a.max() - numbers_b.min(),
                )
                if self._of.differ(difference, lowest, highest):
                    return Meeting.NEVER, True
                is_exact = False
                continue
            numbers_b = numbers_b + difference
            low = min(numbers_a.min(), numbers_b.min())
            span = max(numbers_a.max(), numbers_b.max()) - low + 1
            keys = [keys[0] * span + (numbers_a - low), keys[1] * span + (numbers_b - low)]
        return _meeting(_Owners.of(keys[0], points_a), _Owners.of(keys[1], points_b)), is_exact

    def _difference(self, a: Any, b: Any) -> Any:
        """The later term minus the earlier one; a number where it is constant."""
        if a is None and b is None:
            return 0
        difference = self._of.simplified((0 if b is None else b) - (0 if a is None else a))
        return int(difference.value) if isinstance(difference, tirx.IntImm) else difference

    def _same_axes(self) -> bool:
        """Tell whether the accesses can be compared axis by axis."""
        earlier, later = self._accesses
        return earlier.buffer.same_as(later.buffer) and all(
            access.indices is not None
            and len(access.indices) == len(access.buffer.ty.shape)
            and _fits_axes(access)
            for access in self._accesses
        )

    def _coordinates(
        self, access: SharedAccess, values: dict[ir.Var, Any], points: _Points, by_axis: bool
    ) -> list[Callable[[], Value]]:
        """What tells elements apart: an index an axis, or their place in memory."""
        assert access.indices is not None
        indices = [substitute(index, values) for index in access.indices]

        def axis(number: int) -> Callable[[], Value]:
            offset = Value(_offset_of_axis(points, number - len(indices)))
            return lambda: self._evaluated(indices[number], points) + offset

        if by_axis:
            return [axis(number) for number in range(len(indices))]
        return [lambda: self._place(access, indices, points, values)]

    def _place(
        self, access: SharedAccess, indices: list[Any], points: _Points, values: dict[ir.Var, Any]
    ) -> Value:
        """The place of an element in the memory of the allocated buffer."""
        if str(self._accesses[0].buffer.ty.dtype) != str(self._accesses[1].buffer.ty.dtype):
            raise NotSeparable
        strides = _strides(access.buffer)
        if len(indices) != len(strides):
            strides = [tirx.const(1, "int32")]
        place = Value(0)
        parts = [*zip(indices, strides, strict=True), (access.buffer.ty.elem_offset, 1)]
        for index, stride in parts:
            place = place + self._evaluated(index * stride, points)
        for offset, (_, stride) in zip(points.offsets, access.block, strict=True):
            step = self._evaluated(substitute(stride, values), points)
            if step.term is not None:
                raise NotSeparable
            place = place + Value(offset * step.numbers)
        return place


def _meeting(earlier: _Owners, later: _Owners) -> Meeting:
    _, a, b = np.intersect1d(earlier.keys, later.keys, assume_unique=True, return_indices=True)
    first = np.minimum(earlier.first[a], later.first[b])
    last = np.maximum(earlier.last[a], later.last[b])
    if not (first != last).any():
        return Meeting.NEVER
    if (first // _SIMDGROUP != last // _SIMDGROUP).any():
        return Meeting.IN_BLOCK
    return Meeting.IN_SIMDGROUP


@dataclass(frozen=True)
class _Owners:
    """The first and the last thread that touch each element."""

    keys: Any
    first: Any
    last: Any

    @classmethod
    def of(cls, keys: Any, points: _Points) -> _Owners:
        order = np.argsort(keys, kind="stable")
        unique, starts = np.unique(keys[order], return_index=True)
        return cls(
            unique,
            np.minimum.reduceat(points.first[order], starts),
            np.maximum.reduceat(points.last[order], starts),
        )


# Expressions ---------------------------------------------------------------------------------------


def _mentions(access: SharedAccess, var: ir.Var | None) -> bool:
    """Tell whether a loop's variable decides which elements an access touches."""
    if var is None:
        return False
    used = [*(access.indices or ()), *access.conditions]
    for loop in access.loops:
        if loop.var is not None:
            used += [loop.node.min, loop.node.extent]
    return any(contains(part, ir.Var, lambda node: node.same_as(var)) for part in used)


def _constant(expression: Any) -> int | None:
    return int(expression.value) if isinstance(expression, tirx.IntImm) else None


def _pairs(order: Order, extent: int) -> list[tuple[int, int]]:
    """The iterations of a loop that two accesses may be in."""
    if extent > _MAX_CASES:
        return [(0, 0)] * (_MAX_CASES + 1)  # too many, whatever they are
    if order == Order.SAME:
        return [(number, number) for number in range(extent)]
    if order == Order.NEXT:
        return [(number, number + 1) for number in range(extent - 1)]
    return list(itertools.combinations(range(extent), 2))


def _period(access: SharedAccess, var: ir.Var | None) -> int:
    """How many iterations it takes until the remainders in an access's indices repeat."""
    divisors: list[int] = []

    def note(node: Any) -> None:
        divisor = _constant(node.b)
        if divisor and contains(node.a, ir.Var, lambda other: other.same_as(var)):
            divisors.append(divisor)

    for index in access.indices or ():
        tvm_ffi.structural_walk(index, ((tirx.FloorMod, tirx.FloorDiv), note))
    return math.lcm(1, *divisors)


def _conjuncts(condition: Any) -> list[Any]:
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _lanes(index: Any) -> int:
    return int(index.lanes) if isinstance(index, tirx.Ramp | tirx.Broadcast) else 1


def _strides(buffer: ir.Var) -> list[Any]:
    """How far apart in memory neighbours along each axis are, in elements."""
    if len(buffer.ty.strides):
        return list(buffer.ty.strides)
    strides: list[Any] = [tirx.const(1, "int32")]
    for extent in reversed(list(buffer.ty.shape)[1:]):
        strides.insert(0, strides[0] * extent)
    return strides


def _fits_axes(access: SharedAccess) -> bool:
    """Tell whether the axes of an access's block are the last axes of its buffer."""
    strides = _strides(access.buffer)
    if len(access.block) > len(strides):
        return False
    last = strides[len(strides) - len(access.block) :]
    return all(
        tvm_ffi.structural_equal(stride, wanted)
        for (_, stride), wanted in zip(access.block, last, strict=True)
    )


def _offset_of_axis(points: _Points, axis: int) -> Any:
    """The places in a block along an axis, counted from the last one, which is -1."""
    return points.offsets[axis] if -axis <= len(points.offsets) else 0
