"""LimitNames: a name whose value would be too large in its place is one that TVM does not look into."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.opaque import opaque
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.name_costs import NameCosts
from tvmtile.ir.passes import prim_func_pass


@prim_func_pass("LimitNames")
def LimitNames(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Hide the values of names that have too many names in them.

    The passes, ours and TVM's, look at what a name stands for: `x1 = x0 * x0`, `x2 = x1 * x1` and so on
    are 2**n nodes then, and a sum of a thousand names is a thousand nodes deep. A value that is hidden
    is computed where its name is bound, which the machine code does anyway.
    """

    def limited(kernel: tirx.For) -> tirx.Stmt:
        costs = NameCosts()

        def visit(bind: tirx.Bind) -> tirx.Bind:
            is_kept = ir.is_prim_expr(bind.value) and costs.note(bind.var, bind.value)
            return tirx.Bind(bind.var, opaque(bind.value), bind.span) if is_kept else bind

        return mapped(kernel, (tirx.Bind, visit))

    return with_kernels(func, limited)
