"""GuardDivisionsOnCpu: no division of integers ends the process."""

from __future__ import annotations

from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import Replacement
from tvmtile.ir.divisions import DIVISIONS, divides_integers
from tvmtile.ir.kernels import with_body
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
    return with_body(func, _Guard().rewrite(func.body))


class _Guard(ScopedRewriter):
    def others(self) -> list[Replacement]:
        return [(DIVISIONS, self._guarded)]

    def _guarded(self, node: Binary) -> ir.Expr:
        division = self.descend(node)
        if not divides_integers(division):
            return division
        a, b = division.a, division.b
        dtype = str(b.ty.dtype)
        bad = self._without_a_value(a, b, dtype)
        if not bad:
            return division
        divisor = tirx.Select(tirx.any(*bad), tirx.const(1, dtype), b)
        return type(division)(a, divisor, division.span)

    def _without_a_value(self, a: Any, b: Any, dtype: str) -> list[ir.Expr]:
        """The conditions under which a quotient has none."""
        low, _ = integer_range(str(DataType(dtype).with_lanes(1)))
        bound, of_dividend = map(self.analyzer.const_int_bound, (b, a))
        is_positive = int(bound.min_value) > 0
        conditions: list[ir.Expr] = [] if is_positive else [tirx.EQ(b, tirx.const(0, dtype))]
        may_be_least = int(of_dividend.min_value) <= max(low, _MINUS_INFINITY)
        if low < 0 and int(bound.min_value) < 0 and may_be_least:
            # TVM's simplifier takes `a == low` for false: it does not look into bits.
            differs = tirx.bitwise_xor(a, tirx.const(low, dtype))
            is_least = tirx.EQ(differs, tirx.const(0, dtype))
            conditions.append(tirx.And(tirx.EQ(b, tirx.const(-1, dtype)), is_least))
        return conditions
