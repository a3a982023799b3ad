"""Hide integer negations from a defect of ptxas.

ptxas of CUDA 12.8 to 13.3 makes one instruction, VIMNMX3, of `min(min(a, -b), c)` on the architectures
that have it (sm_90 and sm_100), and leaves the sign of `b` out; so it does for `max`. CUDA 13.4 is
right. The values may come from registers that were written long before, so every negation of a kernel
that takes such extremes is written as `~b + 1`, which ptxas does not recognise.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.cuda import value
from tvmtile.codegen.device import device_pass
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import contains

_AFFECTED = ("int8", "int16", "int32")


@device_pass("KeepNegations")
def KeepNegations(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Hide negations of signed integers from ptxas in kernels that take their minima or maxima."""
    if kind != "cuda" or not contains(func.body, (tirx.Min, tirx.Max), _is_affected):
        return func
    return with_body(func, mapped(func.body, (tirx.Sub, _negation), (tirx.Mul, _opposite)))


def _is_affected(node: ir.Expr) -> bool:
    return str(node.ty.dtype) in _AFFECTED


def _negation(node: tirx.Sub) -> ir.Expr:
    return _hidden(node.b) if _is_affected(node) and constant(node.a) == 0 else node


def _opposite(node: tirx.Mul) -> ir.Expr:
    return _hidden(node.a) if _is_affected(node) and constant(node.b) == -1 else node


def _hidden(operand: ir.Expr) -> Any:
    dtype = str(operand.ty.dtype)
    negated = value("int32", "tvmtile_negate", tirx.Cast("int32", operand))
    return negated if dtype == "int32" else tirx.Cast(dtype, negated)
