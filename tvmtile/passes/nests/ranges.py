"""The ranges of expressions over the iterations of a nest, and the conditions before it that decide.

`NestConditions` looks at the comparisons in a nest, `NestBounds` at its accesses to tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer, IntervalSet
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, indices_of, mapped
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.rewriting import contains, reads_no_memory, substitute, variables_of
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.types import ORDERS, Binary, is_signed_integer


class NestRanges(ScopedRewriter):
    """Visits a nest and knows, at each place, the ranges of its loops and the values of its names."""

    def __init__(self, outer: Analyzer) -> None:
        super().__init__(outer)
        self._ranges: dict[ir.Var, IntervalSet] = {}
        self._values: dict[ir.Var, ir.Expr] = {}

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        last = self.analyzer.simplify(loop.min + loop.extent - 1)
        self._ranges[loop.loop_var] = IntervalSet(loop.min, last)
        return super().visit_for(loop)

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        self._values[bind.var] = substitute(bind.value, self._values)
        return super().visit_bind(bind)

    def range_of(self, expression: ir.Expr) -> IntervalSet:
        """The least and the greatest value over all iterations, in terms of what is outside.

        A name that the nest binds is not known before it: its value is looked at instead. What is
        made of floats may be anything: TVM has no ranges of floats, and fails on a product of them.
        """
        known = mapped(substitute(expression, self._values), (tirx.Cast, self._of_integers))
        return self.analyzer.int_set(known, self._ranges)

    def _of_integers(self, cast: tirx.Cast) -> ir.Expr:
        """Hide a cast of floats that the nest decides behind a call, which may give any value."""
        of_floats = contains(cast.value, ir.Expr, lambda e: "float" in str(e.ty.dtype))
        if not of_floats or not any(map(self._is_unknown, variables_of(cast.value))):
            return cast
        return tirx.call_intrin(cast.ty.dtype, "tirx.reinterpret", cast)

    def is_known_before(self, bound: ir.Expr) -> bool:
        """Tell whether a bound of a range is finite, and the nest gives nothing in it a value."""
        depends = any(map(self._is_unknown, variables_of(bound)))
        return not depends and reads_no_memory(bound)

    def _is_unknown(self, var: ir.Var) -> bool:
        """Tell whether a variable has no value before the nest."""
        is_infinite = var.name in ("pos_inf", "neg_inf")
        return is_infinite or var in self._ranges or var in self._values


class NestConditions(NestRanges):
    """The comparisons in a nest, and what decides them outside of it.

    Attributes
    ----------
    always : list of Expr
        Those that hold in all iterations.
    decided : list of Expr
        Those that hold in all iterations if `outside` holds.
    outside : list of Expr
        In terms of what is known before the nest.
    """

    def __init__(self, outer: Analyzer) -> None:
        super().__init__(outer)
        self.always: list[Any] = []
        self.decided: list[Any] = []
        self.outside: list[Any] = []

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        if ir.is_prim_expr(bind.value) and str(bind.value.ty.dtype) == "bool":
            self._note(bind.value)
        return super().visit_bind(bind)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        self._note(branch.condition)
        return super().visit_if(branch)

    def visit_call(self, node: ir.Call) -> ir.Expr:
        if is_if_then_else(node):
            self._note(node.args[0])
        return self.descend(node)

    def _note(self, condition: ir.Expr) -> None:
        for part in conjuncts(condition):
            if any(part.same_as(known) for known in (*self.always, *self.decided)):
                continue
            if not _compares_integers(part):
                continue
            outside = self._decided_by(part)
            if self.analyzer.can_prove(part) or self.analyzer.can_prove(outside):
                self.always.append(part)
            elif not self.analyzer.can_prove(tirx.Not(outside)):
                self.decided.append(part)
                self.outside.append(outside)

    def _decided_by(self, comparison: Binary) -> ir.Expr:
        """A condition before the nest by which a comparison holds in all iterations, or false."""
        values = self.range_of(comparison.a - comparison.b)
        is_less = isinstance(comparison, tirx.LT | tirx.LE)
        worst = values.max_value if is_less else values.min_value
        if not self.is_known_before(worst):
            return tirx.const(False, "bool")
        zero = tirx.const(0, str(worst.ty.dtype))
        return self.analyzer.simplify(type(comparison)(worst, zero))


def _compares_integers(condition: Binary) -> bool:
    is_order = isinstance(condition, ORDERS)
    return is_order and is_signed_integer(condition.a) and reads_no_memory(condition)


def within_axis(low: ir.Expr, high: ir.Expr, extent: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The conditions that indices from `low` to `high` lie inside an axis of so many elements."""
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
    """The accesses of a nest to tensors, and what has them lie inside.

    Attributes
    ----------
    conditions : list of Expr
        In terms of what is known before the nest.
    inside : list of Index
        Of accesses that lie inside, in whatever iteration they stand, if `conditions` hold.
    """

    def __init__(self, tensors: set[ir.Var], outer: Analyzer) -> None:
        super().__init__(outer)
        self._tensors = tensors
        self.conditions: list[Any] = []
        self.inside: list[Index] = []

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
            if not (self.is_known_before(low) and self.is_known_before(high)):
                continue
            self.inside.append(Index(buffer, axis, index))
            for part in within_axis(low, high, extent):
                condition = self.analyzer.simplify(part)
                is_known = any(structural_equal(condition, other) for other in self.conditions)
                if not is_known and not self.analyzer.can_prove(condition):
                    self.conditions.append(condition)
