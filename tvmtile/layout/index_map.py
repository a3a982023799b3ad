"""Indices as sums of digits of loop variables, as TVM's iterator maps see them.

`j // 16 * 32 + j % 16 + 8` is the digit `j // 16`, 32 times, and the digit `j % 16`, on the base 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.sym import Analyzer, normalize_to_iter_sum

from tvmtile._tvm import nodes_in
from tvmtile.analysis.nests import Nest
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import mentions, variables_of
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import REGISTER, Digit, common_refinement


@dataclass(frozen=True)
class Part:
    """`variable // lower % extent * scale`."""

    variable: ir.Var
    lower: int
    extent: int
    scale: int
    is_whole: bool


@dataclass(frozen=True)
class IndexMap:
    """An index as a sum of digits of loop variables, the most significant first, and a base."""

    parts: tuple[Part, ...]
    base: Index

    @classmethod
    def of(cls, index: ir.Expr, nest: Nest) -> IndexMap | None:
        """Take an index apart; None where it is no such sum."""
        if len(nodes_in(index, ir.Var)) > len(variables_of(index)):
            index = Analyzer().simplify(index)  # of what cancels, TVM divides by its scale of 0
        known = list(zip(nest.variables, nest.extents, strict=True))
        used = {v: e for v, e in known if e is not None and mentions(index, v)}
        if any(e is None and mentions(index, v) for v, e in known):
            return None
        ranges = {v: ir.Range(0, extent) for v, extent in used.items()}
        # TVM leaves out the loop of a single iteration, which places an index like any other.
        total = normalize_to_iter_sum(index, {v: ir.Range(0, max(e, 2)) for v, e in used.items()})
        if any(mentions(total.base, variable) for variable in used):
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
            extent = min(extent, used[variable])
            is_whole = lower == 1 and extent == used[variable]
            parts.append(Part(variable, lower, extent, scale, is_whole))
        parts.sort(key=lambda part: -part.scale)
        base = constant(total.base)
        result = cls(tuple(parts), total.base if base is None else base)
        if not result._is(index, ranges):
            return None
        return replace(result, base=0) if parts and _is_below(result, nest) else result

    def _is(self, index: ir.Expr, ranges: dict[ir.Var, ir.Range]) -> bool:
        value = self.base
        for p in self.parts:
            value = value + p.variable // p.lower % p.extent * p.scale
        analyzer = Analyzer()
        for variable, values in ranges.items():
            analyzer.bind(variable, values)
        return bool(analyzer.can_prove_equal(value, index))

    @property
    def is_whole_variable(self) -> bool:
        """Tell whether it is one loop variable, displaced by the base."""
        return len(self.parts) == 1 and self.parts[0].scale == 1 and self.parts[0].is_whole

    @property
    def base_is_below(self) -> bool:
        """Tell whether the base only fills places below those of the loop variables."""
        base = constant(self.base)
        return base is not None and all(0 <= base < part.scale for part in self.parts)

    @property
    def base_keeps_digits(self) -> bool:
        """Tell whether the base only fills places that no digit of a loop variable has."""
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
            above = cut(digits, top, position // top, whole=False) if position > top else []
            own = cut(digits, part.scale, part.extent, whole=False)
            if above is None or own is None or any(d.is_thread for d in above):
                return None
            taken.append(tuple(own))
            position = part.scale
        below = cut(digits, 1, position, whole=False) if position > 1 else []
        if below is None or any(d.is_thread for d in below):
            return None
        return taken


def _is_below(index: IndexMap, nest: Nest) -> bool:
    """Tell whether inner loops count the places below those of the loop variables: `i * 4 + v`."""
    if constant(index.base) is not None:
        return False
    analyzer = Analyzer()
    for loop in nodes_in(nest.body, tirx.For):
        analyzer.bind(loop.loop_var, ir.Range(loop.min, loop.extent))
    bound = analyzer.const_int_bound(index.base)
    return bound.min_value >= 0 and bound.max_value < index.parts[-1].scale


def cut(digits: Sequence[Digit], lower: int, extent: int, whole: bool) -> list[Digit] | None:
    """The digits of `value // lower % extent`; None where they don't fall together.

    All of them where the `whole` value is meant, which may have more values than the extent.
    """
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
