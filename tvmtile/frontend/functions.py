"""Functions of floats that TVM spells differently, or has in one dtype only."""

from __future__ import annotations

from typing import Any

from tvm import DataType, ir, tirx

from tvmtile.errors import UnsupportedDtype
from tvmtile.frontend.dtypes import DType, cast
from tvmtile.frontend.math import alike, as_expr
from tvmtile.ir.annotations import FAST
from tvmtile.ir.types import Value

__all__ = [
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
    "atan2",
    "copysign",
    "exp10",
    "fmod",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "nextafter",
    "pow",
    "power",
    "rsqrt",
    "sigmoid",
]


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
    """Whether a float is not a number."""
    return tirx.isnan(_wide(as_expr(value)))


def isinf(value: Value) -> ir.Expr:
    """Whether a float is infinite."""
    return tirx.isinf(_wide(as_expr(value)))


def isfinite(value: Value) -> ir.Expr:
    """Whether a float is neither infinite nor NaN."""
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
