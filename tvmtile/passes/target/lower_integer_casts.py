"""LowerIntegerCastsOnCuda: small integers become 16-bit floats by their bits."""

from __future__ import annotations

from tvm import DataType, ir, tirx

from tvmtile._tvm import Replacement
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.operands import integer_range
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, reads_no_memory
from tvmtile.ir.scoped_rewriter import ScopedRewriter

_MANTISSA_BITS = {"float16": 10, "bfloat16": 7}
_EXPONENT_OF_ONE = {"float16": 15, "bfloat16": 127}


@prim_func_pass("LowerIntegerCastsOnCuda")
def LowerIntegerCastsOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make 16-bit floats of integers of a known small range without an instruction that converts.

    A GPU converts integers to 16-bit floats at an eighth of the rate of its arithmetic (CUDA C++
    Programming Guide, "Throughput of Native Arithmetic Instructions"), which is what dequantisation
    would wait for. A float between 2**m and 2**(m + 1), where m is the number of bits of its
    mantissa, holds an integer in these bits: the integer is put there, and what is too much is
    subtracted. Both are exact.
    """
    return with_kernels(func, lambda kernel: _Converter().rewrite(kernel))


class _Converter(ScopedRewriter):
    def others(self) -> list[Replacement]:
        return [(tirx.Cast, self.visit_cast)]

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        # What is read from memory may change, but the value of a name does not leave its range.
        if _is_scalar_integer(bind.value) and not reads_no_memory(bind.value):
            least, greatest = self._bounds(bind.value)
            extent = greatest - least + 1
            if extent <= _SMALL:
                low, size = (tirx.const(n, "int64") for n in (least, extent))
                values = ir.Range.from_min_extent(low, size)
                self.analyzer.bind(bind.var, values, allow_override=True)
        return super().visit_bind(bind)

    def visit_cast(self, cast: tirx.Cast) -> ir.Expr:
        value = self.mutate(cast.value)
        dtype = str(cast.ty.dtype)
        if dtype not in _MANTISSA_BITS or not _is_scalar_integer(cast.value):
            return tirx.Cast(dtype, value)
        bits = _MANTISSA_BITS[dtype]
        least, greatest = self._bounds(cast.value)
        lowest = min(0, least)
        if greatest - lowest >= 1 << bits or lowest < -(1 << bits):
            return tirx.Cast(dtype, value)
        offset = value
        if lowest:
            offset = self.analyzer.simplify(tirx.Cast("int32", value) - lowest)
        one = (_EXPONENT_OF_ONE[dtype] + bits) << bits
        held = tirx.Cast("uint16", offset) | tirx.const(one, "uint16")
        return tirx.reinterpret(dtype, held) - tirx.const(float((1 << bits) - lowest), dtype)

    def _bounds(self, value: ir.Expr) -> tuple[int, int]:
        """The least and greatest value; to TVM's analyzer no conversion wraps around."""
        if contains(value, tirx.Cast, self._wraps):
            return integer_range(str(value.ty.dtype))
        bound = self.analyzer.const_int_bound(value)
        return bound.min_value, bound.max_value

    def _wraps(self, cast: tirx.Cast) -> bool:
        if not _is_scalar_integer(cast) or not _is_scalar_integer(cast.value):
            return False
        bound = self.analyzer.const_int_bound(cast.value)
        least, greatest = integer_range(str(cast.ty.dtype))
        return bound.min_value < least or bound.max_value > greatest


_SMALL = 1 << max(_MANTISSA_BITS.values())


def _is_scalar_integer(value: ir.Expr) -> bool:
    if not ir.is_prim_expr(value):  # an address
        return False
    dtype = DataType(str(value.ty.dtype))
    return str(dtype).startswith(("int", "uint")) and dtype.lanes == 1
