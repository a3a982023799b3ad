"""What TVM's generators for GPUs do not print as it is meant, in another form.

That of Metal prints seven digits of a float, where nine tell all float32 values apart, gives bfloat16
the suffix of half, which has another range, and -2147483648 as the negative of a number that is no
int. Metal's `select`, `max` and `min` take no bfloat: they get the float32 values.

That of CUDA prints an infinity of bfloat16 or float16 as `inff`, which is no name, and its `max` and
`min` of them give the second operand where either is NaN; `__hmax` and `__hmin` give the number.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import tvm_ffi
from tvm import ir, tirx

__all__ = ["WriteConstants"]

_LOWEST_INT = -(2**31)


def _write_constants(func: tirx.PrimFunc, mod: Any, context: Any) -> tirx.PrimFunc:
    del mod, context
    target = func.attrs.get("target") if func.attrs is not None else None
    rules = None if target is None else _RULES.get(target.kind.name)
    return func if rules is None else func.with_body(tvm_ffi.structural_map(func.body, rules))


WriteConstants = tirx.transform.prim_func_pass(
    _write_constants, opt_level=0, name="tvmtile.WriteConstants"
)
"""The pass over kernels for GPUs, the last one before their generators."""


def _float(number: tirx.FloatImm) -> Any:
    dtype, value = str(number.ty.dtype), float(number.value)
    if dtype == "float32":
        return _float32(value)
    if dtype == "bfloat16" or not math.isfinite(value):
        return tirx.Cast(dtype, _float32(value))
    return number


def _float32(value: float) -> Any:
    number = tirx.FloatImm("float32", value)
    if not math.isfinite(value) or _bits(float(f"{value:e}")) == _bits(value):
        return number
    return tirx.reinterpret("float32", tirx.const(_bits(value), "uint32"))


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _extreme(node: Any) -> Any:
    if str(node.ty.dtype) != "bfloat16":
        return node
    return tirx.Cast("bfloat16", type(node)(_wide(node.a), _wide(node.b)))


def _select(node: tirx.Select) -> Any:
    if str(node.ty.dtype) != "bfloat16":
        return node
    wide = tirx.Select(node.condition, _wide(node.true_value), _wide(node.false_value))
    return tirx.Cast("bfloat16", wide)


# What MSL computes with these is an int, whose size `as_type` would not find to be that of the result.
_NARROW = {"int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort"}


def _reinterpreted(call: ir.Call) -> Any:
    if not isinstance(call.op, ir.Op) or call.op.name != "tirx.reinterpret":
        return call
    value = call.args[0]
    dtype = str(getattr(value.ty, "dtype", ""))
    if dtype not in _NARROW or isinstance(value, ir.TensorLoad):
        return call
    narrow = tirx.call_pure_extern(dtype, _NARROW[dtype], value)
    return ir.Call(call.op, [narrow], attrs=call.attrs, span=call.span, ret_ty=call.ty)


def _wide(value: Any) -> Any:
    return tirx.Cast("float32", value)


def _integer(number: tirx.IntImm) -> Any:
    if str(number.ty.dtype) == "int32" and int(number.value) == _LOWEST_INT:
        return tirx.reinterpret("int32", tirx.const(2**31, "uint32"))
    return number


def _finite(number: tirx.FloatImm) -> Any:
    dtype, value = str(number.ty.dtype), float(number.value)
    if dtype not in ("float16", "bfloat16") or math.isfinite(value):
        return number
    return tirx.Cast(dtype, tirx.FloatImm("float32", value))


_EXTREMES = {tirx.Max: "__hmax", tirx.Min: "__hmin"}


def _number(node: Any) -> Any:
    dtype = str(node.ty.dtype)
    if dtype not in ("float16", "bfloat16"):
        return node
    return tirx.call_pure_extern(dtype, _EXTREMES[type(node)], node.a, node.b)


_RULES: dict[str, list[Any]] = {
    "metal": [
        (tirx.FloatImm, _float),
        (tirx.IntImm, _integer),
        ((tirx.Max, tirx.Min), _extreme),
        (tirx.Select, _select),
        (ir.Call, _reinterpreted),
    ],
    "cuda": [(tirx.FloatImm, _finite), ((tirx.Max, tirx.Min), _number)],
}
