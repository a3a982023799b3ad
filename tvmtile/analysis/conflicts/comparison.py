"""The elements of two accesses, side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.conflicts.domain import Domain
from tvmtile.analysis.conflicts.enumeration import Enumeration
from tvmtile.analysis.conflicts.expressions import bits, strides
from tvmtile.analysis.conflicts.iterations import Case, Iterations
from tvmtile.analysis.conflicts.points import Owners, conflict_scope, have_common
from tvmtile.analysis.conflicts.symbolic import Value
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.ir.operands import literal
from tvmtile.ir.threads import WARP_SIZE

_SPARSE = 16  # times as many numbers as points: those that occur are numbered anew


class Comparison:
    """Compares two accesses of the same memory.

    They are compared axis by axis where they use the same view of it, else by their places in memory,
    in units of the largest size that both elements, and the starts of both buffers, are multiples of.
    """

    def __init__(
        self, earlier: Effect, later: Effect, iterations: Iterations, domain: Domain
    ) -> None:
        self._accesses = (earlier, later)
        self._iterations = iterations
        self._domain = domain
        self._by_axis = _see_alike(earlier, later) and all(
            domain.cached((is_by_axis, access), partial(is_by_axis, access))
            for access in self._accesses
        )
        sizes = [bits(access.buffer) for access in self._accesses]
        unit = math.gcd(*sizes, *(access.bits_before for access in self._accesses))
        self._parts = [size // unit for size in sizes]
        self._knows_conditions = True

    def conflict(self, cases: Mapping[Loop, Case]) -> tuple[ConflictScope, bool]:
        """Between which threads the accesses conflict, and whether that is known or only possible.

        `cases` are the iterations of some of the loops around both.

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
        """Tell whether both touch an element, and whether that is known.

        `cases` are the iterations of some of the loops around both; `by_one_thread`, the same thread
        touches it, not any two.

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
        """The threads that touch the elements of both sides; None where these certainly differ.

        By thread, what different threads touch is different elements.
        """
        sides = [self._side(number, cases) for number in range(2)]
        if self._by_axis and self._are_in_different_rows(*sides):
            return None, True
        if not all(len(side.points) for side in sides):
            return None, True
        self._knows_conditions = all(side.knows_conditions for side in sides)
        points_a, points_b = (side.points for side in sides)
        axes: list[tuple[Any, Any, int]] = []  # numbers of both sides from 0 on, and how many
        is_exact = True
        for number in range(sides[0].num_coordinates):
            a, b = (side.coordinate(number) for side in sides)
            if a is None or b is None:
                if self._are_bounded_apart(sides, number):
                    return None, True
                is_exact = False
                continue
            difference = self._difference(a.term, b.term)
            if not isinstance(difference, int):
                lowest, highest = a.least - b.most, a.most - b.least
                if self._domain.excludes(difference, lowest, highest):
                    return None, True
                if self._are_bounded_apart(sides, number):
                    return None, True
                is_exact = False
                # Where elements are the same, their numbers have the same remainder.
                factor, difference = self._domain.remainder(difference)
                a, b = Value(a.numbers % factor), Value((b.numbers + difference) % factor)
                difference = 0
            least, most = b.least + difference, b.most + difference
            if max(a.least, least) > min(a.most, most):
                return None, True
            low = min(a.least, least)
            count = max(a.most, most) - low + 1
            axes.append((a.numbers - low, b.numbers + (difference - low), count))
        if by_thread:
            groups = WARP_SIZE if any(each.is_collective for each in self._accesses) else 1
            numbers = (points.first // groups for points in (points_a, points_b))
            axes.append((*numbers, self._domain.num_threads))
        keys = [np.zeros(len(points_a), np.int64), np.zeros(len(points_b), np.int64)]
        for numbers_a, numbers_b, count in axes:
            keys = [keys[0] * count + numbers_a, keys[1] * count + numbers_b]
        count = math.prod(count for *_, count in axes)
        if count > _SPARSE * (len(points_a) + len(points_b)):
            found, numbered = np.unique(np.concatenate(keys), return_inverse=True)
            keys, count = np.split(numbered, [len(points_a)]), len(found)
        owners = Owners.of(keys[0], count, points_a), Owners.of(keys[1], count, points_b)
        return owners, is_exact

    def _side(self, number: int, cases: Mapping[Loop, Case]) -> Enumeration:
        """One of the accesses, which others are compared with too, in the same iterations."""
        access, parts = self._accesses[number], self._parts[number]

        def enumeration() -> Enumeration:
            values, free = self._iterations.values(number, cases)
            return Enumeration(access, values, free, parts, self._domain, by_axis=self._by_axis)

        key = (self._iterations.key(number, cases), parts, self._by_axis)
        return self._domain.cached(key, enumeration)

    def _are_in_different_rows(self, earlier: Enumeration, later: Enumeration) -> bool:
        """Tell whether indices that are uniform, such as those of buffer copies, differ.

        That needs no enumeration of the threads.
        """
        for a, b in zip(earlier.rows, later.rows, strict=False):
            if a is None or b is None:
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

    def _are_bounded_apart(self, sides: list[Enumeration], axis: int) -> bool:
        """Tell whether conditions of both keep one's indices above all of the other's."""
        if not self._by_axis:
            return False
        earlier, later = (side.bounds(axis) for side in sides)
        for (lows, _), (_, highs) in ((earlier, later), (later, earlier)):
            for low, high in itertools.product(lows, highs):
                apart = self._difference(high.term, low.term)
                least = apart if isinstance(apart, int) else self._domain.lower_bound(apart)
                if least + low.least > high.most:
                    return True
        return False

    def _difference(self, a: ir.Expr | None, b: ir.Expr | None) -> ir.Expr | int:
        """The later term minus the earlier one; a number where it is constant."""
        if a is None and b is None:
            return 0
        difference = self._domain.simplified((0 if b is None else b) - (0 if a is None else a))
        return int(difference.value) if isinstance(difference, tirx.IntImm) else difference


def _see_alike(earlier: Effect, later: Effect) -> bool:
    """Tell whether two accesses use the same view, or two that are declared alike."""
    if earlier.buffer.same_as(later.buffer):
        return True
    begin_alike = earlier.bits_before == later.bits_before
    return begin_alike and tvm_ffi.structural_equal(earlier.buffer.ty, later.buffer.ty)


def is_by_axis(access: Effect) -> bool:
    """Tell whether there is an index an axis, and a block's axes are the last ones of the buffer."""
    if access.indices is None or len(access.indices) != len(access.buffer.ty.shape):
        return False
    distances = strides(access.buffer)
    if len(access.block) > len(distances):
        return False
    last = distances[len(distances) - len(access.block) :]
    are_axes = all(
        tvm_ffi.structural_equal(stride, wanted)
        for (_, stride), wanted in zip(access.block, last, strict=True)
    )
    return are_axes and not _leaves_axes(access)


def _leaves_axes(access: Effect) -> bool:
    """Tell whether a block may go on in the next row, as a run of neighbours in memory does."""
    shape = access.buffer.ty.shape[1:]  # what leaves the first axis leaves the buffer
    sizes = [size for size, _ in access.block][-len(shape) :] if shape else []
    known = [literal(extent) for extent in shape[len(shape) - len(sizes) :]]
    if len(access.block) == 1 and sizes:  # a run, from a multiple of its size on, or of a row
        return known[0] is None or known[0] % sizes[0] != 0
    return any(
        extent is not None and extent < size for extent, size in zip(known, sizes, strict=True)
    )
