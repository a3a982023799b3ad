"""NormalizeBinds: names stand for values that passes, ours and TVM's, may put in their place."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.opaque import opaque
from tvmtile.ir.divisions import named_divisions
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.name_costs import NameCosts
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, reads_no_memory, seq
from tvmtile.ir.types import is_signed_integer


@prim_func_pass("NormalizeBinds")
def NormalizeBinds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Name the divisions by run-time divisors in the values of names, and hide values too large.

    Passes replace names by their values to prove what they need; those that are such divisions they
    leave, since nothing but their range follows from them. So the rest of a value, a multiple of a
    tile's extent say, stays known, and the division is done once.

    In place of names, `x1 = x0 * x0`, `x2 = x1 * x1` and so on are 2**n nodes, and a sum of a thousand
    names is a thousand nodes deep. A value that is hidden is computed where its name is bound, as the
    machine code does anyway.
    """
    return with_kernels(func, _normalized)


def _normalized(kernel: tirx.For) -> tirx.Stmt:
    costs = NameCosts()

    def limited(bind: tirx.Bind) -> tirx.Bind:
        is_hidden = ir.is_prim_expr(bind.value) and costs.note(bind.var, bind.value)
        return tirx.Bind(bind.var, opaque(bind.value), bind.span) if is_hidden else bind

    def visit(bind: tirx.Bind) -> tirx.Stmt:
        if not is_signed_integer(bind.value) or not _is_plain(bind.value):
            return limited(bind)
        names, (value,) = named_divisions([bind.value], bind.var.name)
        named = tirx.Bind(bind.var, value, bind.span) if names else bind
        return seq([limited(each) for each in [*names, named]])

    return mapped(kernel, (tirx.Bind, visit))


def _is_plain(value: ir.Expr) -> bool:
    """Tell whether all of a value is computed in any case, and always the same."""
    return reads_no_memory(value) and not contains(value, (ir.Call, tirx.Select))
