"""Arithmetic that Python's operators do not spell: `T.exp`, `T.max`, `T.ceildiv`, ...

Most names are TVM's own. Here are those that must also work on plain Python numbers, whose meaning on
run-time conditions needs care, or that TVM spells differently or has in one dtype only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile.errors import InvalidOperand, InvalidValue, OutOfBounds, UnsupportedDtype
from tvmtile.frontend.dtypes import DType, DTypeLike, Extent, as_dtype, cast
from tvmtile.frontend.values import (
    alike,
    are_numbers,
    as_condition,
    as_expr,
    as_exprs,
    ceildiv,
    if_then_else,
    with_sign,
)
from tvmtile.ir.annotations import FAST
from tvmtile.ir.packed import FLOAT4
from tvmtile.ir.types import Index, Value

__all__ = [
    "Cast",
    "PrimExpr",
    "Select",
    "__cos",
    "__exp",
    "__exp2",
    "__exp10",
    "__log",
    "__log2",
    "__log10",
    "__sin",
    "__tan",
    "__tanh",
    "abs",
    "align_up",
    "atan2",
    "cdiv",
    "ceildiv",
    "clamp",
    "copysign",
    "dtype",
    "exp10",
    "extract_lane",
    "fmod",
    "hypot",
    "index_to_coordinates",
    "infinity",
    "isfinite",
    "isinf",
    "isnan",
    "max",
    "max_value",
    "min",
    "min_value",
    "nextafter",
    "pow",
    "power",
    "reinterpret",
    "round",
    "rsqrt",
    "sigmoid",
    "where",
]


dtype = as_dtype


PrimExpr = ir.Expr
"""The class of a kernel's values."""


def Cast(dtype: DTypeLike, value: Value) -> Any:
    """`T.cast` with TVM's order of arguments."""
    return cast(value, dtype)


_python_max, _python_min = max, min


def max(a: Any, b: Any, *more: Any) -> Any:
    """The largest of the values; of Python numbers, a Python number."""
    if more:
        return max(max(a, b), *more)
    return _extreme(_python_max, tirx.max, a, b)


def min(a: Any, b: Any, *more: Any) -> Any:
    """The smallest of the values; of Python numbers, a Python number."""
    if more:
        return min(min(a, b), *more)
    return _extreme(_python_min, tirx.min, a, b)


def _extreme(of_numbers: Any, of_values: Any, a: Any, b: Any) -> Any:
    """One of two values: the number of NaN and a number, where Python and TVM take the first one."""
    if are_numbers(a, b):
        return of_numbers(a, b) if a == a else b  # noqa: PLR0124 - false of NaN
    first, second = as_exprs(a, b)
    if isinstance(first, tirx.FloatImm) and isinstance(second, tirx.FloatImm):
        return second if math.isnan(float(first.value)) else of_values(first, second)
    return of_values(first, second)


def abs(x: Any) -> Any:
    """The magnitude; of the least integer, whose magnitude its dtype does not have, itself."""
    if not ir.is_prim_expr(x) or not str(x.ty.dtype).startswith("int"):
        return tirx.abs(x)
    if isinstance(x, tirx.IntImm):  # TVM folds no negative of a number without a sign
        number = int(x.value)
        is_least = number == -(2 ** (x.ty.dtype.bits - 1))
        return x if number >= 0 or is_least else tirx.const(-number, str(x.ty.dtype))
    # TVM's own names the value three times. To C++ a number without a sign has a negative always.
    dtype = str(x.ty.dtype)
    negative = tirx.const(0, f"u{dtype}") - tirx.Cast(f"u{dtype}", x)
    return tirx.max(x, tirx.Cast(dtype, negative))


def clamp(dst: Value, min_val: Value, max_val: Value) -> Any:
    """A value limited to an interval.

    Parameters
    ----------
    dst : Expr or number
        The value.
    min_val, max_val : Expr or number
        The ends of the interval.
    """
    return min(max(dst, min_val), max_val)


cdiv = ceildiv


def align_up(x: Index, y: Index) -> Index:
    """The smallest multiple of `y` that is not below `x`, for integers."""
    return ceildiv(x, y) * y


def index_to_coordinates(index: Any, shape: Sequence[Extent]) -> list[Index]:
    """The coordinates, in a row-major tensor of a shape, of the element of a linear index.

    Parameters
    ----------
    index : int or Expr
        From 0 to the number of elements.
    shape : sequence of int or Expr
        Extents; the first is not needed.
    """
    coordinates = []
    for extent in reversed(shape):
        coordinates.append(index % extent)
        index = index // extent
    return coordinates[::-1]


where = if_then_else


def Select(condition: Value, then: Value, otherwise: Value) -> ir.Expr:
    """One of two values, both of which may be evaluated; a condition known now decides now.

    Parameters
    ----------
    condition : Expr or bool
        A number is true where it is not 0.
    then, otherwise : Expr or number
        Values of one dtype; a number takes the dtype of the other.
    """
    a, b = as_exprs(then, otherwise)
    test = as_condition(condition)
    if isinstance(test, bool):
        return a if test else b
    return tirx.Select(test, a, with_sign(b))


def round(x: Value, rounding_mode: str = "ties-to-even") -> ir.Expr:
    """The nearest integer, as a float.

    Parameters
    ----------
    x : Expr
        A float.
    rounding_mode : {"ties-to-even", "ties-away-from-zero"}
        Which of two nearest integers to take.
    """
    value = as_expr(x)
    if rounding_mode == "ties-to-even":
        return tirx.round(value)
    if rounding_mode != "ties-away-from-zero":
        raise InvalidValue(
            f"T.round: rounding_mode={rounding_mode!r}",
            help='use "ties-to-even" or "ties-away-from-zero"',
        )
    dtype = str(value.ty.dtype)
    if dtype.startswith("float8"):  # TVM has no absolute value of them
        return tirx.Cast(dtype, round(tirx.Cast("float32", value), rounding_mode))
    whole = tirx.trunc(value)
    one, zero = tirx.const(1, value.ty.dtype), tirx.const(0, value.ty.dtype)
    step = tirx.Select(value < zero, -one, one)
    # The distance to the integer below is exact, unlike x + 0.5.
    is_half = tirx.abs(value - whole) >= tirx.const(0.5, value.ty.dtype)
    return tirx.Select(is_half, whole + step, whole)


def reinterpret(value: Any, dtype: DTypeLike) -> Any:
    """The bits of `value` as another dtype of the same width.

    A float of 4 bits is the low half of a uint8, whose high half is zero.

    Raises
    ------
    InvalidOperand
        If the widths differ. TVM's order of the arguments, dtype first, is accepted too.
    """
    if isinstance(value, str) or not ir.is_prim_expr(value):
        value, dtype = dtype, value
    expression = as_expr(value)
    if dtype == "handle":  # the null pointer of TVM's attribute `reduce_scope`
        return tirx.reinterpret(dtype, expression)
    name = as_dtype(dtype)
    source = DataType(str(expression.ty.dtype))
    if str(source) == "uint8" and name == FLOAT4:
        return tirx.reinterpret(FLOAT4, expression & tirx.const(0x0F, "uint8"))
    is_code = str(source) == FLOAT4 and name == "uint8"
    if not is_code and source.bits * source.lanes != name.bits * name.lanes:
        raise InvalidOperand(
            f"T.reinterpret: {source} and {name} differ in width",
            help="use T.cast to convert the value",
        )
    if isinstance(expression, tirx.IntImm) and expression.value == 0:  # TVM's null pointer
        return tirx.const(0, str(name))
    return tirx.reinterpret(str(name), expression)


def extract_lane(vector: Any, lane: Index) -> ir.Expr:
    """One element of a vector.

    Parameters
    ----------
    vector : Expr
        Of a vector dtype.
    lane : int
        Which element, known while tracing.

    Raises
    ------
    InvalidOperand
        If `vector` is not a vector, or `lane` is not an integer.
    OutOfBounds
        If the vector has no such element.
    """
    from tvmtile.frontend.proxy import vector_of

    expression: Any = vector_of(vector) if isinstance(vector, ir.TensorRegion) else vector
    if not ir.is_prim_expr(expression) or DataType(str(expression.ty.dtype)).lanes == 1:
        raise InvalidOperand(
            f"T.extract_lane: {vector} is not a vector",
            help="the value of a scalar is its only lane",
        )
    lanes = DataType(str(expression.ty.dtype)).lanes
    if isinstance(lane, tirx.IntImm):
        lane = int(lane)
    if not isinstance(lane, int):
        raise InvalidOperand(
            f"T.extract_lane: the lane {lane} is not a compile-time integer",
            help="store the vector into a buffer to index it at run time",
        )
    if not 0 <= lane < lanes:
        raise OutOfBounds(f"T.extract_lane: lane {lane} is outside a vector of {lanes} lanes")
    return tirx.Shuffle([expression], [tirx.const(lane, "int32")])


def sigmoid(value: Value) -> ir.Expr:
    """`1 / (1 + exp(-value))`."""
    expression = as_expr(value)
    one = tirx.const(1, expression.ty.dtype)
    return one / (one + tirx.exp(-expression))


def rsqrt(value: Value) -> ir.Expr:
    """`1 / sqrt(value)`."""
    expression = as_expr(value)
    return tirx.const(1, expression.ty.dtype) / tirx.sqrt(expression)


def exp10(value: Value) -> ir.Expr:
    """10 to the power of `value`."""
    return pow(10, as_expr(value))


def pow(x: Value, y: Value) -> ir.Expr:
    """`x` to the power of `y`; of floats narrower than float16 computed in float32."""
    base, exponent = alike(x, y)
    dtype = str(base.ty.dtype)
    if not dtype.startswith(_WIDENED):
        return tirx.pow(base, exponent)
    return tirx.Cast(dtype, tirx.pow(_wide(base), _wide(exponent)))


power = pow


def isnan(value: Value) -> ir.Expr:
    """Tell whether a float is not a number."""
    return tirx.isnan(_wide(as_expr(value)))


def isinf(value: Value) -> ir.Expr:
    """Tell whether a float is infinite."""
    return tirx.isinf(_wide(as_expr(value)))


def isfinite(value: Value) -> ir.Expr:
    """Tell whether a float is neither infinite nor NaN."""
    return tirx.isfinite(_wide(as_expr(value)))


_WIDENED = ("bfloat16", "float8")  # TVM's own functions refuse them


def _wide(value: ir.Expr) -> ir.Expr:
    dtype = DataType(str(value.ty.dtype))
    if not str(dtype).startswith(_WIDENED):
        return value
    return tirx.Cast("float32" if dtype.lanes == 1 else f"float32x{dtype.lanes}", value)


def _of_two(function: Any) -> Any:
    def of_two(x: Value, y: Value) -> ir.Expr:
        return function(*alike(x, y))

    of_two.__name__ = name = function.__name__
    of_two.__doc__ = f"TVM's `{name}` of two floats, in the dtype of arithmetic on them."
    return of_two


atan2 = _of_two(tirx.atan2)


copysign = _of_two(tirx.copysign)


fmod = _of_two(tirx.fmod)


hypot = _of_two(tirx.hypot)


nextafter = _of_two(tirx.nextafter)


def _fast(function: Any) -> Any:
    """A function that may be less exact where the target has a faster one; a CPU has none."""
    name = function.__name__

    def fast(x: Value) -> ir.Expr:
        value = as_expr(x)
        if "float" not in str(value.ty.dtype):
            raise UnsupportedDtype(
                f"T.__{name} only supports floating-point inputs, but got {value.ty.dtype}",
                help=f'convert it: `T.__{name}(T.cast(x, "float32"))`',
            )
        call = function(_wide(value))
        fast = ir.Call(call.op, call.args, attrs={FAST: True}, span=call.span, ret_ty=call.ty)
        return cast(fast, DType(str(value.ty.dtype)))

    fast.__name__ = f"__{name}"
    fast.__doc__ = f"`{name}`, less exact where the target has a faster instruction."
    return fast


__cos = _fast(tirx.cos)


__exp = _fast(tirx.exp)


__exp2 = _fast(tirx.exp2)


__exp10 = _fast(tirx.exp10)


__log = _fast(tirx.log)


__log2 = _fast(tirx.log2)


__log10 = _fast(tirx.log10)


__sin = _fast(tirx.sin)


__tan = _fast(tirx.tan)


__tanh = _fast(tirx.tanh)


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
