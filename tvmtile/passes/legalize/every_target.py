"""What TVM's passes get wrong on every target."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import DataType, ir, tirx

from tvmtile._tvm import is_buffer_var, nodes_in
from tvmtile.analysis.aliases import MAY_SHARE
from tvmtile.ir.annotations import MAY_ALIAS
from tvmtile.ir.calls import op_name
from tvmtile.ir.index_width import is_large, widened
from tvmtile.ir.operands import constant, integer_range
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scopes import is_global
from tvmtile.ir.types import COMPARISONS, Binary
from tvmtile.passes.legalize.rules import Rule, Scope, may_wrap

_REINTERPRET = "tirx.reinterpret"


def _opaque_comparison(comparison: Binary, _: Scope) -> ir.Expr:
    """A comparison of floats as an integer that is compared with 0, which costs nothing.

    `a != b` is the opposite of `a == b`: TVM's code for LLVM has it false where an operand is NaN.
    """
    if "float" not in str(comparison.a.ty.dtype):
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


def _is_nan(value: ir.Expr) -> ir.Expr:
    narrow = str(value.ty.dtype) not in ("float16", "float32", "float64")
    return tirx.isnan(tirx.Cast("float32", value) if narrow else value)


def _plain_comparison(test: Binary, _: Scope) -> ir.Expr:
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


def _opaque_addends(comparison: Binary, _: Scope) -> ir.Expr:
    """A comparison of unsigned integers; a constant that is added to one is given by its bits."""
    if not str(comparison.a.ty.dtype).startswith("uint"):
        return comparison
    a, b = (_with_opaque_addend(value) for value in (comparison.a, comparison.b))
    return type(comparison)(a, b, comparison.span)


def _with_opaque_addend(value: ir.Expr) -> ir.Expr:
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.IntImm):
        return value
    dtype = str(value.ty.dtype)
    bits = tirx.reinterpret(dtype.removeprefix("u"), value.b)
    return value.a + tirx.reinterpret(dtype, bits)


def _plain_constant(call: ir.Call, _: Scope) -> ir.Expr:
    """The constant whose bits are taken as those of a signed integer and back."""
    bits = call.args[0] if op_name(call) == _REINTERPRET else None
    if not isinstance(bits, ir.Call) or op_name(bits) != _REINTERPRET:
        return call
    value: ir.Expr = bits.args[0]
    is_same = isinstance(value, tirx.IntImm) and value.ty.dtype == call.ty.dtype
    return value if is_same else call


def _sum_with_negative(difference: tirx.Sub, _: Scope) -> ir.Expr:
    """A difference of floats, from which an operand would vanish, as a sum with a product by -1.

    In machine code that is one subtraction.
    """
    a, b, dtype = difference.a, difference.b, str(difference.a.ty.dtype)
    if "float" not in dtype or not (_is_term(a, b) or _is_term(b, a)):
        return difference
    return a + tirx.Mul(b, tirx.const(-1, dtype))


def _is_term(term: ir.Expr, value: ir.Expr) -> bool:
    """Tell whether a value is a term, or a sum with it."""
    operands = [value, *((value.a, value.b) if isinstance(value, tirx.Add) else ())]
    return any(tvm_ffi.structural_equal(operand, term) for operand in operands)


def _opaque_truncation(cast: tirx.Cast, scope: Scope) -> ir.Expr:
    """A conversion of integers that may wrap around, in an exclusive `or` with zero, which is free.

    Of its bits the analyzer knows nothing. Indices are brought into the range of a narrow integer by
    arithmetic, as they may become constants: those of an unrolled loop's iterations do. What is read
    from memory never does.
    """
    if not may_wrap(cast):
        return cast
    source, target = (DataType(str(value.ty.dtype)) for value in (cast.value, cast))
    low, high = integer_range(str(target.with_lanes(1)))
    if target.bits < 32 <= source.bits and not contains(cast.value, (ir.TensorLoad, ir.Call)):
        return _in_range(cast, low, high)
    # The analyzer's range is right where all values fit, and where all that the dtype has may come.
    least, greatest = scope.bounds(cast.value)
    if (low <= least and greatest <= high) or (least <= low and high <= greatest):
        return cast
    return tirx.bitwise_xor(cast, tirx.const(0, str(cast.ty.dtype)), cast.span)


def _in_range(cast: tirx.Cast, low: int, high: int) -> ir.Expr:
    """A conversion of a value that fits."""

    def number(value: int) -> Any:
        return tirx.const(value, str(cast.value.ty.dtype))

    value = tirx.bitwise_and(cast.value, number(high - low))
    if low:
        value = tirx.bitwise_xor(value, number(-low)) - number(-low)
    return tirx.Cast(str(cast.ty.dtype), value, cast.span)


def _has_truncations(func: tirx.PrimFunc) -> bool:
    return contains(func.body, tirx.Cast, may_wrap)


def _plain_pointer(call: ir.Call, _: Scope) -> ir.Expr:
    return call.args[-1] if op_name(call) == MAY_SHARE else call


_MOST = 31


def _is_large_tensor(buffer: Any) -> bool:
    return is_buffer_var(buffer) and is_global(buffer) and is_large(buffer)


def _has_large_tensors(func: tirx.PrimFunc) -> bool:
    others = nodes_in(func.body, (tirx.AllocBuffer, tirx.DeclBuffer))
    return any(map(_is_large_tensor, (*func.params, *(each.buffer for each in others))))


def _wide_load(load: ir.TensorLoad, _: Scope) -> ir.Expr:
    if not _is_large_tensor(load.source):
        return load
    return tirx.BufferLoad(load.source, [widened(index) for index in load.indices], load.span)


def _wide_store(store: tirx.BufferStore, _: Scope) -> tirx.Stmt:
    if not _is_large_tensor(store.buffer):
        return store
    indices = [widened(index) for index in store.indices]
    return tirx.BufferStore(store.buffer, store.value, indices, span=store.span)


def _limited_shift(shift: ir.prim.RShift, scope: Scope) -> ir.Expr:
    """A shift by at most 31 of a number that fits in 32 bits: all the others are its sign."""
    if not _is_wide(shift):
        return shift
    least, greatest = scope.bounds(shift.a)
    if not -(2**_MOST) <= least <= greatest < 2**_MOST:
        return shift
    amount = tirx.min(shift.b, tirx.const(_MOST, str(shift.b.ty.dtype)))
    return ir.prim.RShift(shift.a, scope.analyzer.simplify(amount), shift.span)


def _is_wide(shift: ir.prim.RShift) -> bool:
    return str(shift.ty.dtype).startswith("int64")


EXPRESSIONS = (
    Rule(
        "comparisons of floats",
        COMPARISONS,
        _opaque_comparison,
        "TVM's simplifier",
        "it makes `a <= b` of `not a > b`, and false of `a != a`: not so where an operand is NaN",
    ),
    Rule(
        "comparisons of unsigned sums",
        COMPARISONS,
        _opaque_addends,
        "TVM's simplifier",
        "it makes `0 - 5 < 0` of `x < x + 5`, and fails at that; the sum wraps around",
    ),
    Rule(
        "differences of floats",
        (tirx.Sub,),
        _sum_with_negative,
        "TVM's simplifier",
        "`x - x` becomes zero, which of NaN and infinity it is not, and `(x + y) - x` becomes y, "
        "without what the sum has lost by rounding, which compensated sums ask for",
    ),
    Rule(
        "conversions of integers that wrap around",
        (tirx.Cast,),
        _opaque_truncation,
        "TVM's analyzer, and its folding of constants",
        "it takes an int32 that becomes a uint32 not to be negative: `x < 0` is false, and a sum in "
        "64 bits fits 32; and it fails on a constant that does not fit",
        _has_truncations,
    ),
)

OPERATIONS = (
    Rule(
        "pointers of tensors that may share memory",
        (ir.Call,),
        _plain_pointer,
        "TVM's generators",
        "they know no mark that is for the analysis of aliases only",
        lambda func: func.attrs is not None and MAY_ALIAS in func.attrs,
    ),
)

_FLATTENING = "TVM's FlattenBuffer"
_NUMBERING = (
    "it numbers elements in the dtype of their indices: along each axis they fit, and in a tensor of "
    "more than 2^31 elements, or of dynamic extents, the sum may not"
)

INDICES = (
    Rule(
        "loads from large tensors",
        (ir.TensorLoad,),
        _wide_load,
        _FLATTENING,
        _NUMBERING,
        _has_large_tensors,
    ),
    Rule(
        "stores into large tensors",
        (tirx.BufferStore,),
        _wide_store,
        _FLATTENING,
        _NUMBERING,
        _has_large_tensors,
    ),
    Rule(
        "shifts of 64 bits by more than 31",
        (ir.prim.RShift,),
        _limited_shift,
        "TVM's NarrowDataType",
        "it computes in 32 bits what fits in them, and does not look at the amount, which is undefined "
        "there, and an error where it is a constant",
        lambda func: contains(func.body, ir.prim.RShift, _is_wide),
    ),
)

SOURCE = (
    Rule(
        "comparisons behind a conversion",
        (tirx.EQ, tirx.NE, tirx.LT),
        _plain_comparison,
        "readers of a kernel's source",
        "the conversion that hides a comparison of floats says nothing any more",
    ),
    Rule(
        "constants by their bits",
        (ir.Call,),
        _plain_constant,
        "readers of a kernel's source",
        "so do the bits of an unsigned constant",
    ),
)
