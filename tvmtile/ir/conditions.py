"""Conditions: their parts, what an analyzer learns of one that holds, and what `T.assume` gives.

An assumption is TVM's `tirx.assume`, a statement where it is written. It holds from there to the end of
the sequence that it stands in. `ScopedRewriter` tells its analyzer; `HoistAssumptions` moves what the
host can check in front, so that it holds for the whole kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import class_of, is_node
from tvmtile.ir.calls import op_name
from tvmtile.ir.types import ORDERS, is_signed_integer


def conjuncts(condition: ir.Expr) -> list[Any]:
    """The conditions that hold where one holds."""
    if is_node(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def gaps_of(condition: ir.Expr) -> list[ir.Expr]:
    """Expressions that are not negative where a condition holds on two signed integers."""
    turned = isinstance(condition, tirx.Not)
    part = condition.a if isinstance(condition, tirx.Not) else condition
    if not isinstance(part, (*ORDERS, tirx.EQ)) or not is_signed_integer(part.a):
        return []
    if isinstance(part, tirx.EQ):
        return [] if turned else [part.a - part.b, part.b - part.a]
    is_less = isinstance(part, tirx.LT | tirx.LE)
    small, large = (part.a, part.b) if is_less != turned else (part.b, part.a)
    is_strict = isinstance(part, tirx.LT | tirx.GT) != turned
    return [large - small - int(is_strict)]


def known_by(condition: ir.Expr, analyzer: Analyzer) -> Iterator[ir.Expr]:
    """Facts for an analyzer, of a condition that holds.

    An analyzer learns nothing by itself of the parts of a conjunction, of the difference of two sides,
    nor of an equation of two expressions: that neither is larger, and that both are multiples of the
    same.
    """
    for part in conjuncts(condition):
        yield part
        if not isinstance(part, (*ORDERS, tirx.EQ)) or not is_signed_integer(part.a):
            continue  # differences of unsigned integers wrap around
        if isinstance(part, ORDERS):
            zero = tirx.const(0, str(part.a.ty.dtype))
            yield Analyzer().simplify(class_of(part)(part.a - part.b, zero))
        else:
            yield from _of_equation(part.a, part.b, analyzer)
            yield from _of_equation(part.b, part.a, analyzer)


def _of_equation(one: ir.Expr, other: ir.Expr, analyzer: Analyzer) -> Iterator[ir.Expr]:
    if not isinstance(one, ir.Var):
        return
    yield one <= other
    yield one >= other
    modular = analyzer.modular_set(other)
    if int(modular.coeff) > 1:
        yield tirx.floormod(one, int(modular.coeff)).equal(int(modular.base))


def whole_tile(loop: tirx.For, analyzer: Analyzer) -> ir.Expr | None:
    """The condition that an iteration's tile ends inside, where what they cover is a multiple."""
    end = analyzer.simplify(loop.min + loop.extent)
    if not isinstance(end, tirx.FloorDiv) or not isinstance(end.b, tirx.IntImm):
        return None
    tile = int(end.b)
    covered = analyzer.simplify(end.a - (tile - 1))
    if not analyzer.can_prove_equal(tirx.floormod(covered, tile), 0):
        return None
    return loop.loop_var * tile + tile <= covered


def assume(condition: ir.Expr, span: ir.Span | None = None) -> tirx.Evaluate:
    """The statement that a condition holds from here on."""
    call = tirx.assume(condition)
    return tirx.Evaluate(ir.Call(call.op, call.args, span=span, ret_ty=call.ty))


def is_assumption(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether a statement is one."""
    return type(stmt) is tirx.Evaluate and op_name(stmt.value) == "tirx.assume"


def assumption_of(stmt: tirx.Stmt) -> ir.Expr | None:
    """The condition that a statement assumes; None of another one."""
    return stmt.value.args[0] if is_assumption(stmt) else None


def failure_of(condition: ir.Expr, span: ir.Span | None = None) -> str:
    """The message where a condition that is assumed does not hold."""
    place = "" if span is None else f"\n  --> {span.source_name.name}:{span.line}"
    return f"T.assume: {condition} does not hold{place}"
