"""`T.add2`, `T.fma2`, ...: arithmetic on vectors of two floats, element by element."""

from __future__ import annotations

from typing import Any

from tvm import DataType, ir, tirx

from tvmtile.errors import InvalidValue
from tvmtile.frontend.elements import vector_of
from tvmtile.frontend.math import as_expr
from tvmtile.frontend.math import max as largest
from tvmtile.frontend.math import min as smallest
from tvmtile.ir.types import Value
from tvmtile.language.rounding import rounded

__all__ = ["abs2", "add2", "fma2", "max2", "min2", "mul2", "sub2"]

_PAIRS = ("float32x2", "float16x2", "bfloat16x2")


def add2(x: Value, y: Value) -> ir.Expr:
    """`x + y`, element by element.

    Parameters
    ----------
    x, y : Expr
        Of one dtype: float32x2, float16x2 or bfloat16x2, as `A[i : i + 2]` or `A[T.Ramp(i, 1, 2)]`.

    Raises
    ------
    InvalidValue
        If the dtypes differ, or are others.
    """
    a, b = _pairs("add2", x, y)
    return a + b


def sub2(x: Value, y: Value) -> ir.Expr:
    """`x - y`, element by element; see `add2`."""
    a, b = _pairs("sub2", x, y)
    return a - b


def mul2(x: Value, y: Value) -> ir.Expr:
    """`x * y`, element by element; see `add2`."""
    a, b = _pairs("mul2", x, y)
    return a * b


def fma2(x: Value, y: Value, z: Value) -> ir.Expr:
    """`x * y + z`, element by element, each rounded once; see `add2`."""
    values = _pairs("fma2", x, y, z)
    lanes = [[tirx.Shuffle([value], [lane]) for value in values] for lane in range(2)]
    return tirx.Shuffle([rounded("fma", "fma2", "rn", *scalars) for scalars in lanes], [0, 1])


def max2(x: Any, y: Any) -> ir.Expr:
    """The larger of two, as `T.max`, element by element; see `add2`."""
    return largest(*_pairs("max2", x, y))


def min2(x: Any, y: Any) -> ir.Expr:
    """The smaller of two, as `T.min`, element by element; see `add2`."""
    return smallest(*_pairs("min2", x, y))


def abs2(x: Value) -> ir.Expr:
    """Each element without its sign; see `add2`."""
    (value,) = _pairs("abs2", x)
    bits = DataType(str(value.ty.dtype)).bits
    mask = tirx.Broadcast(tirx.const((1 << (bits - 1)) - 1, f"uint{bits}"), 2)
    magnitude = tirx.reinterpret(f"uint{bits}x2", value) & mask
    return tirx.reinterpret(str(value.ty.dtype), magnitude)


def _pairs(name: str, *values: Value) -> list[ir.Expr]:
    expressions = [as_expr(vector_of(v) if isinstance(v, ir.TensorRegion) else v) for v in values]
    kinds = [str(expression.ty.dtype) for expression in expressions]
    if any(kind not in _PAIRS for kind in kinds):
        raise InvalidValue(
            f"T.{name}: Expected dtype in {list(_PAIRS)}, got {', '.join(kinds)}",
            help="give two neighbouring elements, as `A[i : i + 2]`",
        )
    if len(set(kinds)) > 1:
        raise InvalidValue(
            f"T.{name}: the operands need the same dtype, and have {', '.join(kinds)}",
            help="cast them to one",
        )
    return expressions
