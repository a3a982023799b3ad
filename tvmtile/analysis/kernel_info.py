"""What is known of a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import ir, tirx

from tvmtile._tvm import nodes_in
from tvmtile.ir.rewriting import variables_of


def let_values(stmt: tirx.Stmt) -> dict[ir.Var, ir.Expr]:
    """What `T.let` and assignments bind names to, in a statement."""
    return {bind.var: bind.value for bind in nodes_in(stmt, tirx.Bind, order="pre")}


def uses(indices: tuple[ir.Expr, ...], variable: ir.Var, names: dict[ir.Var, ir.Expr]) -> bool:
    """Tell whether an index depends on a variable, directly or through names bound to it."""
    return any(map(variable.same_as, transitive_variables(indices, names)))


def transitive_variables(
    indices: tuple[ir.Expr, ...], names: dict[ir.Var, ir.Expr]
) -> Iterator[ir.Var]:
    """What indices depend on, through names bound to it: variables, and buffers that are read."""
    for index in indices:
        for var in variables_of(index):
            if var in names:
                yield from transitive_variables((names[var],), names)
            else:
                yield var
