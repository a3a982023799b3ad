"""LimitShifts: numbers of 64 bits that fit in 32 are shifted by 31 at most."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import Replacement
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scoped_rewriter import ScopedRewriter

_MOST = 31


@prim_func_pass("LimitShifts")
def LimitShifts(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Shift to the right by 31 where more would leave the same, all bits being the sign.

    TVM's NarrowDataType computes in 32 bits what fits them, and does not ask whether the amount is less
    than 32: what 40 leaves of 32 bits is not defined, and a constant of 40 an error.
    """
    if not contains(func.body, ir.prim.RShift, _is_wide):
        return func
    return with_body(func, _Limit().rewrite(func.body))


class _Limit(ScopedRewriter):
    def others(self) -> list[Replacement]:
        return [(ir.prim.RShift, self._limited)]

    def _limited(self, node: ir.prim.RShift) -> ir.Expr:
        shift = self.descend(node)
        if not _is_wide(shift):
            return shift
        bound = self.analyzer.const_int_bound(shift.a)
        if not -(2**_MOST) <= int(bound.min_value) <= int(bound.max_value) < 2**_MOST:
            return shift
        amount = tirx.min(shift.b, tirx.const(_MOST, str(shift.b.ty.dtype)))
        return ir.prim.RShift(shift.a, self.analyzer.simplify(amount), shift.span)


def _is_wide(shift: ir.prim.RShift) -> bool:
    return str(shift.ty.dtype).startswith("int64")
