"""Layouts of nests of `T.Parallel` loops: which thread of a block runs which iteration.

A nest's iterations get a layout, as a fragment's elements do. The two determine each other through
the indices of an access: in `C[i, j] = A[j]`, the thread that has iteration (i, j) must hold C[i, j]
and A[j].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import DataType, ir
from tvm.sym import Analyzer

from tvmtile.analysis.effects import Effect
from tvmtile.analysis.nests import Nest
from tvmtile.ir.rewriting import defined_in, variables_of
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import (
    REGISTER,
    THREAD,
    Digit,
    FragmentLayout,
    common_refinement,
    compact_registers,
    gaps,
    widest_vector,
)
from tvmtile.layout.index_map import IndexMap, Part, cut


@dataclass(frozen=True)
class LoopAxis:
    """The iterations of one loop, as they are counted: the value of the digits, less `base`.

    The digits may count more than there are iterations; what lies outside is left out.
    """

    digits: tuple[Digit, ...]
    base: Index = 0

    @property
    def size(self) -> int:
        """The number of values that the digits have."""
        return _count(self.digits)


@dataclass(frozen=True)
class LoopLayout:
    """The layout of a nest: which thread runs which iteration."""

    threads: int
    """Threads of the block."""
    axes: dict[ir.Var, LoopAxis] = field(default_factory=dict)
    """For each loop variable, its digits; the register digits count a thread's own iterations."""

    @property
    def replicas(self) -> list[Digit]:
        """Digits of the thread's number over which an iteration is repeated."""
        return gaps(self.threads, (d for axis in self.axes.values() for d in axis.digits))

    @classmethod
    def of_elements(cls, nest: Nest, access: Effect, layout: FragmentLayout) -> LoopLayout | None:
        """Let the threads that hold an element run the iteration that touches it.

        Loops whose variable is not in the access are spread over the threads that hold copies.
        Returns None where the indices are no digits of the loop variables, where only some of the
        threads hold what is touched, or where an iteration displaces what it touches.
        """
        inner = defined_in(nest.body)
        parts: dict[ir.Var, list[tuple[int, tuple[Digit, ...]]]] = {v: [] for v in nest.variables}
        bases: dict[ir.Var, Any] = {}
        for index, digits in zip(access.indices, layout.axes, strict=True):
            index_map = IndexMap.of(index, nest)
            if index_map is None:
                return None
            # A displaced loop has the digits of its place alone where it counts in steps of its extent.
            in_place = index_map.is_whole_variable and _is_zero(index_map.base)
            taken = None if in_place else index_map.digits_of_parts(digits)
            if taken is None and index_map.is_whole_variable:
                if not inner.isdisjoint(variables_of(index_map.base)):
                    return None
                part = index_map.parts[0]
                parts[part.variable].append((1, digits))
                bases[part.variable] = index_map.base
                continue
            if taken is None:
                return None
            for part, own in zip(index_map.parts, taken, strict=True):
                parts[part.variable].append((part.lower, own))
        axes: dict[ir.Var, LoopAxis] = {}
        for variable, extent in zip(nest.variables, nest.extents, strict=True):
            pieces = parts[variable]
            if not pieces:
                continue
            joined = _joined(pieces, extent, whole=variable in bases)
            if joined is None:
                return None
            axes[variable] = LoopAxis(joined, bases.get(variable, 0))
        return cls(layout.threads, axes)._completed(nest, access)

    def _completed(self, nest: Nest, access: Effect) -> LoopLayout | None:
        """Spread the loops without digits over the threads that would repeat their iterations."""
        axes = dict(self.axes)
        free = self.replicas if not access.writes else []
        innermost = nest.variables[-1]
        for variable, extent in reversed(list(zip(nest.variables, nest.extents, strict=True))):
            if variable in axes:
                continue
            if extent is None:
                return None
            digits: list[Digit] = []
            rest = extent
            if variable.same_as(innermost) and free:
                width = math.gcd(extent, _widest_move(nest))
                while width > 1 and extent // width < math.prod(gap.extent for gap in free):
                    width //= 2
                digits = [Digit(width, REGISTER, 1)] if width > 1 else []
                rest //= width
            while free and rest > 1:
                gap = free.pop(0)
                shared = math.gcd(rest, gap.extent)
                if shared > 1:
                    digits.append(Digit(shared, THREAD, gap.stride))
                    rest //= shared
                if 1 < shared < gap.extent:
                    # The next loop out goes on where this one ends.
                    free.insert(0, gap.split(shared)[0])
                    break
            if rest > 1:
                digits.append(Digit(rest, REGISTER, 1))
            axes[variable] = LoopAxis(tuple(reversed(digits)))
        return LoopLayout(self.threads, {v: axes[v] for v in nest.variables})

    def of_fragment(
        self, nest: Nest, access: Effect, shape: Sequence[int]
    ) -> FragmentLayout | None:
        """The layout of a fragment whose elements lie where the iterations that touch them run."""
        axes = []
        for index, extent in zip(access.indices, shape, strict=True):
            digits = self._digits_of(nest, index, extent)
            if digits is None:
                return None
            axes.append(tuple(digits))
        threads = [d.stride for digits in axes for d in digits if d.is_thread]
        if len(threads) != len(set(threads)):
            return None
        layout = compact_registers(FragmentLayout(self.threads, tuple(axes)))
        return None if access.writes and not self._writes_all_copies(layout) else layout

    def reaches(self, nest: Nest, access: Effect, layout: FragmentLayout) -> bool:
        """Tell whether each thread holds the elements that its iterations touch.

        What is written must be written by all threads that hold it.
        """
        for index, held in zip(access.indices, layout.axes, strict=True):
            size = math.prod(digit.extent for digit in held)
            run = self._digits_of(nest, index, size)
            if run is not None and math.prod(digit.extent for digit in run) == size:
                pairs = common_refinement(held, run)
                if pairs is not None and all(_fits(h, r, access.writes) for h, r in pairs):
                    continue
            # Any thread may read what all threads hold.
            if access.writes or any(digit.is_thread for digit in held):
                return False
        return not access.writes or self._writes_all_copies(layout)

    def _writes_all_copies(self, layout: FragmentLayout) -> bool:
        """Tell whether the threads that run an iteration are all that hold what it writes.

        They are fewer where a digit of the thread's number tells iterations apart and not elements:
        in `b[14 + i] = a[i]` with one iteration and `a` spread over threads, one of them runs it.
        """
        return _count(self.replicas) == _count(layout.replicas)

    def _digits_of(self, nest: Nest, index: ir.Expr, extent: int) -> list[Digit] | None:
        """The digits of an index, from those of the loop variables in it."""
        index_map = IndexMap.of(index, nest)
        if index_map is None:
            return None
        digits: list[Digit] = []
        position = 1
        for part in reversed(index_map.parts):
            if part.scale % position:
                return None
            if part.scale > position:
                digits.insert(0, Digit(part.scale // position, REGISTER, 1))
            axis = self.axes[part.variable]
            # Beside a base above them, the loop variable's digits are those that its extent needs.
            whole = part.is_whole and (index_map.base_is_below or not _is_zero(axis.base))
            own = cut(axis.digits, part.lower, part.extent, whole)
            if own is None or not _aligned(axis.base, index_map, part):
                return None
            digits[:0] = own
            position = part.scale * math.prod(d.extent for d in own)
        if extent > position:
            digits.insert(0, Digit(-(-extent // position), REGISTER, 1))
        return digits


def _widest_move(nest: Nest) -> int:
    """Elements that a thread moves at once: 16 bytes of the widest that the nest has in memory."""
    memory = [
        a.buffer.ty for a in nest.accesses if not a.buffer.ty.storage_scope.startswith("local")
    ]
    return min((widest_vector(int(DataType(str(ty.dtype)).bits)) for ty in memory), default=4)


def _count(digits: Iterable[Digit]) -> int:
    """The number of values that digits have together."""
    return math.prod(digit.extent for digit in digits)


def _fits(held: Digit, run: Digit, writes: bool) -> bool:
    if held.is_thread:
        return run.is_thread and run.stride == held.stride
    return not (writes and run.is_thread)


def _aligned(base: Index, index_map: IndexMap, part: Part) -> bool:
    """Tell whether an index counts as its loop does, where the loop does not count from its start."""
    if isinstance(base, int) and base == 0:
        # A constant beside the variable would carry into the digits of the variable.
        return index_map.base_keeps_digits
    return part.scale == 1 and len(index_map.parts) == 1 and _is_zero(index_map.base - base)


def _is_zero(value: Index) -> bool:
    return bool(Analyzer().can_prove_equal(value, 0)) if not isinstance(value, int) else value == 0


def _joined(
    pieces: list[tuple[int, tuple[Digit, ...]]], extent: int | None, whole: bool
) -> tuple[Digit, ...] | None:
    """The digits of a loop variable, from the parts of it that an access has."""
    if whole:
        return pieces[0][1] if len(pieces) == 1 else None
    digits: list[Digit] = []
    position = 1
    for lower, own in sorted(pieces, key=lambda piece: piece[0]):
        if lower < position:
            return None
        if lower > position:
            digits.insert(0, Digit(lower // position, REGISTER, 1))
        digits[:0] = own
        position = lower * math.prod(d.extent for d in own)
    if extent is not None and extent > position:
        digits.insert(0, Digit(-(-extent // position), REGISTER, 1))
    return tuple(digits)


def is_free(nest: Nest, layouts: Callable[[ir.Var], FragmentLayout | None]) -> bool:
    """Tell whether any thread may run any iteration of a nest, as far as its fragments are concerned.

    A nest may read from anywhere what every thread holds.
    """
    return not any(_binds(access, layouts(access.buffer)) for access in nest.accesses)


def _binds(access: Effect, layout: FragmentLayout | None) -> bool:
    """Tell whether an access of a fragment says which thread runs an iteration."""
    return layout is not None and (access.writes or any(digit.is_thread for digit in layout.digits))


def loop_layout(
    nest: Nest, layouts: Callable[[ir.Var], FragmentLayout | None]
) -> LoopLayout | None:
    """The layout of a nest's iterations that suits all fragments it touches, or None.

    `layouts` gives that of a fragment; None where it is not known, or where a buffer is no fragment.
    """
    known = [(access, layouts(access.buffer)) for access in nest.accesses]
    placed = [(access, layout) for access, layout in known if layout is not None]
    for access, layout in sorted(placed, key=_preference):
        result = LoopLayout.of_elements(nest, access, layout)
        if result is not None and all(result.reaches(nest, a, held) for a, held in placed):
            return result
    return None


def _preference(item: tuple[Effect, FragmentLayout]) -> tuple[int, bool]:
    """Elements with few copies first; written ones among equals."""
    access, layout = item
    return _count(layout.replicas), not access.writes
