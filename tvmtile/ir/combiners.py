"""The ways in which reductions and scans put elements together.

A combiner is associative and commutative up to rounding. `combine(new, total)` gets the new element
first: `tirx.max` and `tirx.min` give their second operand where either is NaN, so a total that starts
from the identity never becomes NaN, and NaN elements are ignored, as TileLang's default has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import DataType, ir, tirx


@dataclass(frozen=True)
class Combiner:
    """One way of putting elements together."""

    name: str
    """As users write it."""
    identity: Callable[[str], ir.Expr]
    """The value, of a dtype, that changes nothing."""
    combine: Callable[[Any, Any], ir.Expr]
    """`(new, total)` to the new total; on vectors too."""
    element: Callable[[Any], ir.Expr] = lambda value: value
    """The part of an element that is combined: the element or its absolute value."""
    integers_only: bool = False
    """Whether it works on bits."""
    repeats: bool = False
    """Whether `combine` evaluates its first operand more than once, or not always."""


def has_bit_operations(dtype: str) -> bool:
    """Tell whether bit operations work on a dtype; booleans count."""
    return dtype == "bool" or dtype.startswith(("int", "uint"))


def accumulator_dtype(src: str, dst: str) -> str:
    """The dtype in which elements of `src` are combined into `dst`.

    Floats narrower than 32 bits are combined in float32 and rounded once; a float on either side
    makes it float; of two integer dtypes it is the wider, the result's if they are as wide.
    """
    dtypes = ["int32" if dtype == "bool" else dtype for dtype in (dst, src)]
    if any(not has_bit_operations(dtype) for dtype in dtypes):
        return "float64" if "float64" in dtypes else "float32"
    return max(dtypes, key=lambda dtype: int(DataType(dtype).bits))


def _lowest(dtype: str) -> ir.Expr:
    return tirx.min_value(dtype) if has_bit_operations(dtype) else tirx.const(float("-inf"), dtype)


def _highest(dtype: str) -> ir.Expr:
    return tirx.max_value(dtype) if has_bit_operations(dtype) else tirx.const(float("inf"), dtype)


def _zero(dtype: str) -> ir.Expr:
    return tirx.const(0, dtype)


def _all_ones(dtype: str) -> ir.Expr:
    return tirx.max_value(dtype) if dtype.startswith("uint") else tirx.const(-1, dtype)


def _absolute(value: ir.Expr) -> ir.Expr:
    return value if str(value.ty.dtype).startswith("uint") else tirx.abs(value)


COMBINERS = {
    combiner.name: combiner
    for combiner in (
        Combiner("sum", _zero, lambda new, total: total + new),
        Combiner("max", _lowest, tirx.max),
        Combiner("min", _highest, tirx.min),
        Combiner("abssum", _zero, lambda new, total: total + new, _absolute),
        Combiner("absmax", _zero, tirx.max, _absolute),
        Combiner("bitand", _all_ones, lambda new, total: total & new, integers_only=True),
        Combiner("bitor", _zero, lambda new, total: total | new, integers_only=True),
        Combiner("bitxor", _zero, lambda new, total: total ^ new, integers_only=True),
    )
}
"""Every combiner by name."""


def propagating_nan(combiner: Combiner) -> Combiner:
    """The same maximum or minimum, NaN where some element is NaN."""

    def combine(new: ir.Expr, total: ir.Expr) -> ir.Expr:
        return tirx.Select(
            tirx.isnan(new),
            new,
            tirx.Select(tirx.isnan(total), total, combiner.combine(new, total)),
        )

    return Combiner(combiner.name, combiner.identity, combine, combiner.element, repeats=True)
