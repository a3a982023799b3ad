"""GuardDivisionsOnCpu: no division of integers ends the process."""

from __future__ import annotations

from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import Replacement
from tvmtile.codegen.llvm_integers import divisor_function
from tvmtile.ir.divisions import DIVISIONS, divides_integers
from tvmtile.ir.kernels import importing_llvm, with_body
from tvmtile.ir.operands import integer_range
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.types import Binary

_MINUS_INFINITY = 1 - 2**63  # to TVM's analyzer


@prim_func_pass("GuardDivisionsOnCpu")
def GuardDivisionsOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Divide by 1 where an integer would be divided by a zero of run time, or the least one by -1.

    A processor stops the process there, where GPUs go on with some number. So `x // 0` is x, `x % 0`
    is 0, and `least // -1`, which has no value in its dtype, wraps around to the least integer.
    """
    if not contains(func.body, DIVISIONS, divides_integers):
        return func
    guard = _Guard()
    body = guard.rewrite(func.body)
    return with_body(func, importing_llvm(body, guard.texts))


class _Guard(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def others(self) -> list[Replacement]:
        return [(DIVISIONS, self._guarded)]

    def _guarded(self, node: Binary) -> ir.Expr:
        division = self.descend(node)
        if not divides_integers(division):
            return division
        return type(division)(division.a, self._divisor(division.a, division.b), division.span)

    def _divisor(self, a: Any, b: Any) -> ir.Expr:
        """`b`, or 1 where it is 0, or where it is -1 and `a` the least integer."""
        dtype = str(b.ty.dtype)
        low, _ = integer_range(str(DataType(dtype).with_lanes(1)))
        least_divisor, least = (int(self.analyzer.const_int_bound(v).min_value) for v in (b, a))
        if low == 0 or least_divisor >= 0:
            return b if least_divisor > 0 else tirx.max(b, tirx.const(1, dtype))
        name, text = divisor_function(dtype)
        self.texts.append(text)
        may_be_least = least <= max(low, _MINUS_INFINITY)
        return tirx.call_pure_extern(dtype, name, a if may_be_least else tirx.const(0, dtype), b)
