"""PredicateArrivals: an arrival that depends on the iteration is no branch of its own."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import mapped
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.kernels import Launch, with_kernels
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import mentions

_ARRIVE = "mbarrier.arrive.shared.b64"


@prim_func_pass("PredicateArrivals")
def PredicateArrivals(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let a thread arrive at an mbarrier by an instruction that has the iteration's condition itself.

    Where consumers release the tiles of the iteration before, the first one has none. If one branch
    asked for the thread and for the iteration, ptxas would have each `wgmma` of a small loop wait for
    the one before (C7514).
    """
    return with_kernels(func, _predicated)


def _predicated(kernel: tirx.For) -> tirx.For:
    threads = [loop.loop_var for loop in Launch(kernel).threads]

    def visit(branch: tirx.IfThenElse) -> tirx.Stmt:
        address = _arrives_at(branch.then_case)
        if address is None or branch.else_case is not None:
            return branch
        asked = conjuncts(branch.condition)
        of_threads = [c for c in asked if any(mentions(c, thread) for thread in threads)]
        others = [c for c in asked if c not in of_threads]
        if not of_threads or not others:
            return branch
        arrival = tirx.Evaluate(ptx(_ARRIVE)(address, pred=tirx.all(*others)))
        return tirx.IfThenElse(tirx.all(*of_threads), arrival, None, branch.span)

    return mapped(kernel, (tirx.IfThenElse, visit))


def _arrives_at(stmt: tirx.Stmt) -> ir.Expr | None:
    """The address of the mbarrier that a statement arrives at, if it does nothing else."""
    call: Any = stmt.value if isinstance(stmt, tirx.Evaluate) else None
    some = ptx(_ARRIVE)(tirx.Var("address", "uint32"))
    if not isinstance(call, ir.Call) or not call.op.same_as(some.op):
        return None
    address, *modifiers = call.args
    return address if structural_equal(modifiers, list(some.args[1:])) else None
