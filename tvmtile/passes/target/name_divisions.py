"""NameDivisions: divisions by run-time values have names."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.divisions import is_integer, named_divisions
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, reads_no_memory, seq


@prim_func_pass("NameDivisions")
def NameDivisions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Name the divisions by run-time divisors in the values of names.

    Passes replace names by their values to prove what they need; those that are such divisions they
    leave, since nothing but their range follows from them. So the rest of a value, a multiple of a
    tile's extent say, stays known, and the division is done once.
    """

    def name(bind: tirx.Bind) -> tirx.Stmt:
        if not is_integer(bind.value) or not _is_plain(bind.value):
            return bind
        names, (value,) = named_divisions([bind.value], bind.var.name)
        return seq([*names, tirx.Bind(bind.var, value, bind.span)]) if names else bind

    return with_kernels(func, lambda kernel: mapped(kernel, (tirx.Bind, name)))


def _is_plain(value: ir.Expr) -> bool:
    """Tell whether all of a value is computed in any case, and always the same."""
    return reads_no_memory(value) and not contains(value, (ir.Call, tirx.Select))
