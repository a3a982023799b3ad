"""Rules: other forms for single expressions and statements, and the traversal that applies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer, ConstIntBound

from tvmtile._tvm import Replacement, buffer_of, mapped
from tvmtile.ir.kernels import (
    Launch,
    bound_target,
    importing_llvm,
    is_kernel,
    with_body,
)
from tvmtile.ir.operands import constant, integer_range, may_wrap
from tvmtile.ir.rewriting import contains, reads_no_memory, replace_loop
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.types import is_integer
from tvmtile.passes.cpu.unknown_zeros import Zeros

N = TypeVar("N")
_LEAVES = (tirx.BufferStore, tirx.Evaluate, tirx.AssertStmt)
_DECLARATIONS = (tirx.AllocBuffer, tirx.DeclBuffer)
"""With these and Bind: the statements without statements in them."""
INFINITE = 2**63 - 1  # to TVM's analyzer


@dataclass(frozen=True)
class Rule:
    """A construct that a tool gets wrong, or that a target does not have, and its other form."""

    construct: str
    """The name of the rule: what is rewritten."""
    nodes: tuple[type, ...]
    """The types of nodes of such a construct."""
    rewrite: Callable[[Any, Scope], Any]
    """`(node, scope) -> node`. The operands of the node are rewritten already. The node itself is
    returned where there is nothing to do."""
    tool: str
    """The tool that would get the construct wrong; with its versions, where not all do."""
    reason: str
    """The reason: what the tool would do."""
    needs: Callable[[tirx.PrimFunc], bool] = lambda _: True
    """Whether a function has to be looked through at all."""
    asks: bool = False
    """Whether `rewrite` asks for what is known at the place: bounds, the kernel around, its zeros."""


class Names:
    """The names whose values contain some node; called, tells whether a value does, or such a name.

    Parameters
    ----------
    *nodes
        The nodes, as of `contains`; none if names are all there is.
    """

    def __init__(self, *nodes: Any) -> None:
        self._nodes = nodes
        self.names: set[ir.Var] = set()

    def __call__(self, value: ir.Expr) -> bool:
        is_there = bool(self._nodes) and contains(value, *self._nodes)
        return is_there or contains(value, ir.Var, self.names.__contains__)


class Scope(ScopedRewriter):
    """A function on which rules act, and the place in it where one does.

    Attributes
    ----------
    func : tvm.tirx.PrimFunc
        The function, as it was.
    launch : Launch or None
        The kernel around the place; None in what the host does.
    zeros : Zeros
        The zeros of that kernel which LLVM can't fold.
    imports : list of str
        Functions in LLVM's language that rewritten code calls.
    is_of_threads, is_loaded, may_cancel : Names
        Tell of a value whether a variable of a parallel loop is in it, an element of a buffer, or a
        difference whose terms may cancel.
    """

    def __init__(self, func: tirx.PrimFunc, rules: Sequence[Rule]) -> None:
        super().__init__()
        self.func = func
        self.launch: Launch | None = None
        self.imports: list[str] = []
        self.zeros = Zeros()
        self._numbers: set[ir.Var] = set()
        self.is_of_threads = Names()
        self.is_loaded = Names(ir.TensorLoad)
        self.may_cancel = Names(tirx.Sub, lambda difference: constant(difference.b) is None)
        self._rules: dict[type, list[Rule]] = {}
        needed = [rule for rule in rules if rule.needs(func)]
        self._asks = any(rule.asks for rule in needed)
        for rule in needed:
            for node in rule.nodes:
                self._rules.setdefault(node, []).append(rule)
        self._renamed: dict[ir.Var, ir.Var] = {}
        self._callbacks: list[Replacement] = [
            (t, partial(self._ruled, rules)) for t, rules in self._rules.items()
        ]

    def applied(self) -> tirx.PrimFunc:
        """The function with all rules applied, from the inside out and in their order at each node."""
        if not self._rules:
            return self.func
        body = self.rewrite(self.func.body) if self._asks else self._mapped(self.func.body)
        return with_body(self.func, importing_llvm(body, self.imports))

    def bounds(self, value: ir.Expr) -> tuple[int, int]:
        """The least and the greatest value that an integer may have, or a lane of it."""
        return _bounds(value, self.analyzer)

    def may_be_constant(self, value: ir.Expr) -> bool:
        """Tell whether a value is one, or is computed from nothing but variables of loops."""
        return not contains(value, ir.TensorLoad) and not contains(
            value, ir.Var, lambda variable: variable not in self._numbers
        )

    def _visits(self) -> list[Replacement]:
        others = [
            (node, visit)
            for node, visit in super()._visits()
            if node not in (*_LEAVES, *_DECLARATIONS)
        ]
        return [
            *others,
            (_LEAVES, self._mapped),
            (_DECLARATIONS, self._visit_declaration),
            (tirx.While, self._visit_while),
        ]

    def _mapped(self, node: N) -> N:
        """An expression, or a statement without statements in it, with the rules applied.

        TVM goes through it: a deep expression is no deep stack of Python's.
        """
        return mapped(node, *self._callbacks)

    def _visit_declaration(self, node: N) -> N:
        """A declaration; a buffer whose extents are rewritten is another one from here on."""
        result: Any = self._mapped(node)
        own: Any = node
        if not buffer_of(result).same_as(buffer_of(own)):
            self._renamed[buffer_of(own)] = buffer_of(result)
            if len(self._renamed) == 1:
                self._callbacks.append((ir.Var, lambda var: self._renamed.get(var, var)))
        return result

    def _ruled(self, rules: list[Rule], node: Any) -> Any:
        for rule in rules:
            if type(node) in rule.nodes:
                node = rule.rewrite(node, self)
        return node

    def mutate(self, child: Any) -> Any:
        return self._mapped(child) if isinstance(child, ir.Expr) else super().mutate(child)

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_kernel(loop):
            self.launch, self.zeros = Launch(loop), Zeros()
        self._numbers.add(loop.loop_var)
        if loop.kind == tirx.ForKind.PARALLEL:
            self.is_of_threads.names.add(loop.loop_var)
        rewritten = self.descend_loop(loop)
        least, extent = self.mutate(loop.min), self.mutate(loop.extent)
        if not (least.same_as(loop.min) and extent.same_as(loop.extent)):
            rewritten = replace_loop(rewritten, min=least, extent=extent)
        if is_kernel(loop):
            self.launch = None
            self.imports += self.zeros.texts
            rewritten = self.zeros.bound_in(rewritten)
        return self._ruled(self._rules.get(tirx.For, []), rewritten)

    def _visit_while(self, loop: tirx.While) -> tirx.Stmt:
        return tirx.While(self.mutate(loop.condition), self.mutate(loop.body), loop.span)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        return self._ruled(self._rules.get(tirx.IfThenElse, []), super().visit_if(branch))

    def visit_attribute(self, node: tirx.AttrStmt) -> tirx.Stmt:
        value, body = self.mutate(node.value), self.mutate(node.body)
        if value.same_as(node.value) and body.same_as(node.body):
            return node
        return tirx.AttrStmt(node.node, node.attr_key, value, body, node.span)

    def descend_bind(self, bind: tirx.Bind) -> tirx.Bind:
        result = self.known(self._mapped(bind))
        if self.may_be_constant(result.value):
            self._numbers.add(result.var)
        for names in (self.is_of_threads, self.is_loaded, self.may_cancel):
            if names(result.value):
                names.names.add(result.var)
        if is_integer(result.value) and not reads_no_memory(result.value):
            self._untold.append(partial(self._tell_bounds, result))
        return result

    def _tell_bounds(self, bind: tirx.Bind) -> None:
        """Memory may change, but the value of a name does not leave its range."""
        if not contains(bind.value, tirx.Cast, may_wrap):  # to TVM's analyzer none does
            least, greatest = _bounds(bind.value, self._analyzer)
            bound = ConstIntBound(max(least, -INFINITE), min(greatest, INFINITE))
            self._analyzer.update(bind.var, bound, override=True)


def _bounds(value: ir.Expr, analyzer: Analyzer) -> tuple[int, int]:
    low, high = integer_range(str(DataType(str(value.ty.dtype)).with_lanes(1)))
    bound = analyzer.const_int_bound(value)
    least, greatest = int(bound.min_value), int(bound.max_value)
    return low if least == -INFINITE else least, high if greatest == INFINITE else greatest


def legalized(func: tirx.PrimFunc, rules: Sequence[Rule]) -> tirx.PrimFunc:
    """A function to which rules are applied."""
    return Scope(func, rules).applied()


def kind_of(func: tirx.PrimFunc) -> str:
    """The kind of target that a function is for; "" if it is bound to none."""
    target = bound_target(func)
    return "" if target is None else str(target.kind.name)
