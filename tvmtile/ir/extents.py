"""Dynamic extents: what is known of them, and what they are where the value of an expression is."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.sym import Analyzer, ConstIntBound

from tvmtile._tvm import is_buffer_var
from tvmtile.ir.operands import integer_range
from tvmtile.ir.rewriting import substitute


def is_power_of_two(number: int) -> bool:
    """Tell whether a number is 1, 2, 4, ..."""
    return number > 0 and number.bit_count() == 1


def assume_extents_nonnegative(analyzer: Analyzer, params: Sequence[ir.Var]) -> None:
    """Tell an analyzer that the variables in the shapes of parameters are not negative."""
    not_negative = ConstIntBound(0, ConstIntBound.POS_INF)
    for param in filter(is_buffer_var, params):
        for extent in param.ty.shape:
            if isinstance(extent, ir.Var):
                analyzer.update(extent, not_negative, override=True)


def linear_in(expression: ir.Expr, var: ir.Var) -> tuple[int, ir.Expr] | None:
    """`(c, r)` where an integer expression is `c * var + r`, c a constant other than 0; else None."""
    analyzer = Analyzer()
    zero, one = (tirx.const(value, str(var.ty.dtype)) for value in (0, 1))
    rest = analyzer.simplify(substitute(expression, {var: zero}))
    coefficient = analyzer.simplify(substitute(expression, {var: one}) - rest)
    if not isinstance(coefficient, tirx.IntImm) or int(coefficient) == 0:
        return None
    if not analyzer.can_prove_equal(expression, coefficient * var + rest):
        return None
    return int(coefficient), rest


def extent_range(dtype: str) -> tuple[int, int]:
    """The least and the largest extent, or stride, that a dtype holds.

    Beyond the last element there is room for a tile: kernels count to the end of the last one, and
    `T.ceildiv` adds one to what it divides.
    """
    lowest, highest = integer_range(dtype)
    return lowest, highest - (_LARGEST_TILE if dtype == "int32" else 0)


_LARGEST_TILE = 1 << 16
