"""Rewriting statements with knowledge of the loops, branches and names around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar, overload

from tvm import ir, tirx
from tvm.sym import Analyzer, ConstIntBound

from tvmtile._tvm import Mutator, Replacement, mutated
from tvmtile.ir.conditions import assumption_of, is_assumption, known_by, whole_tile
from tvmtile.ir.divisions import is_division
from tvmtile.ir.name_costs import NameCosts
from tvmtile.ir.operands import may_wrap
from tvmtile.ir.rewriting import contains, reads_no_memory, seq, statements_in
from tvmtile.ir.types import is_integer

N = TypeVar("N")


def _is_misjudged(cast: tirx.Cast) -> bool:
    """Tell whether the analyzer fails at a conversion: at `T.cast(k - 4, "uint32")`, of -4."""
    return may_wrap(cast) and str(cast.ty.dtype) != "int32"


class ScopedRewriter:
    """Rewrite statements top-down; `analyzer` knows the loop ranges and conditions in force.

    A subclass overrides `visit_*` and calls `self.descend(node)` to go on below a node. Conditions in
    force are those of statements; a pass that wants that of a `T.if_then_else` in force for its sides
    assumes it by itself, as `OutsideAccesses` does.
    """

    def __init__(self, analyzer: Analyzer | None = None) -> None:
        self._analyzer = analyzer or Analyzer()
        self._untold: list[Callable[[], None]] = []
        self._costs = NameCosts()
        self._mutator: Any = None  # a Mutator, while something is rewritten

    @property
    def analyzer(self) -> Analyzer:
        """The analyzer, told what is around a node when it is asked there; most nodes don't ask."""
        for tell in self._untold:
            tell()
        self._untold.clear()
        return self._analyzer

    def rewrite(self, node: N) -> N:
        """Rewrite a statement or an expression."""
        visits = [(types, visit) for types, visit in self._visits() if _does_more(visit)]
        visits += self.others()
        if any(map(is_assumption, statements_in(node, tirx.Evaluate))):
            visits.append((tirx.SeqStmt, self._visit_sequence))  # the first that visits a type does
        return mutated(node, *((types, self._entry(visit)) for types, visit in visits))

    def _visits(self) -> list[Replacement]:
        return [
            (tirx.For, self.visit_for),
            (tirx.IfThenElse, self.visit_if),
            (tirx.AttrStmt, self.visit_attribute),
            (tirx.Bind, self.visit_bind),
            (tirx.Evaluate, self.visit_evaluate),
            (tirx.BufferStore, self.visit_store),
            (tirx.AllocBuffer, self.visit_alloc),
            (ir.TensorLoad, self.visit_load),
            (ir.Call, self.visit_call),
        ]

    def others(self) -> list[Replacement]:
        """Further types of nodes, and what visits them."""
        return []

    def _entry(self, visit: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def callback(node: ir.Node, mutator: Mutator) -> ir.Node | None:
            outer, self._mutator = self._mutator, mutator
            try:
                return visit(node)
            finally:
                self._mutator = outer

        return callback

    @overload
    def mutate(self, child: ir.Var) -> Any: ...
    @overload
    def mutate(self, child: tirx.Stmt) -> tirx.Stmt: ...
    @overload
    def mutate(self, child: ir.Expr) -> ir.Expr: ...
    @overload
    def mutate(self, child: Any) -> Any: ...
    def mutate(self, child: ir.Node) -> ir.Node:
        """Rewrite a child of the node being visited."""
        return self._mutator.mutate(child)

    def descend(self, node: N) -> N:
        """Rewrite the children of a node and keep the node itself."""
        return self._mutator.default_mutate(node)

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        return self.descend_loop(loop)

    def descend_loop(self, loop: tirx.For) -> tirx.For:
        """Rewrite a loop's body, whose iterations are in the loop's range."""
        self.enter_loop(loop)
        if isinstance(loop.extent, tirx.IntImm):
            return self.descend(loop)

        def known(has_iterations: ir.Expr, analyzer: Analyzer) -> Iterator[ir.Expr]:
            ends_inside = whole_tile(loop, analyzer)
            if ends_inside is not None:
                yield from known_by(tirx.And(has_iterations, ends_inside), analyzer)

        with self.assuming(loop.extent > 0, known):
            return self.descend(loop)

    def enter_loop(self, loop: tirx.For) -> None:
        """Tell the analyzer the range of a loop variable."""
        self._untold.append(partial(self._tell_range, loop))

    def _tell_range(self, loop: tirx.For) -> None:
        range_ = ir.Range.from_min_extent(loop.min, loop.extent)
        self._analyzer.bind(loop.loop_var, range_, allow_override=True)

    def _visit_sequence(self, node: tirx.SeqStmt) -> tirx.Stmt:
        """Rewrite statements, each under what those before it assume."""
        with ExitStack() as assumed:
            statements = []
            for child in node.seq:
                statements.append(self.mutate(child))
                condition = assumption_of(child)
                if condition is not None:
                    assumed.enter_context(self.assuming(condition, known_by))
        same = all(new.same_as(old) for new, old in zip(statements, node.seq, strict=True))
        return node if same else seq(statements)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        condition = self.mutate(branch.condition)
        with self.assuming(condition):
            then_case = self.mutate(branch.then_case)
        was, else_case = branch.else_case, None
        if was is not None:
            with self.assuming(tirx.Not(condition)):
                else_case = self.mutate(was)
        same = condition.same_as(branch.condition) and then_case.same_as(branch.then_case)
        if same and (was is None or was.same_as(else_case)):
            return branch
        return tirx.IfThenElse(condition, then_case, else_case, branch.span)

    @contextmanager
    def assuming(
        self,
        condition: ir.Expr,
        parts: Callable[[ir.Expr, Analyzer], Iterable[ir.Expr]] = lambda whole, _: (whole,),
    ) -> Iterator[None]:
        """Rewrite under the assumption that a condition holds, if it is one that stays true.

        `parts` are what the analyzer is told of it.
        """
        with ExitStack() as told:
            tell = partial(self._tell_condition, condition, parts, told)
            self._untold.append(tell)
            try:
                yield
            finally:
                if tell in self._untold:
                    self._untold.remove(tell)

    def _tell_condition(
        self,
        condition: ir.Expr,
        parts: Callable[[ir.Expr, Analyzer], Iterable[ir.Expr]],
        told: ExitStack,
    ) -> None:
        if reads_no_memory(condition):
            if isinstance(condition, tirx.Not):  # of which the analyzer learns no bounds
                condition = self._analyzer.simplify(condition)
            for part in parts(condition, self._analyzer):
                told.enter_context(self._analyzer.constraint_scope(part))

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        return self.descend_bind(bind)

    def descend_bind(self, bind: tirx.Bind) -> tirx.Bind:
        """Rewrite the value of a name; the analyzer knows it from then on."""
        return self.known(self.descend(bind))

    def known(self, bind: tirx.Bind) -> tirx.Bind:
        """A name, of whose value the analyzer is told if that is an integer which does not change."""
        if is_integer(bind.value) and reads_no_memory(bind.value):
            self.note_value(bind)
        return bind

    def note_value(self, bind: tirx.Bind) -> None:
        """Tell the analyzer the value of a name, or only the range of a division, or of too much."""
        self._untold.append(partial(self._tell_value, bind))

    def _tell_value(self, bind: tirx.Bind) -> None:
        analyzer = self._analyzer
        if contains(bind.value, tirx.Cast, _is_misjudged):
            return
        if not (self._costs.note(bind.var, bind.value) or is_division(bind.value)):
            analyzer.bind(bind.var, bind.value, allow_override=True)
            return
        bounds = analyzer.const_int_bound(bind.value)
        is_negative = bounds.min_value < 0 and not analyzer.can_prove(bind.value >= 0)
        lowest = bounds.min_value if is_negative else max(0, bounds.min_value)
        analyzer.update(bind.var, ConstIntBound(lowest, bounds.max_value), override=True)

    def visit_attribute(self, node: tirx.AttrStmt) -> tirx.Stmt:
        return self.descend(node)

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        return self.descend(node)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        return self.descend(node)

    def visit_alloc(self, node: tirx.AllocBuffer) -> tirx.Stmt:
        return self.descend(node)

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        return self.descend(node)

    def visit_call(self, node: ir.Call) -> ir.Expr:
        return self.descend(node)


_DESCENDS = {
    ScopedRewriter.visit_attribute,
    ScopedRewriter.visit_evaluate,
    ScopedRewriter.visit_store,
    ScopedRewriter.visit_alloc,
    ScopedRewriter.visit_load,
    ScopedRewriter.visit_call,
}


def _does_more(visit: Any) -> bool:
    """Tell whether a subclass visits such nodes: others are left to the C++ traversal."""
    return getattr(visit, "__func__", visit) not in _DESCENDS
