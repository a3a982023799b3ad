"""ShortCircuitOnCpu: `and` and `or` evaluate their right side only if need be."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains


@prim_func_pass("ShortCircuitOnCpu")
def ShortCircuitOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make branches of `and` and `or` whose right side loads an element.

    TVM's generator for LLVM computes both sides. The left one may be what keeps the index of the right
    one inside, as in Python, CUDA and Metal.
    """

    def visit(node: Any, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(node)
        if int(result.ty.dtype.lanes) > 1 or not contains(result.b, ir.TensorLoad):
            return result
        if isinstance(result, tirx.And):
            return tirx.if_then_else(result.a, result.b, tirx.const(False, "bool"))
        return tirx.if_then_else(result.a, tirx.const(True, "bool"), result.b)

    return with_body(func, mutated(func.body, ((tirx.And, tirx.Or), visit)))
