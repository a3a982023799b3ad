"""The largest and the smallest values of dtypes."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile.errors import InvalidValue
from tvmtile.frontend.dtypes import DType, DTypeLike, as_dtype

__all__ = ["infinity", "max_value", "min_value"]


_HAVE_INFINITY = ("float64", "float32", "float16", "bfloat16", "float8_e5m2")


# Where TVM's max_value is not the largest number that the dtype holds.
_LARGEST = {
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
    "float8_e8m0fnu": 2.0**127,
}


_SMALLEST = {"float8_e8m0fnu": 2.0**-127}


def infinity(dtype: DTypeLike) -> Any:
    """Positive infinity of a float dtype; the largest value of an integer one.

    Raises
    ------
    InvalidValue
        If the float dtype has no infinity.
    """
    name = as_dtype(dtype)
    if "float" not in name:
        return max_value(name)
    if name not in _HAVE_INFINITY:
        raise InvalidValue(
            f"{name} has no infinity", help="T.max_value(dtype) is the largest number it holds"
        )
    return tirx.const(float("inf"), str(name))


def max_value(dtype: DTypeLike) -> ir.Expr:
    """The largest finite value of a dtype."""
    name = as_dtype(dtype)
    return _number(_LARGEST[name], name) if name in _LARGEST else tirx.max_value(str(name))


def min_value(dtype: DTypeLike) -> ir.Expr:
    """The smallest (most negative) finite value of a dtype."""
    name = as_dtype(dtype)
    if name in _LARGEST:
        return _number(_SMALLEST.get(name, -_LARGEST[name]), name)
    return tirx.min_value(str(name))


def _number(value: float, dtype: DType) -> ir.Expr:
    # TVM takes dtypes without a negative zero for unsigned ones and refuses their constants.
    if "fnuz" in dtype:
        return tirx.Cast(str(dtype), tirx.const(value, "float32"))
    return tirx.const(value, str(dtype))
