"""Dynamic extents, and how wide the number of an element in its tensor must be.

The index along an axis is as wide as the axis's extent, int32 as a rule. The number of an element in
memory, `i * columns + j`, may not fit there: that of a tensor with more than 2^31 elements is
computed in 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, tirx
from tvm.sym import Analyzer, ConstIntBound

from tvmtile._tvm import is_buffer_var
from tvmtile.ir.nodes import cached_per_node
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


_WIDE = "int64"
_LIMIT = 2**31


@cached_per_node
def is_large(buffer: ir.Var) -> bool:
    """Tell whether a buffer may have elements whose numbers in memory do not fit into 31 bits.

    A dynamic extent is anything up to its dtype's largest value, so that of one axis fits, and a
    product with a dynamic extent may not.
    """
    extents = _upper_bounds(buffer.ty.shape)
    if not buffer.ty.strides:
        return math.prod(extents) > _LIMIT
    strides = _upper_bounds(buffer.ty.strides)
    return sum((n - 1) * s for n, s in zip(extents, strides, strict=True)) >= _LIMIT


def _upper_bounds(values: Sequence[ir.Expr]) -> list[int]:
    analyzer = Analyzer()
    return [int(analyzer.const_int_bound(value).max_value) for value in values]


def count_of(extents: Sequence[ir.Expr]) -> ir.Expr:
    """The product of extents, computed in 64 bits where it may not fit into 32."""
    if math.prod(_upper_bounds(extents)) > _LIMIT:
        extents = [widened(extent) for extent in extents]
    return math.prod(extents[1:], start=extents[0])


def widened(index: ir.Expr) -> ir.Expr:
    """An index in 64 bits: sums, differences and products in it can't wrap any more.

    Whatever else stands in it fits into its own dtype, and is converted from there.
    """
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(widened(index.base), widened(index.stride), index.lanes)
    if index.ty.dtype == _WIDE:
        return index
    if isinstance(index, tirx.IntImm):
        return tirx.const(int(index), _WIDE)
    if isinstance(index, tirx.Add | tirx.Sub | tirx.Mul):
        return type(index)(widened(index.a), widened(index.b))
    return tirx.Cast(_WIDE, index)
