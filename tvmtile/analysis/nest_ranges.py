"""The values that an expression takes over the iterations of a nest of `T.Parallel` loops."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.sym import Analyzer, IntervalSet

from tvmtile._tvm import mapped
from tvmtile.ir.rewriting import contains, substitute, variables_of
from tvmtile.ir.scoped_rewriter import ScopedRewriter


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
        if not of_floats or not any(map(self.is_of_nest, variables_of(cast.value))):
            return cast
        return tirx.call_intrin(cast.ty.dtype, "tirx.reinterpret", cast)

    def is_of_nest(self, var: ir.Var) -> bool:
        """Tell whether the nest gives a variable its value."""
        return var in self._ranges or var in self._values

    @staticmethod
    def is_finite(bound: ir.Expr) -> bool:
        """Tell whether a bound of a range is a value."""
        return not contains(bound, ir.Var, lambda var: var.name in ("pos_inf", "neg_inf"))
