"""The conditions under which all that a nest of `T.Parallel` accesses lies inside its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.analysis.nest_ranges import NestRanges
from tvmtile.ir.rewriting import contains


def within_axis(low: ir.Expr, high: ir.Expr, extent: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """What holds where the indices from `low` to `high` lie inside an axis of so many elements."""
    if isinstance(low, tirx.Ramp):
        high = low.base + (low.lanes - 1) * low.stride
        low = low.base
    return high < extent, low >= tirx.const(0, str(low.ty.dtype))


@dataclass(frozen=True)
class Index:
    """An index of an access along an axis."""

    buffer: ir.Var
    axis: int
    value: Any

    def is_among(self, others: list[Index]) -> bool:
        return any(
            self.axis == other.axis
            and self.buffer.same_as(other.buffer)
            and structural_equal(self.value, other.value)
            for other in others
        )


class NestBounds(NestRanges):
    """Finds the conditions, in terms of outer variables, under which a nest stays inside.

    Attributes
    ----------
    inside : list of Index
        What these conditions say of: whatever iteration they stand in, they lie inside.
    """

    def __init__(self, tensors: set[ir.Var], outer: Analyzer) -> None:
        super().__init__(outer)
        self._tensors = tensors
        self._conditions: list[Any] = []
        self.inside: list[Index] = []

    def of(self, loop: tirx.For) -> list[ir.Expr]:
        self.rewrite(loop)
        unique: list[Any] = []
        for condition in self._conditions:
            if not any(structural_equal(condition, other) for other in unique):
                unique.append(condition)
        return unique

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        self._note(buffer_of(node), indices_of(node))
        return self.descend(node)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        self._note(buffer_of(node), indices_of(node))
        return self.descend(node)

    def _note(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> None:
        if buffer not in self._tensors:
            return
        for axis, (index, extent) in enumerate(zip(indices, buffer.ty.shape, strict=True)):
            if isinstance(index, tirx.Ramp):
                continue
            if all(self.analyzer.can_prove(part) for part in within_axis(index, index, extent)):
                continue
            interval = self.range_of(index)
            low, high = interval.min_value, interval.max_value
            if not (_depends_on_outer_only(low) and _depends_on_outer_only(high)):
                continue
            self.inside.append(Index(buffer, axis, index))
            for part in within_axis(low, high, extent):
                condition = self.analyzer.simplify(part)
                if not self.analyzer.can_prove(condition):
                    self._conditions.append(condition)


def _depends_on_outer_only(bound: ir.Expr) -> bool:
    """Tell whether a bound is finite and reads no memory, which the nest might change."""
    reads = contains(bound, (ir.TensorLoad, ir.Call))
    return NestRanges.is_finite(bound) and not reads
