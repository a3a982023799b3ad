"""LowerExtremaOnCpu: the larger or the smaller of two floats is a number, if one of them is."""

from __future__ import annotations

import math

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.types import Binary

_INTRINSICS = {tirx.Max: "llvm.maxnum", tirx.Min: "llvm.minnum"}


@prim_func_pass("LowerExtremaOnCpu")
def LowerExtremaOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute `T.max` and `T.min` of floats as IEEE's maxNum and minNum, as GPUs do.

    TVM's code for LLVM gives the second operand where either is NaN. That is right if the second one
    is a constant. Narrower floats are compared as float32.
    """
    return with_body(func, mapped(func.body, (tuple(_INTRINSICS), _lower)))


def _lower(node: Binary) -> ir.Expr:
    dtype = str(node.ty.dtype)
    if "float" not in dtype or _is_number(node.b):
        return node
    if _is_number(node.a):
        return type(node)(node.b, node.a)
    kind, _, lanes = dtype.partition("x")
    bits = "64" if kind == "float64" else "32"
    wide = dtype if kind == "float64" else f"float32x{lanes}" if lanes else "float32"
    operands = [x if wide == dtype else tirx.Cast(wide, x) for x in (node.a, node.b)]
    name = f"{_INTRINSICS[type(node)]}.{f'v{lanes}' if lanes else ''}f{bits}"
    result: ir.Expr = tirx.call_llvm_pure_intrin(wide, name, *operands)
    return result if wide == dtype else tirx.Cast(dtype, result)


def _is_number(value: ir.Expr) -> bool:
    if isinstance(value, tirx.Cast | tirx.Broadcast):
        return _is_number(value.value)
    return isinstance(value, tirx.IntImm) or (
        isinstance(value, tirx.FloatImm) and not math.isnan(value.value)
    )
