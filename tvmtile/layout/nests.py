"""Nests of `T.Parallel` loops, and how their iterations are given to the threads of a block.

A nest's iterations get a layout, as a fragment's elements do. The two determine each other through
the indices of an access: in `C[i, j] = A[j]`, the thread that has iteration (i, j) must hold C[i, j]
and A[j]. Indices are sums of digits of the loop variables, as TVM's iterator maps see them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer, normalize_to_iter_sum

from tvmtile._tvm import is_buffer_var
from tvmtile.layout.fragment import (
    REGISTER,
    THREAD,
    Digit,
    FragmentLayout,
    common_refinement,
    compact_registers,
    gaps,
)
from tvmtile.rewriting import contains, substitute
from tvmtile.tileop.operands import constant, origin_of
from tvmtile.tileop.registry import operator_of

__all__ = ["LoopAxis", "LoopLayout", "Nest", "NestAccess", "is_nest", "nests_in"]


def is_nest(stmt: Any) -> bool:
    """Tell whether a statement is the outermost loop of a `T.Parallel`."""
    return isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL


@dataclass(frozen=True)
class NestAccess:
    """An element that a nest reads or writes.

    Attributes
    ----------
    buffer : Var
        The buffer.
    indices : tuple of Expr
        In terms of the loop variables; names that the nest binds are replaced by their values.
    writes : bool
        Whether it is written.
    """

    buffer: ir.Var
    indices: tuple[Any, ...]
    writes: bool


class Nest:
    """A nest of `T.Parallel` loops, taken apart.

    Attributes
    ----------
    loops : list of For
        The loops, outermost first.
    body : Stmt
        What an iteration does.
    """

    def __init__(self, loop: tirx.For) -> None:
        self.loops: list[tirx.For] = []
        node: Any = loop
        while is_nest(node):
            self.loops.append(node)
            node = node.body
        self.body: tirx.Stmt = node

    @property
    def variables(self) -> list[ir.Var]:
        """The loop variables, outermost first."""
        return [loop.loop_var for loop in self.loops]

    @cached_property
    def extents(self) -> list[int | None]:
        """The extents of the loops; None for one that is known at run time only."""
        return [constant(loop.extent) for loop in self.loops]

    @cached_property
    def accesses(self) -> list[NestAccess]:
        """The elements that an iteration touches, in program order, once each."""
        return _accesses_in(self.body)


def nests_in(statement: tirx.Stmt) -> list[Nest]:
    """The nests of a statement, in program order."""
    found: list[Nest] = []

    def visit(loop: tirx.For, mutator: Any) -> Any:
        if is_nest(loop):
            found.append(Nest(loop))
            return loop
        return mutator.default_mutate(loop)

    tvm_ffi.structural_mutate(statement, [(tirx.For, visit)])
    return found


def _accesses_in(body: tirx.Stmt) -> list[NestAccess]:
    found: list[NestAccess] = []
    names: dict[ir.Var, Any] = {}

    def note(buffer: ir.Var, indices: Any, writes: bool) -> None:
        access = NestAccess(buffer, tuple(substitute(i, names) for i in indices), writes)
        if not any(_same_access(access, other) for other in found):
            found.append(access)

    def bind(node: tirx.Bind) -> None:
        names[node.var] = substitute(node.value, names)

    def call(node: ir.Call) -> None:
        op = operator_of(node)
        if op is None:
            return
        for operand in op.writes():
            if is_buffer_var(getattr(operand, "source", operand)):
                note(getattr(operand, "source", operand), origin_of(operand), True)

    tvm_ffi.structural_walk(
        body,
        [
            (tirx.Bind, bind),
            (tirx.BufferStore, lambda node: note(node.buffer, node.indices, True)),
            (ir.TensorLoad, lambda node: note(node.source, node.indices, False)),
            (ir.Call, call),
        ],
        order="pre",
    )
    return found


def _same_access(a: NestAccess, b: NestAccess) -> bool:
    if not a.buffer.same_as(b.buffer) or a.writes != b.writes:
        return False
    return all(tvm_ffi.structural_equal(x, y) for x, y in zip(a.indices, b.indices, strict=True))


@dataclass(frozen=True)
class LoopAxis:
    """How the iterations of one loop are counted: the value of the digits, less `base`.

    The digits may count more than there are iterations; what lies outside is left out.
    """

    digits: tuple[Digit, ...]
    base: Any = 0

    @property
    def size(self) -> int:
        """How many values the digits have."""
        return math.prod(digit.extent for digit in self.digits)


@dataclass(frozen=True)
class LoopLayout:
    """Which thread runs which iteration of a nest.

    Attributes
    ----------
    threads : int
        Threads of the block.
    axes : dict of Var to LoopAxis
        For each loop variable, its digits; the register digits count a thread's own iterations.
    """

    threads: int
    axes: dict[ir.Var, LoopAxis] = field(default_factory=dict)

    @property
    def replicas(self) -> list[Digit]:
        """Digits of the thread's number over which an iteration is repeated."""
        return gaps(self.threads, (d for axis in self.axes.values() for d in axis.digits))

    @classmethod
    def of_elements(
        cls, nest: Nest, access: NestAccess, layout: FragmentLayout
    ) -> LoopLayout | None:
        """Let the threads that hold an element run the iteration that touches it.

        Loops whose variable is not in the access are spread over the threads that hold copies.
        Returns None where the indices are no digits of the loop variables, or where only some of the
        threads hold what is touched.
        """
        parts: dict[ir.Var, list[tuple[int, tuple[Digit, ...]]]] = {v: [] for v in nest.variables}
        bases: dict[ir.Var, Any] = {}
        for index, digits in zip(access.indices, layout.axes, strict=True):
            index_map = _IndexMap.of(index, nest)
            if index_map is None:
                return None
            if index_map.is_whole_variable:
                part = index_map.parts[0]
                parts[part.variable].append((1, digits))
                bases[part.variable] = index_map.base
                continue
            taken = index_map.digits_of_parts(digits)
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

    def _completed(self, nest: Nest, access: NestAccess) -> LoopLayout | None:
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
                width = math.gcd(extent, 4)
                digits = [Digit(width, REGISTER, 1)] if width > 1 else []
                rest //= width
            while free and rest > 1:
                gap = free.pop(0)
                shared = math.gcd(rest, gap.extent)
                if shared > 1:
                    digits.append(Digit(shared, THREAD, gap.stride))
                    rest //= shared
            if rest > 1:
                digits.append(Digit(rest, REGISTER, 1))
            axes[variable] = LoopAxis(tuple(reversed(digits)))
        return LoopLayout(self.threads, {v: axes[v] for v in nest.variables})

    def of_fragment(
        self, nest: Nest, access: NestAccess, shape: Sequence[int]
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
        return compact_registers(FragmentLayout(self.threads, tuple(axes)))

    def reaches(self, nest: Nest, access: NestAccess, layout: FragmentLayout) -> bool:
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
        return not access.writes or not self._is_spread_beyond(access)

    def _is_spread_beyond(self, access: NestAccess) -> bool:
        """Tell whether several threads run different iterations for one element."""
        return any(
            digit.is_thread and not any(_mentions(index, variable) for index in access.indices)
            for variable, axis in self.axes.items()
            for digit in axis.digits
        )

    def _digits_of(self, nest: Nest, index: Any, extent: int) -> list[Digit] | None:
        """The digits of an index, from those of the loop variables in it."""
        index_map = _IndexMap.of(index, nest)
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
            own = _cut(axis.digits, part.lower, part.extent, part.is_whole)
            if own is None or not _aligned(axis.base, index_map, part):
                return None
            digits[:0] = own
            position = part.scale * math.prod(d.extent for d in own)
        if extent > position:
            digits.insert(0, Digit(-(-extent // position), REGISTER, 1))
        return digits


def _mentions(index: Any, variable: ir.Var) -> bool:
    return contains(index, ir.Var, variable.same_as)


def _fits(held: Digit, run: Digit, writes: bool) -> bool:
    if held.is_thread:
        return run.is_thread and run.stride == held.stride
    return not (writes and run.is_thread)


def _aligned(base: Any, index_map: _IndexMap, part: _Part) -> bool:
    """Tell whether an index counts as its loop does, where the loop does not count from its start."""
    if isinstance(base, int) and base == 0:
        # A constant beside the variable would carry into the digits of the variable.
        return index_map.base_keeps_digits
    return part.scale == 1 and len(index_map.parts) == 1 and _is_zero(index_map.base - base)


def _is_zero(value: Any) -> bool:
    return bool(Analyzer().can_prove_equal(value, 0)) if not isinstance(value, int) else value == 0


@dataclass(frozen=True)
class _Part:
    """`variable // lower % extent * scale`."""

    variable: ir.Var
    lower: int
    extent: int
    scale: int
    is_whole: bool


@dataclass(frozen=True)
class _IndexMap:
    """An index as a sum of digits of loop variables, the most significant first, and a base."""

    parts: tuple[_Part, ...]
    base: Any

    @classmethod
    def of(cls, index: Any, nest: Nest) -> _IndexMap | None:
        """Take an index apart; None where it is no such sum."""
        known = list(zip(nest.variables, nest.extents, strict=True))
        used = {v: e for v, e in known if _mentions(index, v)}
        if None in used.values():
            return None
        ranges = {v: ir.Range(0, extent) for v, extent in used.items()}
        total = normalize_to_iter_sum(index, ranges)
        if any(_mentions(total.base, variable) for variable in used):
            return None
        parts = []
        for split in total.args:
            variable = split.source.source
            lower, extent, scale = (
                constant(x) for x in (split.lower_factor, split.extent, split.scale)
            )
            if not isinstance(variable, ir.Var) or variable not in used:
                return None
            if lower is None or extent is None or scale is None or scale < 1:
                return None
            size = used[variable]
            parts.append(_Part(variable, lower, extent, scale, lower == 1 and extent == size))
        parts.sort(key=lambda part: -part.scale)
        base = constant(total.base)
        result = cls(tuple(parts), total.base if base is None else base)
        return result if result._is(index, ranges) else None

    def _is(self, index: Any, ranges: dict[ir.Var, Any]) -> bool:
        value = self.base
        for p in self.parts:
            value = value + p.variable // p.lower % p.extent * p.scale
        analyzer = Analyzer()
        for variable, values in ranges.items():
            analyzer.bind(variable, values)
        return bool(analyzer.can_prove_equal(value, index))

    @property
    def is_whole_variable(self) -> bool:
        """Whether it is one loop variable, displaced by the base."""
        return len(self.parts) == 1 and self.parts[0].scale == 1 and self.parts[0].is_whole

    @property
    def base_keeps_digits(self) -> bool:
        """Whether the base only fills places that no digit of a loop variable has."""
        if not self.parts:
            return True
        base = constant(self.base)
        top = self.parts[0].scale * self.parts[0].extent
        if base is None:
            analyzer = Analyzer()
            return bool(analyzer.can_prove_equal(tirx.floormod(self.base, top), 0))
        rest = base % top
        for part in self.parts:
            below = rest % part.scale
            if (rest - below) % (part.scale * part.extent):
                return False
            rest = below
        return rest < self.parts[-1].scale

    def digits_of_parts(self, digits: Sequence[Digit]) -> list[tuple[Digit, ...]] | None:
        """The digits of an axis that each part has; None where a thread's digit has no part."""
        if not self.base_keeps_digits:
            return None
        taken: list[tuple[Digit, ...]] = []
        total = math.prod(d.extent for d in digits)
        position = total
        for part in self.parts:
            top = part.scale * part.extent
            if top > position:
                return None
            above = _cut(digits, top, position // top, whole=False) if position > top else []
            own = _cut(digits, part.scale, part.extent, whole=False)
            if above is None or own is None or any(d.is_thread for d in above):
                return None
            taken.append(tuple(own))
            position = part.scale
        below = _cut(digits, 1, position, whole=False) if position > 1 else []
        if below is None or any(d.is_thread for d in below):
            return None
        return taken


def _cut(digits: Sequence[Digit], lower: int, extent: int, whole: bool) -> list[Digit] | None:
    """The digits of `value // lower % extent`; None where they don't fall together."""
    if whole:
        return list(digits)
    boundary = [Digit(extent, REGISTER, 1)]
    if lower > 1:
        boundary.append(Digit(lower, REGISTER, 1))
    pairs = common_refinement(digits, boundary)
    if pairs is None:
        return None
    own: list[Digit] = []
    size = 1
    for digit, _ in reversed(pairs):
        if lower <= size < lower * extent:
            own.insert(0, digit)
        size *= digit.extent
    return own if math.prod(d.extent for d in own) == extent else None


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
