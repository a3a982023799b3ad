"""Rules for every target: expressions that TVM's passes get wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import DataType, ir, tirx

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.analysis.aliases import MAY_SHARE
from tvmtile.ir.annotations import MAY_ALIAS
from tvmtile.ir.calls import op_name
from tvmtile.ir.operands import constant, integer_range, literal, may_wrap
from tvmtile.ir.rewriting import contains
from tvmtile.ir.types import COMPARISONS, Binary, is_integer
from tvmtile.passes.legalize.rules import INFINITE, Rule, Scope


def _opaque_comparison(comparison: Binary, _: Scope) -> ir.Expr:
    """A comparison of floats as an integer that is compared with 0, which costs nothing.

    `a != b` is the opposite of `a == b`: TVM's code for LLVM has it false where an operand is NaN.
    """
    dtype = DataType(str(comparison.a.ty.dtype))
    if "float" not in str(dtype):
        return comparison
    a, b = comparison.a, comparison.b
    b = _unknown(b) if _may_become_equal(a, b) else b
    integer = str(DataType("int32").with_lanes(dtype.lanes))
    zero = tirx.const(0, integer)
    if isinstance(comparison, tirx.NE):
        return tirx.EQ(tirx.Cast(integer, tirx.EQ(a, b)), zero)
    return tirx.NE(tirx.Cast(integer, type(comparison)(a, b, comparison.span)), zero)


def _may_become_equal(a: ir.Expr, b: ir.Expr) -> bool:
    """Tell whether two floats may become the same expression.

    Indices and names get values later, and conversions of narrow floats go by way of other dtypes.
    """
    while isinstance(a, tirx.Cast):
        a = a.value
    while isinstance(b, tirx.Cast):
        b = b.value
    if isinstance(a, ir.TensorLoad) and isinstance(b, ir.TensorLoad):
        return bool(buffer_of(a).same_as(buffer_of(b)))
    return type(a) is type(b) and not isinstance(a, tirx.FloatImm)


def _unfolded_difference(difference: tirx.Sub, _: Scope) -> ir.Expr:
    """A difference of floats; the second one is unknown if an operand may vanish from it.

    What vanishes as it stands is a sum with a product by -1, one subtraction in machine code: g++ has 0
    of `half(i) - half(i)` in emulated kernels, where an integer becomes infinity.
    """
    a, b, dtype = difference.a, difference.b, str(difference.a.ty.dtype)
    terms = list(itertools.product(_terms(a), _terms(b)))
    if "float" not in dtype or not any(_may_become_equal(x, y) for x, y in terms):
        return difference
    if any(tvm_ffi.structural_equal(x, y) for x, y in terms):
        return a + tirx.Mul(b, tirx.const(-1, dtype))
    return tirx.Sub(a, _unknown(b), difference.span)


def _terms(value: ir.Expr) -> tuple[ir.Expr, ...]:
    return (value, value.a, value.b) if isinstance(value, tirx.Add) else (value,)


def _unknown(value: ir.Expr) -> ir.Expr:
    """A value by way of its bits, which is free: TVM does not compute with them."""
    dtype = DataType(str(value.ty.dtype))
    bits = tirx.reinterpret(str(DataType(f"uint{dtype.bits}").with_lanes(dtype.lanes)), value)
    return tirx.reinterpret(str(dtype), bits)


def _unknown_float(cast: tirx.Cast, _: Scope) -> ir.Expr:
    """A conversion of a float to an integer, of whose range nothing is known."""
    if not _cuts(cast) or not contains(cast.value, (tirx.Cast, tirx.Div, tirx.Mod)):
        return cast
    return tirx.Cast(str(cast.ty.dtype), _unknown(cast.value), cast.span)


_DIGITS = {"float32": 24, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}
"""The binary digits of floats; narrower ones have at least one."""


def _unfolded_conversion(cast: tirx.Cast, scope: Scope) -> ir.Expr:
    """A conversion of what may be a constant, to or from a float that may not hold it exactly.

    Of a float to an integer, whose dtype may not hold it: then it is any number, as at run time.
    An integer goes by float32, which has all that floats of 16 and 8 bits tell apart: to TVM the bits
    of an integer that is 0 are a null pointer.
    """
    rounded = cast.value if isinstance(cast.value, tirx.FloatImm) else cast
    is_number = DataType(str(cast.value.ty.dtype)).bits >= 8
    if not is_number or not (_cuts(cast) or _rounds(cast) or _rounds(rounded)):
        return cast
    if not scope.may_be_constant(cast.value):
        return cast
    most = 2 ** min(_digits(value) for value in (cast, rounded))
    dtype, value = DataType(str(cast.ty.dtype)), cast.value
    if is_integer(value):
        least, greatest = scope.bounds(value)
        is_exact = -most <= least <= greatest <= most
        value = tirx.Cast(str(DataType("float32").with_lanes(dtype.lanes)), value)
    else:
        number = float(value.value) if isinstance(value, tirx.FloatImm) else math.inf
        is_exact = number.is_integer() and abs(number) <= most
        if _cuts(cast):
            low, high = integer_range(str(dtype.with_lanes(1)))
            is_exact = is_exact and low <= number <= high
    if is_exact:
        return cast
    return (
        _unknown(value)
        if value.ty == cast.ty
        else tirx.Cast(str(dtype), _unknown(value), cast.span)
    )


def _cuts(cast: tirx.Cast) -> bool:
    """Tell whether a float becomes an integer."""
    return "float" in str(cast.value.ty.dtype) and is_integer(cast)


def _rounds(value: ir.Expr) -> bool:
    return _digits(value) < 53


def _digits(value: ir.Expr) -> int:
    """The binary digits of a float; 53 of what holds as much as a number of TVM's."""
    dtype = str(DataType(str(value.ty.dtype)).with_lanes(1))
    return _DIGITS.get(dtype, 1) if "float" in dtype and dtype != "float64" else 53


def _converts_floats(func: tirx.PrimFunc) -> bool:
    return contains(
        func.body, tirx.Cast, lambda cast: _cuts(cast) or _rounds(cast) or _rounds(cast.value)
    )


_ZERO_FOLDED = (tirx.Add, tirx.Mul, tirx.Div)


def _unfolded_zeros(node: Binary, scope: Scope) -> ir.Expr:
    """A sum, product or quotient of floats; operands that may become zero are unknown."""
    if not _has_floats(node):
        return node
    return _with_operands(node, lambda x: _unknown(x) if _may_become_zero(x, scope) else x)


def _with_operands(node: Binary, rewrite: Callable[[ir.Expr], ir.Expr]) -> Binary:
    a, b = rewrite(node.a), rewrite(node.b)
    is_same = a.same_as(node.a) and b.same_as(node.b)
    return node if is_same else type(node)(a, b, node.span)


def _may_become_zero(value: ir.Expr, scope: Scope) -> bool:
    if isinstance(value, tirx.FloatImm):
        return float(value.value) == 0
    is_unknown = contains(value, ir.Call, lambda call: op_name(call) == "tirx.reinterpret")
    return not is_unknown and scope.may_be_constant(value)


def _has_floats(node: Any) -> bool:
    return "float" in str(node.ty.dtype)


_SUMS = (tirx.Add, tirx.Sub, tirx.Mul)
_ORDERS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _xor_zero(value: ir.Expr) -> ir.Expr:
    """An exclusive `or` with zero, which is free: of its bits the analyzer knows nothing."""
    return tirx.BitwiseXor(value, tirx.const(0, str(value.ty.dtype)), value.span)


def _opaque_constant(number: tirx.IntImm, _: Scope) -> ir.Expr:
    return _xor_zero(number) if int(number.value) >= INFINITE else number


def _opaque_least(comparison: Binary, _: Scope) -> ir.Expr:
    """A comparison with the least int32, which is opaque."""
    return _with_operands(comparison, lambda x: _xor_zero(x) if _is_least(x) else x)


def _is_least(value: ir.Expr) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return literal(value) == -(2**31) and str(value.ty.dtype) == "int32"


def _opaque_truncation(cast: tirx.Cast, scope: Scope) -> ir.Expr:
    """A conversion of integers that may wrap around, opaque.

    What may become a constant is brought into the range by arithmetic with a sign. What is in the range
    by that of a parallel loop is so, for threads, in a branch only: TVM's analyzer asks without it.
    """
    if not may_wrap(cast):
        return cast
    source, target = (DataType(str(value.ty.dtype)) for value in (cast.value, cast))
    low, high = integer_range(str(target.with_lanes(1)))
    least, greatest = scope.bounds(cast.value)
    if low <= least and greatest <= high:
        if target.bits < 32 and scope.is_of_threads(cast.value):
            return tirx.Cast(str(target), _xor_zero(cast.value), cast.span)
        return cast
    if scope.may_be_constant(cast.value) or scope.may_cancel(cast.value):
        if str(source).startswith("int"):
            return _in_range(cast, source, target)
        cast = tirx.Cast(str(target), _xor_zero(cast.value), cast.span)
    # The analyzer's range is right where all that the dtype has may come.
    return cast if least <= low and high <= greatest else _xor_zero(cast)


def _in_range(cast: tirx.Cast, source: DataType, target: DataType) -> ir.Expr:
    """A conversion of a value that fits."""
    bits = 32 if target.bits < 32 and source.bits <= 32 else 64
    wide, result = str(DataType(f"int{bits}").with_lanes(target.lanes)), str(target)

    def low_bits(value: ir.Expr, mask: int) -> ir.Expr:
        return tirx.bitwise_and(value, tirx.const(mask, wide))

    value = cast.value if str(source) == wide else tirx.Cast(wide, cast.value)
    if target.bits == 64:  # which no signed integer holds: the last bit, and the others
        others = low_bits(tirx.shift_right(value, tirx.const(1, wide)), 2**63 - 1)
        last = tirx.Cast(result, low_bits(value, 1))
        return tirx.Cast(result, others, cast.span) * tirx.const(2, result) + last
    low, high = integer_range(str(target.with_lanes(1)))
    value = low_bits(value, high - low)
    if low:
        sign = tirx.const(-low, wide)
        value = tirx.bitwise_xor(value, sign) - sign
    return tirx.Cast(result, value, cast.span)


def _opaque_sum(node: Any, scope: Scope) -> Any:
    """A sum, difference or product, opaque where it may wrap around.

    A sum within it does not matter to anybody, nor does one that is stored.
    """
    if isinstance(node, tirx.BufferStore):
        value = _plain_sum(node.value)
        if value.same_as(node.value):
            return node
        return tirx.BufferStore(buffer_of(node), value, indices_of(node), span=node.span)
    if not _wraps(node):
        return node
    total = type(node)(_plain_sum(node.a), _plain_sum(node.b), node.span)
    bound = scope.analyzer.const_int_bound(total)
    low, high = integer_range(str(DataType(str(node.ty.dtype)).with_lanes(1)))
    if low <= int(bound.min_value) and int(bound.max_value) <= min(high, INFINITE - 1):
        return total
    may_fold = isinstance(total, tirx.Sub) and (
        constant(total.b) is None or scope.may_be_constant(total.a)
    )
    if may_fold and _is_unsigned(total):
        total = tirx.Sub(total.a, _xor_zero(total.b), total.span)
    return _xor_zero(total)


def _plain_sum(value: Any) -> Any:
    is_opaque = isinstance(value, tirx.BitwiseXor) and isinstance(value.a, _SUMS)
    return value.a if is_opaque and _wraps(value) and constant(value.b) == 0 else value


def _wraps(value: ir.Expr) -> bool:
    """Tell whether arithmetic of a dtype wraps around: that of 32 and 64 bits with a sign does not."""
    return _is_unsigned(value) or str(value.ty.dtype).startswith(("int8", "int16"))


def _opaque_end(comparison: Binary, scope: Scope) -> ir.Expr:
    """A comparison with an end of a range that may become a constant, which is opaque."""
    is_less = isinstance(comparison, tirx.LT)
    value, end = (comparison.a, comparison.b) if is_less else (comparison.b, comparison.a)
    if not _is_unsigned(value) or not scope.may_be_constant(end):
        return comparison
    dtype = str(DataType(str(value.ty.dtype)).with_lanes(1))
    if not scope.may_be_constant(value) and scope.bounds(value) == integer_range(dtype):
        return comparison
    a, b = (value, _xor_zero(end)) if is_less else (_xor_zero(end), value)
    return type(comparison)(a, b, comparison.span)


def _unmoved_terms(order: Binary, scope: Scope) -> ir.Expr:
    """An order of integers; sums of loaded ones are opaque, if all terms may not fit on one side."""

    def is_moved(value: ir.Expr) -> bool:
        return isinstance(value, _SUMS) and scope.is_loaded(value)

    dtype = str(DataType(str(order.a.ty.dtype)).with_lanes(1))
    if dtype not in ("int32", "int64") or not (is_moved(order.a) or is_moved(order.b)):
        return order
    low, high = integer_range(dtype)
    least, greatest = scope.bounds(order.a - order.b)
    if low < least and greatest < high:
        return order
    return _with_operands(order, lambda x: _xor_zero(x) if is_moved(x) else x)


def _orders_sums(func: tirx.PrimFunc) -> bool:
    return contains(
        func.body, _ORDERS, lambda order: isinstance(order.a, _SUMS) or isinstance(order.b, _SUMS)
    )


def _is_unsigned(value: ir.Expr) -> bool:
    return str(value.ty.dtype).startswith("uint")


def _has_sums(func: tirx.PrimFunc) -> bool:
    return contains(func.body, (*_SUMS, tirx.LShift), _wraps)


def _has_unsigned(func: tirx.PrimFunc) -> bool:
    return contains(func.body, (tirx.LT, tirx.GT), lambda node: _is_unsigned(node.a))


def _has_truncations(func: tirx.PrimFunc) -> bool:
    return contains(func.body, tirx.Cast, may_wrap)


def _plain_pointer(call: ir.Call, _: Scope) -> ir.Expr:
    return call.args[-1] if op_name(call) == MAY_SHARE else call


def _opaque_remainder(quotient: tirx.FloorDiv, _: Scope) -> ir.Expr:
    """A quotient of a remainder, one of whose divisors is negative."""
    remainder = quotient.a
    if not isinstance(remainder, tirx.FloorMod):
        return quotient
    first, second = constant(remainder.b), constant(quotient.b)
    if first is None or second is None or min(first, second) > 0:
        return quotient
    return tirx.FloorDiv(_xor_zero(remainder), quotient.b, quotient.span)


EXPRESSIONS = (
    Rule(
        "comparisons of floats",
        COMPARISONS,
        _opaque_comparison,
        "TVM's simplifier",
        "it makes `a <= b` of `not a > b`, and false of `a != a`: not so where an operand is NaN",
    ),
    Rule(
        "differences of floats",
        (tirx.Sub,),
        _unfolded_difference,
        "TVM's simplifier",
        "`x - x` becomes zero, which of NaN and infinity it is not, and `(x + y) - x` becomes y, "
        "without what the sum has lost by rounding, which compensated sums ask for",
    ),
    Rule(
        "comparisons with the least int32",
        COMPARISONS,
        _opaque_least,
        "TVM's analyzer",
        "to it an int32 is more than that: `x == T.int32(-(2**31))` is false",
        lambda func: contains(func.body, tirx.IntImm, _is_least),
    ),
    Rule(
        "constants of 64 bits without a sign",
        (tirx.IntImm,),
        _opaque_constant,
        "TVM's analyzer, and its folding of constants",
        "from 2^63 on it takes them for infinite, so that `x == T.cast(T.uint64(2**64 - 5), 'int32')` "
        "is false, and fails where it adds an infinity of the other sign or converts one",
        lambda func: contains(func.body, tirx.IntImm, lambda number: int(number.value) >= INFINITE),
    ),
    Rule(
        "conversions of integers that wrap around",
        (tirx.Cast,),
        _opaque_truncation,
        "TVM's analyzer, and its folding of constants",
        "it takes an int32 that becomes a uint32 not to be negative: `x < 0` is false, and a sum in "
        "64 bits fits 32; and it fails on a constant that does not fit",
        _has_truncations,
        asks=True,
    ),
    Rule(
        "sums of integers that wrap around",
        (*_SUMS, tirx.LShift, tirx.BufferStore),
        _opaque_sum,
        "TVM's analyzer and simplifier, and their folding of constants",
        "to them a sum is no less than its terms, and a difference may be less than 0: `(2 - k) // 3` "
        "rounds down; they make `0 - 1` of `x - (x + 1)`, and fail at a constant that is taken from 0",
        _has_sums,
        asks=True,
    ),
    Rule(
        "orders of sums",
        _ORDERS,
        _unmoved_terms,
        "TVM's simplifier",
        "it moves terms to the other side, where they may not fit: `y + x < 392` of `392 - x > y`",
        _orders_sums,
        asks=True,
    ),
    Rule(
        "conversions of constants that are rounded",
        (tirx.Cast,),
        _unfolded_conversion,
        "TVM's folding of constants",
        "it does not round: a bfloat16 of 30000, which is 29952, becomes 30000 in a float32; it fails "
        "on a constant that does not fit, as 90000 in a float16, which is infinity, or 300 in int8",
        _converts_floats,
        asks=True,
    ),
    Rule(
        "conversions of floats to integers",
        (tirx.Cast,),
        _unknown_float,
        "TVM's analyzer",
        "a quotient of floats is one of integers to it, so that `T.min(T.cast(x / y, 'int32'), 4)` "
        "lost its bound; and a float that has been rounded is no larger than what it is rounded from",
    ),
    Rule(
        "zeros in arithmetic of floats",
        _ZERO_FOLDED,
        _unfolded_zeros,
        "TVM's simplifier, and its folding of constants",
        "`x * 0` and `0 / x` become 0, which of NaN and infinity they are not, and `x + 0` becomes x, "
        "which of -0 it is not; it fails on a divisor that is 0",
        lambda func: contains(func.body, _ZERO_FOLDED, _has_floats),
        asks=True,
    ),
    Rule(
        "quotients of remainders by negative numbers",
        (tirx.FloorDiv,),
        _opaque_remainder,
        "TVM's RenormalizeSplitPattern",
        "it makes `(x // -3) % -1`, which is 0, of `(x % 3) // -3`",
    ),
    Rule(
        "ends of ranges of unsigned integers",
        (tirx.LT, tirx.GT),
        _opaque_end,
        "TVM's RenormalizeSplitPattern",
        "it divides by them, `x // 9 < 1`, and where that is `0 < 1` fails at the difference",
        _has_unsigned,
        asks=True,
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
