"""What a program assumes by `T.assume`: TVM's `tirx.assume`, a statement where it is written.

It holds from there to the end of the sequence that it stands in. `ScopedRewriter` tells its analyzer;
`HoistAssumptions` moves what the host can check in front, so that it holds for the whole kernel.
"""

from __future__ import annotations

from typing import TypeGuard

from tvm import ir, tirx

from tvmtile.ir.calls import op_name


def assume(condition: ir.Expr, span: ir.Span | None = None) -> tirx.Evaluate:
    """The statement that a condition holds from here on."""
    call = tirx.assume(condition)
    return tirx.Evaluate(ir.Call(call.op, call.args, span=span, ret_ty=call.ty))


def is_assumption(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether a statement is one."""
    return type(stmt) is tirx.Evaluate and op_name(stmt.value) == "tirx.assume"


def assumption_of(stmt: tirx.Stmt) -> ir.Expr | None:
    """What a statement assumes; None of another one."""
    return stmt.value.args[0] if is_assumption(stmt) else None


def failure_of(condition: ir.Expr, span: ir.Span | None = None) -> str:
    """What to say where a condition that is assumed does not hold."""
    place = "" if span is None else f"\n  --> {span.source_name.name}:{span.line}"
    return f"T.assume: {condition} does not hold{place}"
