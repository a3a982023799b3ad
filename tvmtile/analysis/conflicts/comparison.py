"""The elements of two accesses, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.conflicts.domain import Domain
from tvmtile.analysis.conflicts.expressions import bits, conjuncts, strides
from tvmtile.analysis.conflicts.iterations import Case, Iterations
from tvmtile.analysis.conflicts.points import Owners, Points, conflict_scope, have_common, points_of
from tvmtile.analysis.conflicts.symbolic import NotSeparable, Value, evaluate, may_wrap
from tvmtile.analysis.effects import Access, Loop
from tvmtile.ir.rewriting import substitute
from tvmtile.ir.threads import WARP_SIZE

__all__ = ["Comparison"]


class Comparison:
    """Compares two accesses of the same memory.

    They are compared axis by axis where they use the same view of it, else by their places in memory,
    in units of the largest size that both elements are multiples of.

    Parameters
    ----------
    earlier, later : Access
        With indices.
    iterations : Iterations
        Of the loops around them.
    domain : Domain
        The threads and variables of the kernel.
    """

    def __init__(
        self, earlier: Access, later: Access, iterations: Iterations, domain: Domain
    ) -> None:
        self._accesses = (earlier, later)
        self._iterations = iterations
        self._domain = domain
        self._by_axis = earlier.buffer.same_as(later.buffer) and all(
            access.indices is not None
            and len(access.indices) == len(access.buffer.ty.shape)
            and _fits_axes(access)
            for access in self._accesses
        )
        sizes = [bits(access.buffer) for access in self._accesses]
        self._parts = [size // math.gcd(*sizes) for size in sizes]
        self._knows_conditions = True

    def conflict(self, cases: Mapping[Loop, Case]) -> tuple[ConflictScope, bool]:
        """Between which threads the accesses conflict, and whether that is known or only possible.

        Parameters
        ----------
        cases : mapping of Loop to Case
            The iterations of some of the loops around both.

        Raises
        ------
        TooMany
            If the threads and iterations are too many to be enumerated.
        """
        owners, is_exact = self._owners(cases)
        return (ConflictScope.NONE if owners is None else conflict_scope(*owners)), is_exact

    def collision(
        self, cases: Mapping[Loop, Case], *, by_one_thread: bool = False
    ) -> tuple[bool, bool]:
        """Whether both touch an element, and whether that is known.

        Parameters
        ----------
        cases : mapping of Loop to Case
            The iterations of some of the loops around both.
        by_one_thread : bool
            The same thread touches it, not any two.

        Raises
        ------
        TooMany
            If the threads and iterations are too many to be enumerated.
        """
        owners, is_exact = self._owners(cases, by_thread=by_one_thread)
        return owners is not None and have_common(*owners), is_exact and self._knows_conditions

    def _owners(
        self, cases: Mapping[Loop, Case], *, by_thread: bool = False
    ) -> tuple[tuple[Owners, Owners] | None, bool]:
        """Who touches the elements of both sides; None where these certainly differ.

        By thread, what different threads touch is different elements.
        """
        self._knows_conditions = True
        if self._by_axis and self._are_in_different_rows(cases):
            return None, True
        sides: list[tuple[Points, list[Callable[[], Value]]]] = []
        for side, access in enumerate(self._accesses):
            values, free = self._iterations.values(side, cases)
            points = points_of(access, free, self._parts[side], self._domain)
            conditions = [substitute(condition, values) for condition in access.conditions]
            points = self._restricted(points, [*(each.inside for each in free), *conditions])
            if not len(points):
                return None, True
            sides.append((points, self._coordinates(side, values, points)))
        (points_a, axes_a), (points_b, axes_b) = sides
        keys = [np.zeros(len(points_a), np.int64), np.zeros(len(points_b), np.int64)]
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
                lowest = numbers_a.min() - numbers_b.max()
                highest = numbers_a.max() - numbers_b.min()
                if self._domain.excludes(difference, lowest, highest):
                    return None, True
                is_exact = False
                # Where elements are the same, their numbers have the same remainder.
                factor, difference = self._domain.remainder(difference)
                numbers_a, numbers_b = numbers_a % factor, (numbers_b + difference) % factor
            else:
                numbers_b = numbers_b + difference
            low = min(numbers_a.min(), numbers_b.min())
            span = max(numbers_a.max(), numbers_b.max()) - low + 1
            keys = [keys[0] * span + (numbers_a - low), keys[1] * span + (numbers_b - low)]
        if by_thread:
            groups = WARP_SIZE if any(each.is_collective for each in self._accesses) else 1
            count = self._domain.num_threads
            keys = [
                key * count + points.first // groups
                for key, points in zip(keys, (points_a, points_b), strict=True)
            ]
        return (Owners.of(keys[0], points_a), Owners.of(keys[1], points_b)), is_exact

    def _are_in_different_rows(self, cases: Mapping[Loop, Case]) -> bool:
        """Tell whether indices that are uniform, such as those of buffer copies, differ.

        That needs no enumeration of the threads.
        """
        indices: list[list[Any]] = []
        for side, access in enumerate(self._accesses):
            assert access.indices is not None
            values, _ = self._iterations.values(side, cases)
            outer = access.indices[: len(access.indices) - len(access.block)]
            indices.append([substitute(index, values) for index in outer])
        for earlier, later in zip(*indices, strict=False):
            try:
                a, b = (self._uniform(index) for index in (earlier, later))
            except NotSeparable:
                continue
            difference = self._difference(a.term, b.term)
            wanted = a.numbers - b.numbers
            if isinstance(difference, int):
                differs = difference != wanted
            else:
                differs = self._domain.excludes(difference, wanted, wanted)
            if differs:
                return True
        return False

    def _uniform(self, index: Any) -> Value:
        return evaluate(self._simplified(index), {}, self._domain.is_uniform, 0)

    def _restricted(self, points: Points, conditions: list[Any]) -> Points:
        for condition in conditions:
            for part in conjuncts(condition):
                try:
                    value = self._evaluated(part, points)
                except NotSeparable:
                    self._knows_conditions = False
                    continue
                if value.term is not None:
                    self._knows_conditions = False
                    continue
                mask = np.broadcast_to(np.asarray(value.numbers, bool), points.first.shape)
                points = points.where(mask)
        return points

    def _evaluated(self, expression: Any, points: Points) -> Value:
        simple = self._simplified(expression)
        return evaluate(simple, points.values, self._domain.is_uniform, points.lanes)

    def _simplified(self, expression: Any) -> Any:
        return expression if may_wrap(expression) else self._domain.simplified(expression)

    def _difference(self, a: Any, b: Any) -> Any:
        """The later term minus the earlier one; a number where it is constant."""
        if a is None and b is None:
            return 0
        difference = self._domain.simplified((0 if b is None else b) - (0 if a is None else a))
        return int(difference.value) if isinstance(difference, tirx.IntImm) else difference

    def _coordinates(
        self, side: int, values: dict[ir.Var, Any], points: Points
    ) -> list[Callable[[], Value]]:
        """What tells elements apart: an index an axis, or their place in memory."""
        access = self._accesses[side]
        assert access.indices is not None
        indices = [substitute(index, values) for index in access.indices]

        def axis(number: int) -> Callable[[], Value]:
            offset = Value(_offset_of_axis(points, number - len(indices)))
            return lambda: self._evaluated(indices[number], points) + offset

        if self._by_axis:
            return [axis(number) for number in range(len(indices))]
        steps = [(extent, substitute(stride, values)) for extent, stride in access.block]
        return [lambda: self._place(side, indices, steps, points)]

    def _place(
        self, side: int, indices: list[Any], steps: list[tuple[int, Any]], points: Points
    ) -> Value:
        """The place of a part of an element in the memory of the allocated buffer."""
        buffer = self._accesses[side].buffer
        distances = strides(buffer)
        if len(indices) != len(distances):
            distances = [tirx.const(1, "int32")]
        place = self._evaluated(buffer.ty.elem_offset, points)
        for index, distance in zip(indices, distances, strict=True):
            place = place + self._evaluated(index * distance, points)
        for offset, (_, stride) in zip(points.offsets, steps, strict=True):
            step = self._evaluated(stride, points)
            if step.term is not None:
                raise NotSeparable
            place = place + Value(offset * step.numbers)
        return place.scaled(self._parts[side]) + Value(points.parts)


def _fits_axes(access: Access) -> bool:
    """Tell whether the axes of an access's block are the last axes of its buffer."""
    distances = strides(access.buffer)
    if len(access.block) > len(distances):
        return False
    last = distances[len(distances) - len(access.block) :]
    return all(
        tvm_ffi.structural_equal(stride, wanted)
        for (_, stride), wanted in zip(access.block, last, strict=True)
    )


def _offset_of_axis(points: Points, axis: int) -> Any:
    """The places in a block along an axis, counted from the last one, which is -1."""
    return points.offsets[axis] if -axis <= len(points.offsets) else 0
