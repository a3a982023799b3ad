"""KeepComparisons, ShowComparisons: comparisons and differences of floats mean what is written."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.device import device_pass
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.types import COMPARISONS, Binary


@prim_func_pass("KeepComparisons")
def KeepComparisons(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Hide comparisons of floats from TVM's simplifier, to which they are ordered, and exact.

    It makes `a <= b` of `not a > b`, false of `a != a`, and takes the second branch of `if a > b`,
    `elif a <= b`, `else` for sure: none of them is so where an operand is NaN. It does not look into
    the conversion of a comparison, which costs nothing in machine code; `ShowComparisons` removes it
    from what people read. `a != b` is written as the opposite of `a == b`: TVM's code for LLVM has it
    false where an operand is NaN.

    Of `x - x` the simplifier makes zero, which NaN and infinity do not give, and of `(x + y) - x` it
    makes `y`: what a sum has lost by rounding, which compensated sums compute so, would be nothing. It
    does not do so with a product by -1, which is one subtraction in machine code.

    Of `x < x + 5` of unsigned integers it would make `0 - 5 < 0`, and fails at that; the sum wraps. It
    does not look into the bits of a constant.
    """
    return with_body(func, mapped(func.body, (COMPARISONS, _kept), (tirx.Sub, _uncancelled)))


def _kept(comparison: Binary) -> ir.Expr:
    dtype = str(comparison.a.ty.dtype)
    if dtype.startswith("uint"):
        return type(comparison)(_wrapping(comparison.a), _wrapping(comparison.b), comparison.span)
    if "float" not in dtype:
        return comparison
    if isinstance(comparison, tirx.EQ | tirx.NE) and tvm_ffi.structural_equal(
        comparison.a, comparison.b
    ):
        is_nan = _is_nan(comparison.a)
        return is_nan if isinstance(comparison, tirx.NE) else tirx.Not(is_nan)
    zero = tirx.const(0, "int32")
    if isinstance(comparison, tirx.NE):
        return tirx.EQ(tirx.Cast("int32", tirx.EQ(comparison.a, comparison.b)), zero)
    return tirx.NE(tirx.Cast("int32", comparison), zero)


def _wrapping(value: ir.Expr) -> ir.Expr:
    """An unsigned integer; one to which a constant is added, with the constant's bits."""
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.IntImm):
        return value
    dtype = str(value.ty.dtype)
    bits = tirx.reinterpret(dtype.removeprefix("u"), value.b)
    return value.a + tirx.reinterpret(dtype, bits)


def _is_nan(value: ir.Expr) -> ir.Expr:
    narrow = str(value.ty.dtype) not in ("float16", "float32", "float64")
    return tirx.isnan(tirx.Cast("float32", value) if narrow else value)


def _uncancelled(difference: tirx.Sub) -> ir.Expr:
    """A difference of floats, from which an operand would vanish, as a sum."""
    a, b, dtype = difference.a, difference.b, str(difference.a.ty.dtype)
    if "float" not in dtype or not (_holds(a, b) or _holds(b, a)):
        return difference
    return a + tirx.Mul(b, tirx.const(-1, dtype))


def _holds(value: ir.Expr, term: ir.Expr) -> bool:
    """Tell whether a value is a term, or a sum with it."""
    operands = [value, *((value.a, value.b) if isinstance(value, tirx.Add) else ())]
    return any(tvm_ffi.structural_equal(operand, term) for operand in operands)


@device_pass("ShowComparisons")
def ShowComparisons(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Undo `KeepComparisons`, when nothing simplifies any more."""
    del kind
    tests = (tirx.EQ, tirx.NE, tirx.LT)
    return with_body(func, mapped(func.body, (tests, _shown), (ir.Call, _shown_constant)))


def _shown_constant(call: ir.Call) -> ir.Expr:
    """The constant whose bits are taken as those of a signed integer and back."""
    bits = call.args[0] if op_name(call) == _REINTERPRET else None
    if not isinstance(bits, ir.Call) or op_name(bits) != _REINTERPRET:
        return call
    value: ir.Expr = bits.args[0]
    is_same = isinstance(value, tirx.IntImm) and value.ty.dtype == call.ty.dtype
    return value if is_same else call


_REINTERPRET = "tirx.reinterpret"


def _shown(test: Binary) -> ir.Expr:
    """The comparison whose conversion to an integer is tested; TVM makes `0 < x` of `x != 0`."""
    zero, converted = (test.a, test.b) if isinstance(test, tirx.LT) else (test.b, test.a)
    if not isinstance(converted, tirx.Cast) or constant(zero) != 0:
        return test
    comparison = converted.value
    if not isinstance(comparison, COMPARISONS):
        return test
    if not isinstance(test, tirx.EQ):
        return comparison
    if isinstance(comparison, tirx.EQ):
        return tirx.NE(comparison.a, comparison.b)
    return tirx.Not(comparison)
