"""Rules for Apple's GPUs: constructs that TVM's generator for Metal prints wrongly."""

from __future__ import annotations

import math
import struct
from typing import Any

from tvm import DataType, ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import Mutator, mutated
from tvmtile.codegen.metal import UNROLL_NEXT
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import contains, seq
from tvmtile.ir.types import Binary, is_signed_integer
from tvmtile.passes.legalize.narrow_integers import narrow_integers
from tvmtile.passes.legalize.rules import Rule, Scope

_LOWEST_INT = -(2**31)
_SHIFTS = (tirx.LShift, tirx.RShift)


def _constant(number: tirx.FloatImm, _: Scope) -> ir.Expr:
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


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def _is_lowest(number: tirx.IntImm) -> bool:
    return int(number.value) == _LOWEST_INT and str(number.ty.dtype) == "int32"


def _integer(number: tirx.IntImm, _: Scope) -> ir.Expr:
    if _is_lowest(number):
        return tirx.reinterpret("int32", tirx.const(2**31, "uint32"))
    return number


def _wide_extreme(node: Binary, _: Scope) -> ir.Expr:
    if str(node.ty.dtype) != "bfloat16":
        return node
    return tirx.Cast("bfloat16", type(node)(_wide(node.a), _wide(node.b)))


def _wide_select(node: tirx.Select, _: Scope) -> ir.Expr:
    if str(node.ty.dtype) != "bfloat16":
        return node
    wide = tirx.Select(node.condition, _wide(node.true_value), _wide(node.false_value))
    return tirx.Cast("bfloat16", wide)


def _rounded_down(node: tirx.Select, _: Scope) -> ir.Expr:
    """`x if c else x + y` as `x + (0 if c else y)`; of a difference, the same."""
    x, changed = node.true_value, node.false_value
    if not (is_signed_integer(node) and isinstance(changed, tirx.Add | tirx.Sub)):
        return node
    if not structural_equal(changed.a, x):
        return node
    y = tirx.Select(node.condition, tirx.const(0, str(x.ty.dtype)), changed.b)
    return type(changed)(x, y, node.span)


def _in_range(node: tirx.Select, _: Scope) -> ir.Expr:
    """Shifts by a number of which the condition says that it is in range."""

    def masked(shift: Binary, mutator: Mutator) -> ir.Expr:
        shift = mutator.default_mutate(shift)
        if constant(shift.b) is not None:
            return shift
        bits = DataType(str(shift.ty.dtype)).bits
        return type(shift)(shift.a, shift.b & tirx.const(bits - 1, shift.b.ty), shift.span)

    chosen, other = (mutated(s, (_SHIFTS, masked)) for s in (node.true_value, node.false_value))
    return tirx.Select(node.condition, chosen, other, node.span)


def _wide(value: ir.Expr) -> Any:
    return tirx.Cast("float32", value)


def _unrolled(loop: tirx.For, _: Scope) -> tirx.Stmt:
    if loop.kind != tirx.ForKind.UNROLLED:
        return loop
    return seq([tirx.Evaluate(tirx.call_extern("void", UNROLL_NEXT)), loop])


SOURCE = (
    Rule(
        "constants of floats in Metal",
        (tirx.FloatImm,),
        _constant,
        "TVM's generator for Metal",
        "it prints seven digits, where nine tell all float32 values apart, and gives bfloat16 the "
        "suffix of half, which has another range",
    ),
    Rule(
        "the least int32",
        (tirx.IntImm,),
        _integer,
        "TVM's generator for Metal",
        "it prints -2147483648, the negative of a number that is no int",
        lambda func: contains(func.body, tirx.IntImm, _is_lowest),
    ),
    Rule(
        "maxima and minima of bfloat16",
        (tirx.Max, tirx.Min),
        _wide_extreme,
        "Metal",
        "its `max` and `min` take no bfloat",
    ),
    Rule(
        "selections of bfloat16",
        (tirx.Select,),
        _wide_select,
        "Metal",
        "its `select` takes no bfloat",
    ),
    Rule(
        "quotients and remainders that are rounded down",
        (tirx.Select,),
        _rounded_down,
        "TVM's LowerIntrin, and its generator for Metal",
        "one computes `quotient - 1` and `remainder + divisor` behind a condition, the other prints "
        "both sides: without the condition, some have no value in their dtype",
    ),
    Rule(
        "shifts in selections",
        (tirx.Select,),
        _in_range,
        "TVM's simplifier, and its generator for Metal",
        "one leaves remainders out that the condition makes needless, the other prints both sides: "
        "a shift by so many bits has no value",
    ),
    Rule(
        "loops that the compiler of the source unrolls",
        (tirx.For,),
        _unrolled,
        "TVM's generator for Metal",
        "it prints them like any other",
    ),
    *narrow_integers(
        {"int8": "(char)", "uint8": "(uchar)", "int16": "(short)", "uint16": "(ushort)"}
    ),
)
