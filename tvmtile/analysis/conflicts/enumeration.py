"""One access at its threads and iterations: which elements it touches there."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.sym import detect_linear_equation

from tvmtile.analysis.conflicts.domain import Domain
from tvmtile.analysis.conflicts.expressions import bits, lanes, strides
from tvmtile.analysis.conflicts.points import Free, Points, points_of
from tvmtile.analysis.conflicts.symbolic import NotSeparable, Value
from tvmtile.analysis.effects import Effect
from tvmtile.ir.conditions import conjuncts, gaps_of
from tvmtile.ir.operands import literal
from tvmtile.ir.rewriting import reads_no_memory, substitute, variables_of


class Enumeration:
    """The elements of an access, each by a coordinate an axis, or by its place in memory.

    The loops around have values and `free` iterations, which are enumerated. Where places are counted,
    an element is cut into `parts` units; with `by_axis` coordinates are indices along the axes.

    Attributes
    ----------
    knows_conditions : bool
        Whether the conditions are decided at all points. It is known when `points` are.
    """

    def __init__(
        self,
        access: Effect,
        values: dict[ir.Var, ir.Expr],
        free: list[Free],
        parts: int,
        domain: Domain,
        *,
        by_axis: bool,
    ) -> None:
        assert access.indices is not None
        self._access = access
        self._values = values
        self._free = free
        self._parts = parts
        self._domain = domain
        self._by_axis = by_axis
        self._indices = [substitute(index, values) for index in access.indices]
        self._coordinates: dict[int, Value | None] = {}
        self._bounds: dict[int, tuple[list[Value], list[Value]]] = {}
        self.num_coordinates = len(self._indices) if by_axis else 1
        self.knows_conditions = True

    @cached_property
    def rows(self) -> list[Value | None]:
        """The indices outside of the access's block that are uniform; None for others, and vectors."""
        outer = self._indices[: len(self._indices) - len(self._access.block)]
        return [
            None if lanes(index) > 1 else self._tried(lambda index=index: self._uniform(index))
            for index in outer
        ]

    @cached_property
    def points(self) -> Points:
        """The threads and iterations at which the conditions may hold.

        Raises
        ------
        TooMany
            If they are too many to be enumerated.
        """
        among, others = self._threads_with(self._conditions)
        points = points_of(self._access, self._free, self._parts, self._domain, among)
        for part in others:
            value = self._tried(lambda part=part, at=points: self._evaluated(part, at))
            if value is None or value.term is not None:
                self.knows_conditions = False
                continue
            mask = np.broadcast_to(np.asarray(value.numbers, bool), points.first.shape)
            points = points.where(mask)
        return points

    @cached_property
    def _conditions(self) -> list[ir.Expr]:
        """The conditions of the access, by parts, and that its iterations exist."""
        asked = [each.inside for each in self._free]
        asked += [substitute(each, self._values) for each in self._access.conditions]
        return [part for condition in asked for part in conjuncts(condition)]

    def _threads_with(self, conditions: list[ir.Expr]) -> tuple[np.ndarray, list[ir.Expr]]:
        """The threads, of the domain's, for which conditions on threads hold, and other conditions.

        One thread may copy what all others wait for: few threads have few points.
        """
        threads, _, _ = self._domain.threads(self._access)
        among, others = np.full(len(threads), True), []
        for condition in conditions:
            value = self._domain.by_threads(condition, threads)
            if value is None or value.term is not None:
                others.append(condition)
            else:
                among &= np.asarray(value.numbers, bool)
        return among, others

    def coordinate(self, number: int) -> Value | None:
        """A coordinate of the element at each point; None where it can't be evaluated."""
        if number not in self._coordinates:
            compute = (lambda: self._index(number)) if self._by_axis else self._place
            self._coordinates[number] = self._tried(compute)
        return self._coordinates[number]

    def bounds(self, axis: int) -> tuple[list[Value], list[Value]]:
        """Bounds of an index at each point, below and above: itself, and those by the conditions.

        Of `start + j < end` the index `start + j` is not above `end - 1`.
        """
        if axis not in self._bounds:
            index, own = self._indices[axis], self.coordinate(axis)
            offset = Value(_offset_of_axis(self.points, axis - len(self._indices)))
            steps = [gap * factor for gap in self._gaps for factor in _coefficients(index, gap)]
            lows, highs = (
                [bound + offset for bound in map(self._bound, limits) if bound is not None]
                for limits in ([index - step for step in steps], [index + step for step in steps])
            )
            known = [] if own is None else [own]
            self._bounds[axis] = [*known, *lows], [*known, *highs]
        return self._bounds[axis]

    @cached_property
    def _gaps(self) -> list[ir.Expr]:
        """Expressions that are not negative at any point: by the conditions, and the bounds of loops.

        Those that the points give a number are left out.
        """
        found = [gap for part in self._conditions for gap in gaps_of(part)]
        for loop in self._access.loops:
            value = None if loop.var is None else self._values.get(loop.var)
            if value is not None and literal(loop.step) == 1:
                low, extent = (substitute(each, self._values) for each in (loop.low, loop.extent))
                found += [value - low, low + extent - 1 - value]
        numbers = {*self.points.iterations, *self._domain.thread_indices}
        return [
            gap
            for gap in found
            if reads_no_memory(gap) and any(var not in numbers for var in variables_of(gap))
        ]

    def _bound(self, limit: ir.Expr) -> Value | None:
        return self._tried(lambda: self._evaluated(self._domain.canonical(limit), self.points))

    @staticmethod
    def _tried(compute: Any) -> Value | None:
        try:
            found: Value = compute()
        except NotSeparable:
            return None
        return found

    def _uniform(self, index: ir.Expr) -> Value:
        return self._domain.evaluated(index)

    def _evaluated(self, expression: ir.Expr, points: Points) -> Value:
        return self._domain.evaluated(expression, points.threads, points.iterations, points.lanes)

    def _index(self, number: int) -> Value:
        offset = _offset_of_axis(self.points, number - len(self._indices))
        return self._evaluated(self._indices[number], self.points) + Value(offset)

    def _place(self) -> Value:
        """The place of a part of an element, from the buffer on that the access's start counts from."""
        buffer, points = self._access.buffer, self.points
        distances = strides(buffer)
        if len(self._indices) != len(distances):
            distances = [tirx.const(1, "int32")]
        place = self._evaluated(buffer.ty.elem_offset, points)
        for index, distance in zip(self._indices, distances, strict=True):
            place = place + self._evaluated(index * distance, points)
        for offset, (_, stride) in zip(points.offsets, self._access.block, strict=True):
            step = self._evaluated(substitute(stride, self._values), points)
            if step.term is not None:
                raise NotSeparable
            place = place + Value(offset * step.numbers)
        before = self._access.bits_before * self._parts // bits(buffer)
        return place.scaled(self._parts) + Value(points.parts + before)


def _coefficients(index: ir.Expr, gap: ir.Expr) -> list[int]:
    """Factors of a gap that is added to an index, or taken from it, so that a variable leaves it."""
    linear = (detect_linear_equation(index, [var]) for var in variables_of(gap))
    sizes = (abs(literal(each[0]) or 0) for each in linear if len(each))
    return list(dict.fromkeys(filter(None, sizes)))


def _offset_of_axis(points: Points, axis: int) -> int | np.ndarray:
    """The places in a block along an axis, counted from the last one, which is -1."""
    return points.offsets[axis] if -axis <= len(points.offsets) else 0
