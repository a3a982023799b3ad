"""WidenTruthValuesOnCpu: truth values are compared as numbers."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.types import COMPARISONS, Binary

_EXTREMA = (tirx.Max, tirx.Min)


@prim_func_pass("WidenTruthValuesOnCpu")
def WidenTruthValuesOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compare booleans, and take the larger of two, as integers of 8 bits.

    TVM's code for LLVM takes a bool, which is neither a signed nor an unsigned integer, for a float.
    """
    return with_body(func, mapped(func.body, ((*COMPARISONS, *_EXTREMA), _widened)))


def _widened(node: Binary) -> ir.Expr:
    dtype = str(node.a.ty.dtype)
    if dtype.partition("x")[0] != "bool":
        return node
    wide = dtype.replace("bool", "int8")
    result: ir.Expr = type(node)(tirx.Cast(wide, node.a), tirx.Cast(wide, node.b))
    return tirx.Cast(dtype, result) if isinstance(node, _EXTREMA) else result
