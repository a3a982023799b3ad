"""KeepTruncations: conversions of integers to others take their lowest bits."""

from __future__ import annotations

from typing import Any

from tvm import DataType, DataTypeCode, ir, tirx

from tvmtile._tvm import Replacement
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import integer_range
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scoped_rewriter import ScopedRewriter

_INFINITE = 2**63 - 1  # to TVM's analyzer


@prim_func_pass("KeepTruncations")
def KeepTruncations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write conversions between integers, where a value may wrap around, so that TVM knows it.

    To TVM's analyzer a conversion does not: of an int32 that becomes a uint32 it takes what is not
    negative, and of a uint8 that becomes an int8 what is less than 128. `x < 0` is false then, a
    division rounds down, and a sum in 64 bits fits 32. Of what bits are made of by an exclusive `or` it
    knows nothing, and one with zero costs nothing in machine code. Indices are brought into the range
    of a narrow integer by arithmetic, since TVM fails on the conversion of a constant that does not
    fit, as an iteration of an unrolled loop has one. What is read from memory is never a constant.
    """
    if not contains(func.body, tirx.Cast, _may_wrap):
        return func
    return with_body(func, _Keep().rewrite(func.body))


class _Keep(ScopedRewriter):
    def others(self) -> list[Replacement]:
        return [(tirx.Cast, self._kept)]

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        result = self.descend_bind(bind)
        if _integer(result.value) is not None:
            # What is read from memory is not told; the range of what is computed from it may be known.
            bound = self.analyzer.const_int_bound(result.value)
            self.analyzer.update(result.var, bound, override=True)
        return result

    def _kept(self, node: tirx.Cast) -> ir.Expr:
        cast = self.descend(node)
        source, target = _integer(cast.value), _integer(cast)
        if source is None or target is None or not _may_wrap(cast):
            return cast
        low, high = _range(target)
        if target.bits < 32 <= source.bits and not contains(cast.value, (ir.TensorLoad, ir.Call)):
            return _in_range(cast, low, high)
        # TVM's range is right where all values fit, and where all that the target has may come.
        least, most = self._bounds(cast.value, source)
        if (low <= least and most <= high) or (least <= low and high <= most):
            return cast
        return tirx.bitwise_xor(cast, tirx.const(0, str(cast.ty.dtype)), cast.span)

    def _bounds(self, value: ir.Expr, dtype: DataType) -> tuple[int, int]:
        bound = self.analyzer.const_int_bound(value)
        least, most = int(bound.min_value), int(bound.max_value)
        low, high = _range(dtype)
        return low if least == -_INFINITE else least, high if most == _INFINITE else most


def _in_range(cast: tirx.Cast, low: int, high: int) -> ir.Expr:
    """A conversion of a value that fits."""

    def number(value: int) -> Any:
        return tirx.const(value, str(cast.value.ty.dtype))

    value = tirx.bitwise_and(cast.value, number(high - low))
    if low:
        value = tirx.bitwise_xor(value, number(-low)) - number(-low)
    return tirx.Cast(str(cast.ty.dtype), value, cast.span)


def _may_wrap(cast: tirx.Cast) -> bool:
    """Tell whether a conversion between integers does not keep all values of the first dtype."""
    source, target = _integer(cast.value), _integer(cast)
    if source is None or target is None:
        return False
    (least, most), (low, high) = _range(source), _range(target)
    return least < low or most > high


def _integer(value: ir.Expr) -> DataType | None:
    """The dtype of an integer of at least 8 bits; None of anything else."""
    if not ir.is_prim_expr(value):
        return None
    dtype = DataType(str(value.ty.dtype))
    return dtype if dtype.type_code in _KINDS and dtype.bits >= 8 else None


_KINDS = (DataTypeCode.INT, DataTypeCode.UINT)


def _range(dtype: DataType) -> tuple[int, int]:
    """The least and the largest of an integer, or of a lane."""
    return integer_range(str(dtype.with_lanes(1)))
