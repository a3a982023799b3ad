"""VersionNests: conditions that hold for whole elementwise nests are decided once."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.kernels import is_parallel, with_kernels
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import reads_no_memory, seq, with_fresh_variables
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.types import ORDERS
from tvmtile.passes.nests.ranges import NestConditions


@prim_func_pass("VersionNests", requires=(Property.NO_TILE_OPERATORS,))
def VersionNests(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Decide the conditions in a nest of `T.Parallel` before it, where they hold for all of it.

    A user's own bounds check, `if y < M and x < N`, holds for all iterations of all tiles but the last
    ones. Inside the nest it keeps accesses from moving as vectors. Comparisons of integers are compared
    by their ranges over the nest: one that always holds is dropped; for those that hold if something
    outside of the nest does, there are two versions of the nest. A branch that is never taken is
    dropped, in a nest or outside: what is proven under a condition that can't hold is worth nothing.
    """
    return with_kernels(func, lambda kernel: _Versions().rewrite(kernel))


class _Versions(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self._in_nest = False

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        outer, self._in_nest = self._in_nest, self._in_nest or is_parallel(loop)
        loop = self.descend_loop(loop)
        self._in_nest = outer
        if outer or not is_parallel(loop):
            return loop
        conditions = NestConditions(self.analyzer)
        conditions.rewrite(loop)
        loop = _without(loop, conditions.always)
        if not conditions.outside:
            return loop
        inside = self.analyzer.simplify(tirx.all(*conditions.outside))
        fast = with_fresh_variables(_without(loop, conditions.decided))
        return tirx.IfThenElse(inside, fast, loop)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        cases = (branch.then_case, branch.else_case)
        taken = self._taken(branch.condition, *cases)
        if len(taken) == len(cases):
            return super().visit_if(branch)
        return seq([]) if taken[0] is None else self.mutate(taken[0])

    def visit_call(self, node: ir.Call) -> ir.Expr:
        if not is_if_then_else(node):
            return self.descend(node)
        condition, *values = node.args
        taken = self._taken(condition, *values)
        if len(taken) == 1:
            return self.mutate(taken[0])
        condition = self.mutate(condition)
        with self.assuming(condition):
            value = self.mutate(values[0])
        with self.assuming(tirx.Not(condition)):
            otherwise = self.mutate(values[1])
        return tirx.if_then_else(condition, value, otherwise, node.span)

    def _taken(
        self, condition: ir.Expr, then: ir.Node, otherwise: ir.Node | None
    ) -> list[ir.Node | None]:
        """The cases that a condition may lead to, of two."""
        if not reads_no_memory(condition):
            return [then, otherwise]
        cases = ((then, tirx.Not(condition)), (otherwise, condition))
        return [case for case, unless in cases if not self.analyzer.can_prove(unless)]


def _without(loop: tirx.For, holding: list[ir.Expr]) -> tirx.For:
    """A nest without conditions that hold in it."""
    names: list[ir.Var] = []  # of conditions that hold

    def holds(condition: Any) -> bool:
        is_true = isinstance(condition, tirx.IntImm) and bool(condition.value)
        return is_true or any(condition.same_as(name) for name in names)

    def comparison(node: Any) -> ir.Expr:
        known = any(node.same_as(each) for each in holding)
        return tirx.const(True, "bool") if known else node

    def both(node: tirx.And) -> ir.Expr:
        return node.b if holds(node.a) else node.a if holds(node.b) else node

    def name(bind: tirx.Bind) -> tirx.Bind:
        if holds(bind.value):
            names.append(bind.var)
        return bind

    def branch(node: tirx.IfThenElse) -> tirx.Stmt:
        return node.then_case if holds(node.condition) else node

    def choice(node: ir.Call) -> ir.Expr:
        return node.args[1] if is_if_then_else(node) and holds(node.args[0]) else node

    if not holding:
        return loop
    return mapped(
        loop,
        (ORDERS, comparison),
        (tirx.And, both),
        (tirx.Bind, name),
        (tirx.IfThenElse, branch),
        (ir.Call, choice),
    )
