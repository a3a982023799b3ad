"""Rules for every GPU: what its language leaves open, and what the source need not say any more."""

from __future__ import annotations

from tvm import DataType, ir, tirx

from tvmtile.codegen.opaque import opaque
from tvmtile.ir.calls import op_name
from tvmtile.ir.divisions import divides_integers
from tvmtile.ir.kernels import leaves_loop
from tvmtile.ir.operands import constant, integer_range
from tvmtile.ir.rewriting import contains, seq, substitute
from tvmtile.ir.types import COMPARISONS, Binary
from tvmtile.passes.legalize.rules import Rule, Scope


def _guarded_remainder(remainder: Binary, scope: Scope) -> ir.Expr:
    """A remainder by 1 where the divisor is -1, which may divide the least integer."""
    dtype = DataType(str(remainder.ty.dtype))
    if not divides_integers(remainder) or str(dtype).startswith("uint") or dtype.bits < 32:
        return remainder
    low, _ = integer_range(str(dtype.with_lanes(1)))
    if scope.bounds(remainder.b)[0] >= 0 or scope.bounds(remainder.a)[0] > low:
        return remainder
    divisor, guarded = (ir.Var(name, remainder.b.ty) for name in ("divisor", "guarded"))
    one, minus_one = (tirx.const(number, str(dtype)) for number in (1, -1))
    chosen = tirx.Select(tirx.EQ(divisor, minus_one), one, divisor)
    result = type(remainder)(remainder.a, guarded, remainder.span)
    return tirx.Let(divisor, opaque(remainder.b), tirx.Let(guarded, opaque(chosen), result))


def _without_loop(loop: tirx.For, scope: Scope) -> tirx.Stmt:
    trip_count = constant(scope.analyzer.simplify(loop.extent)) if _may_be_short(loop) else None
    if trip_count is not None and trip_count <= 0:
        return seq([])
    if trip_count != 1 or leaves_loop(loop.body):
        return loop
    return substitute(loop.body, {loop.loop_var: loop.min})


def _may_be_short(loop: tirx.For) -> bool:
    is_plain = loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
    return is_plain and (not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) <= 1)


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


def _plain_bits(bits: tirx.BitwiseXor, _: Scope) -> ir.Expr:
    """The operand combined with zero; a constant stays, or TVM would compute what is around."""
    is_plain = constant(bits.b) == 0 and not isinstance(bits.a, tirx.IntImm)
    return bits.a if is_plain else bits


def _plain_reinterpretation(call: ir.Call, _: Scope) -> ir.Expr:
    if op_name(call) != "tirx.reinterpret":
        return call
    (value,) = call.args
    while op_name(value) == "tirx.reinterpret" and value.ty != call.ty:
        (value,) = value.args
    return value if value.ty == call.ty else call


OPERATIONS = (
    Rule(
        "remainders by a divisor that may be -1",
        (tirx.FloorMod, tirx.Mod),
        _guarded_remainder,
        "CUDA and Metal",
        "of the least integer, that remainder is undefined as the quotient is; it is 0",
        lambda func: contains(func.body, (tirx.FloorMod, tirx.Mod), divides_integers),
        asks=True,
    ),
    Rule(
        "loops of one iteration, or of none",
        (tirx.For,),
        _without_loop,
        "TVM's RenormalizeSplitPattern",
        "it learns another range of the variable, if the start of the loop is not constant, takes that "
        "for a contradiction and fails; and where there are no values, it divides by zero as it looks "
        "for what they have in common",
        lambda func: contains(func.body, tirx.For, _may_be_short),
        asks=True,
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
        "exclusive `or` with zero",
        (tirx.BitwiseXor,),
        _plain_bits,
        "readers of a kernel's source",
        "it hides from TVM that an integer may wrap around",
    ),
    Rule(
        "reinterpretations there and back",
        (ir.Call,),
        _plain_reinterpretation,
        "readers of a kernel's source",
        "they hide from TVM that it may compute with a constant",
    ),
)
