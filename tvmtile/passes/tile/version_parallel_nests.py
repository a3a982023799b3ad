"""VersionParallelNests: conditions that hold for whole elementwise nests are decided once."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile.analysis.nest_ranges import NestRanges
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.kernels import is_parallel, with_kernels
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, reads_no_memory, seq, with_fresh_variables
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.types import ORDERS, Binary


@prim_func_pass("VersionParallelNests", requires=(Property.NO_TILE_OPERATORS,))
def VersionParallelNests(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Decide the conditions in a nest of `T.Parallel` before it, where they hold for all of it.

    A user's own bounds check, `if y < M and x < N`, holds for all iterations of all tiles but the last
    ones. Inside the nest it keeps accesses from moving as vectors. Comparisons of integers are compared
    by their ranges over the nest: one that always holds is dropped; for those that hold if something
    outside of the nest does, there are two versions of the nest. A branch that is never taken is
    dropped, in a nest or outside: what is proven under a condition that can't hold is worth nothing.
    """
    return with_kernels(func, lambda kernel: _Unswitch().rewrite(_DropUnreached().rewrite(kernel)))


class _DropUnreached(ScopedRewriter):
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
        """Of what a condition decides between, what may come of it."""
        if not reads_no_memory(condition):
            return [then, otherwise]
        cases = ((then, tirx.Not(condition)), (otherwise, condition))
        return [case for case, unless in cases if not self.analyzer.can_prove(unless)]


class _Unswitch(ScopedRewriter):
    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if not is_parallel(loop):
            return super().visit_for(loop)
        conditions = _NestConditions(self.analyzer)
        conditions.rewrite(loop)
        loop = _without(loop, conditions.always)
        if not conditions.outside:
            return loop
        inside = self.analyzer.simplify(tirx.all(*conditions.outside))
        fast = with_fresh_variables(_without(loop, conditions.decided))
        return tirx.IfThenElse(inside, fast, loop)


class _NestConditions(NestRanges):
    """The comparisons in a nest, and what decides them outside of it.

    Attributes
    ----------
    always : list of Expr
        Those that hold in all iterations.
    decided : list of Expr
        Those that hold in all iterations if `outside` holds.
    outside : list of Expr
        In terms of what is known before the nest.
    """

    def __init__(self, outer: Analyzer) -> None:
        super().__init__(outer)
        self.always: list[Any] = []
        self.decided: list[Any] = []
        self.outside: list[Any] = []

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        if _is_bool(bind.value):
            self._note(bind.value)
        return super().visit_bind(bind)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        self._note(branch.condition)
        return super().visit_if(branch)

    def visit_call(self, node: ir.Call) -> ir.Expr:
        if is_if_then_else(node):
            self._note(node.args[0])
        return self.descend(node)

    def _note(self, condition: ir.Expr) -> None:
        for part in conjuncts(condition):
            if any(part.same_as(known) for known in (*self.always, *self.decided)):
                continue
            if not _compares_integers(part):
                continue
            outside = self._decided_by(part)
            if self.analyzer.can_prove(part) or self.analyzer.can_prove(outside):
                self.always.append(part)
            elif not self.analyzer.can_prove(tirx.Not(outside)):
                self.decided.append(part)
                self.outside.append(outside)

    def _decided_by(self, comparison: Binary) -> ir.Expr:
        """What holds before the nest only if a comparison holds in all iterations; else false."""
        values = self.range_of(comparison.a - comparison.b)
        is_less = isinstance(comparison, tirx.LT | tirx.LE)
        worst = values.max_value if is_less else values.min_value
        if not self._is_known_before(worst):
            return tirx.const(False, "bool")
        zero = tirx.const(0, str(worst.ty.dtype))
        return self.analyzer.simplify(type(comparison)(worst, zero))

    def _is_known_before(self, bound: ir.Expr) -> bool:
        is_outer = not contains(bound, ir.Var, self.is_of_nest)
        return self.is_finite(bound) and reads_no_memory(bound) and is_outer


def _compares_integers(condition: Binary) -> bool:
    is_order = isinstance(condition, ORDERS)
    return is_order and str(condition.a.ty.dtype).startswith("int") and reads_no_memory(condition)


def _is_bool(value: ir.Expr) -> bool:
    return ir.is_prim_expr(value) and str(value.ty.dtype) == "bool"


def _without(loop: tirx.For, holding: list[ir.Expr]) -> tirx.For:
    """A nest without conditions that hold in it."""
    return _Assume(holding).rewrite(loop) if holding else loop


class _Assume(ScopedRewriter):
    def __init__(self, holding: list[ir.Expr]) -> None:
        super().__init__()
        self._holding = holding
        self._true: set[ir.Var] = set()

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        if _is_bool(bind.value) and not self._rest(bind.value):
            self._true.add(bind.var)
            return tirx.Bind(bind.var, tirx.const(True, "bool"), bind.span)
        return self.descend(bind)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        rest = self._rest(branch.condition)
        if not rest:
            return self.mutate(branch.then_case)
        return self.descend(_with_condition(branch, tirx.all(*rest)))

    def visit_call(self, node: ir.Call) -> ir.Expr:
        if not is_if_then_else(node):
            return self.descend(node)
        condition, value, otherwise = node.args
        rest = self._rest(condition)
        if not rest:
            return self.mutate(value)
        return self.descend(tirx.if_then_else(tirx.all(*rest), value, otherwise, node.span))

    def _rest(self, condition: ir.Expr) -> list[ir.Expr]:
        """The parts of a condition that are to be looked at still."""
        return [
            part
            for part in conjuncts(condition)
            if part not in self._true and not any(part.same_as(known) for known in self._holding)
        ]


def _with_condition(branch: tirx.IfThenElse, condition: ir.Expr) -> tirx.IfThenElse:
    return tirx.IfThenElse(condition, branch.then_case, branch.else_case, branch.span)
