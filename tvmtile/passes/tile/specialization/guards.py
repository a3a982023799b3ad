"""Conditions under which an iteration of a pipelined loop does anything, as those of block masks."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.ir.kernels import flattened
from tvmtile.ir.rewriting import replace_loop, seq, substitute
from tvmtile.passes.tile.pipelining import KernelTiles, has_effects, is_rematerializable


def guard_of(
    loop: tirx.For, tiles: KernelTiles, variance: Callable[[], ThreadVariance]
) -> ir.Expr | None:
    """Whether an iteration of a loop is done, in terms of its variable; None where all are.

    The iterations are one branch each, with nothing but names before it. All threads of a block take it
    or none. What that depends on, no iteration writes, so whoever knows the number of an iteration
    knows whether it is done.
    """
    names, conditions, _ = _apart(loop)
    values: dict[ir.Var, ir.Expr] = {}
    for each in names:
        if isinstance(each, tirx.Bind):
            values[each.var] = substitute(each.value, values)
    is_replayable = is_rematerializable(loop, tiles)
    known = [substitute(condition, values) for condition in conditions]
    if not known or not all(map(is_replayable, known)):
        return None
    return None if any(map(variance().may_diverge, known)) else tirx.all(*known)


def without_guard(loop: tirx.For) -> tirx.For:
    """A loop with a guard: what is done of an iteration for which it holds."""
    names, _, inside = _apart(loop)
    return replace_loop(loop, body=seq([*names, *inside]))


def _apart(loop: tirx.For) -> tuple[list[tirx.Stmt], list[ir.Expr], list[tirx.Stmt]]:
    """The names before branches that are all of an iteration, their conditions, and what is inside."""
    names: list[tirx.Stmt] = []
    conditions: list[ir.Expr] = []
    inside = list(flattened(loop.body))
    while True:
        *first, branch = inside
        if not isinstance(branch, tirx.IfThenElse) or branch.else_case is not None:
            return names, conditions, inside
        if not all(map(_only_names, first)):
            return names, conditions, inside
        names += first
        conditions.append(branch.condition)
        inside = list(flattened(branch.then_case))


def _only_names(stmt: tirx.Stmt) -> bool:
    """Tell whether a statement means the same wherever it stands in an iteration."""
    if isinstance(stmt, tirx.Bind):
        return not has_effects(stmt.value)
    return isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer)
