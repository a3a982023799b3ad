"""Arithmetic that Python's operators do not spell: `T.exp`, `T.max`, `T.ceildiv`, ...

Most names are TVM's own. Here are those that must also work on plain Python numbers, or whose meaning
on run-time conditions needs care; functions of floats are in `functions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile.errors import InvalidOperand, InvalidValue, OutOfBounds
from tvmtile.frontend.dtypes import DType, DTypeLike, Extent, as_dtype, cast
from tvmtile.frontend.values import as_condition, with_sign
from tvmtile.ir.packed import FLOAT4
from tvmtile.ir.types import Index, Value

__all__ = [
    "Cast",
    "PrimExpr",
    "Select",
    "abs",
    "align_up",
    "cast",
    "cdiv",
    "ceildiv",
    "clamp",
    "dtype",
    "extract_lane",
    "if_then_else",
    "index_to_coordinates",
    "max",
    "min",
    "reinterpret",
    "round",
    "where",
]

dtype = as_dtype
PrimExpr = ir.Expr
"""The class of a kernel's values."""


def Cast(dtype: DTypeLike, value: Value) -> Any:
    """`T.cast` with TVM's order of arguments."""
    return cast(value, dtype)


def as_expr(value: Any, like: Any = None) -> ir.Expr:
    """A Python number or a comparison as an expression; numbers take the dtype of `like`."""
    if hasattr(value, "asobject"):
        value = value.asobject()
    elif hasattr(value, "load"):
        value = value.load()
    if isinstance(value, bool | int | float):
        if ir.is_prim_expr(like):
            return tirx.const(value, str(like.ty.dtype))
        return tirx.const(value, "float32" if isinstance(value, float) else "int32")
    if not ir.is_prim_expr(value):
        from tvmtile.ir.operands import describe

        raise InvalidOperand(
            f"a function of elements got {describe(value)}",
            help="index a tile, `tile[i, j]`, in a loop over T.Parallel",
        )
    return value


def _pair(a: Any, b: Any) -> tuple[ir.Expr, ir.Expr]:
    return as_expr(a, b), as_expr(b, a)


def _are_numbers(*values: object) -> bool:
    return all(isinstance(value, bool | int | float) for value in values)


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
    if _are_numbers(a, b):
        return of_numbers(a, b) if a == a else b  # noqa: PLR0124 - false of NaN
    first, second = _pair(a, b)
    if isinstance(first, tirx.FloatImm) and isinstance(second, tirx.FloatImm):
        return second if math.isnan(float(first.value)) else of_values(first, second)
    return of_values(first, second)


def abs(x: Any) -> Any:
    """The magnitude; of the least integer, whose magnitude its dtype does not have, itself."""
    if not ir.is_prim_expr(x) or not str(x.ty.dtype).startswith("int"):
        return tirx.abs(x)
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


def ceildiv(a: Index, b: Index) -> Index:
    """`a / b` rounded up, for integers; of Python integers, a Python integer."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    a, b = alike(a, b)
    if isinstance(b, tirx.IntImm) and b.value > 0:
        return tirx.ceildiv(a, b)
    has_rest = tirx.NE(tirx.floormod(a, b), tirx.const(0, a.ty.dtype))
    return tirx.floordiv(a, b) + tirx.Cast(str(a.ty.dtype), has_rest)


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


def if_then_else(condition: Value, then: Value, otherwise: Value) -> Any:
    """One of two values; only the chosen one is evaluated, so it may guard a load.

    Parameters
    ----------
    condition : Expr or bool
        Decides at run time, or now if it is a Python value. A number is true where it is not 0.
    then, otherwise : Expr or number
        Values of one dtype; a number takes the dtype of the other.
    """
    test = as_condition(condition)
    if isinstance(test, bool):
        return then if test else otherwise
    if _are_numbers(then, otherwise):
        is_float = isinstance(then, float) or isinstance(otherwise, float)
        kind = "float32" if is_float else "int32"
        a, b = tirx.const(then, kind), tirx.const(otherwise, kind)
    else:
        a, b = _pair(then, otherwise)
    return tirx.if_then_else(test, *_promoted(a, b))


def alike(a: Any, b: Any) -> tuple[ir.Expr, ir.Expr]:
    """Two operands as expressions of one dtype."""
    return _promoted(*_pair(a, b))


def _promoted(a: ir.Expr, b: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Two expressions in the dtype that arithmetic between them has."""
    if str(a.ty.dtype) == str(b.ty.dtype):
        return a, b
    common = str((a + b).ty.dtype)
    return cast(a, DType(common)), cast(b, DType(common))


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
    a, b = _pair(then, otherwise)
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
    if isinstance(value, str) or not (ir.is_prim_expr(value) or hasattr(value, "load")):
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
    from tvmtile.frontend.elements import vector_of

    expression: Any = vector_of(vector) if isinstance(vector, ir.TensorRegion) else vector
    if hasattr(expression, "load"):
        expression = expression.load()
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
