"""Expressions that TVM's GPU generators print wrongly, in another form.

That of Metal prints seven digits of a float, where nine tell all float32 values apart, gives bfloat16
the suffix of half, which has another range, and -2147483648 as the negative of a number that is no
int. Metal's `select`, `max` and `min` take no bfloat: they get the float32 values.

In both languages arithmetic on integers of 8 and 16 bits gives an int, which does not wrap around as
the dtype does and is ambiguous among Metal's functions: a cast follows.

That of CUDA prints an infinity of bfloat16 or float16 as `inff`, which is no name, and other constants
of them by functions whose header it includes only where it prints the type; casts name it. It prints 15
decimals of a float64, which of 1e-16 are none, and NVRTC refuses literals of float32 below the least
normal number: they get their bits. Its `max` and `min` of narrow floats give the second operand where
either is NaN; `__hmax` and `__hmin` give the number.

ptxas (of CUDA 12 and 13) makes one instruction of a conversion from bfloat16 to float16, or back, and
one of its result to an integer: it takes the bits of the first for those of the second, and rounds to
nearest. There the first conversion goes by float32, which holds all values of both.
"""

from __future__ import annotations

import math
import struct
from typing import Any, TypeGuard

from tvm import DataType, ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.device import device_pass
from tvmtile.ir.kernels import with_body
from tvmtile.ir.types import Binary

_LOWEST_INT = -(2**31)


@device_pass("WriteConstants")
def WriteConstants(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Rewrite expressions that the generator of a target prints wrongly."""
    return with_body(func, mapped(func.body, *_RULES[kind]))


def _float(number: tirx.FloatImm) -> ir.Expr:
    dtype, value = str(number.ty.dtype), float(number.value)
    if dtype == "float32":
        return _float32(value)
    if dtype == "bfloat16" or not math.isfinite(value):
        return tirx.Cast(dtype, _float32(value))
    return number


def _float32(value: float) -> ir.Expr:
    number = tirx.FloatImm("float32", value)
    if not math.isfinite(value) or _bits(float(f"{value:e}")) == _bits(value):
        return number
    return tirx.reinterpret("float32", tirx.const(_bits(value), "uint32"))


def _bits(value: float, dtype: str = "float32") -> int:
    return int.from_bytes(struct.pack(_FORMATS[dtype], value), "little")


_FORMATS = {"float32": "<f", "float64": "<d"}


def _extreme(node: Binary) -> ir.Expr:
    if str(node.ty.dtype) != "bfloat16":
        return node
    return tirx.Cast("bfloat16", type(node)(_wide(node.a), _wide(node.b)))


def _select(node: tirx.Select) -> ir.Expr:
    if str(node.ty.dtype) != "bfloat16":
        return node
    wide = tirx.Select(node.condition, _wide(node.true_value), _wide(node.false_value))
    return tirx.Cast("bfloat16", wide)


_NARROW = {"int8": "(signed char)", "uint8": "(uchar)", "int16": "(short)", "uint16": "(ushort)"}
_NARROW_OF = {"metal": _NARROW | {"int8": "(char)"}, "cuda": _NARROW}
_ARITHMETIC = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Mod,
    tirx.BitwiseAnd,
    tirx.BitwiseNot,
    tirx.BitwiseOr,
    tirx.BitwiseXor,
    tirx.LShift,
    tirx.RShift,
)


def _narrowed(casts: dict[str, str]) -> list[tuple[Any, Any]]:
    """The rules that put casts after arithmetic on narrow integers, but where a value is stored."""

    def cast(value: ir.Expr) -> ir.Expr:
        dtype = str(value.ty.dtype)
        return tirx.call_pure_extern(dtype, casts[dtype], value) if dtype in casts else value

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        value = statement.value
        if not _is_cast(value, casts):
            return statement
        plain = value.args[1]
        return tirx.BufferStore(statement.buffer, plain, statement.indices, span=statement.span)

    return [(_ARITHMETIC, cast), (tirx.BufferStore, store)]


def _is_cast(value: ir.Expr, casts: dict[str, str]) -> TypeGuard[ir.Call]:
    if not isinstance(value, ir.Call) or getattr(value.op, "name", "") != "tirx.call_pure_extern":
        return False
    return str(value.args[0].value) == casts.get(str(value.ty.dtype))


def _wide(value: ir.Expr) -> Any:
    return tirx.Cast("float32", value)


def _integer(number: tirx.IntImm) -> ir.Expr:
    if str(number.ty.dtype) == "int32" and int(number.value) == _LOWEST_INT:
        return tirx.reinterpret("int32", tirx.const(2**31, "uint32"))
    return number


def _cast(number: tirx.FloatImm) -> ir.Expr:
    dtype, value = str(number.ty.dtype), float(number.value)
    if dtype in ("float16", "bfloat16"):
        return tirx.Cast(dtype, _cast(tirx.FloatImm("float32", value)))
    is_lost = {
        "float32": 0 < abs(value) < 2.0**-126,
        "float64": math.isfinite(value) and float(f"{value:.15f}") != value,
    }
    if not is_lost.get(dtype, False):
        return number
    return tirx.reinterpret(dtype, tirx.const(_bits(value, dtype), dtype.replace("float", "uint")))


_EXTREMES = {tirx.Max: "__hmax", tirx.Min: "__hmin"}


def _number(node: Binary) -> ir.Expr:
    dtype = str(node.ty.dtype)
    if dtype not in ("float16", "bfloat16"):
        return node
    return tirx.call_pure_extern(dtype, _EXTREMES[type(node)], node.a, node.b)


def _by_float32(cast: tirx.Cast) -> ir.Expr:
    """A conversion between the two floats of 16 bits in two steps."""
    to, of = DataType(str(cast.ty.dtype)), DataType(str(cast.value.ty.dtype))
    if {to.with_lanes(1), of.with_lanes(1)} != {"float16", "bfloat16"}:
        return cast
    return tirx.Cast(to, tirx.Cast(DataType("float32").with_lanes(to.lanes), cast.value))


_RULES: dict[str, list[Any]] = {
    "metal": [
        (tirx.FloatImm, _float),
        (tirx.IntImm, _integer),
        ((tirx.Max, tirx.Min), _extreme),
        (tirx.Select, _select),
        *_narrowed(_NARROW_OF["metal"]),
    ],
    "cuda": [
        (tirx.FloatImm, _cast),
        ((tirx.Max, tirx.Min), _number),
        (tirx.Cast, _by_float32),
        *_narrowed(_NARROW_OF["cuda"]),
    ],
}
