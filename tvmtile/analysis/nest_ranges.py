"""The values that an expression takes over the iterations of a nest of `T.Parallel` loops."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer, IntervalSet

from tvmtile.ir.rewriting import ScopedRewriter, contains, substitute

__all__ = ["NestRanges"]


class NestRanges(ScopedRewriter):
    """Visits a nest and knows, at each place, the ranges of its loops and the values of its names.

    Parameters
    ----------
    outer : Analyzer
        Knows what holds before the nest.
    """

    def __init__(self, outer: Analyzer) -> None:
        super().__init__()
        self.analyzer = outer
        self._ranges: dict[ir.Var, Any] = {}
        self._values: dict[ir.Var, Any] = {}

    def visit_for(self, loop: tirx.For) -> Any:
        last = self.analyzer.simplify(loop.min + loop.extent - 1)
        self._ranges[loop.loop_var] = IntervalSet(loop.min, last)
        return super().visit_for(loop)

    def visit_bind(self, bind: tirx.Bind) -> Any:
        self._values[bind.var] = substitute(bind.value, self._values)
        return super().visit_bind(bind)

    def range_of(self, expression: Any) -> IntervalSet:
        """The least and the greatest value over all iterations, in terms of what is outside.

        A name that the nest binds is not known before it: its value is looked at instead.
        """
        return self.analyzer.int_set(substitute(expression, self._values), self._ranges)

    def is_of_nest(self, var: ir.Var) -> bool:
        """Tell whether the nest gives a variable its value."""
        return var in self._ranges or var in self._values

    @staticmethod
    def is_finite(bound: Any) -> bool:
        """Tell whether a bound of a range is a value."""
        return not contains(bound, ir.Var, lambda var: var.name in ("pos_inf", "neg_inf"))
