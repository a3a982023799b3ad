"""LowerElementOp: operators on single elements become instructions and calls."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile.ir.kernels import (
    Launch,
    importing_llvm,
    is_kernel,
    target_of,
    with_body,
    with_launch_body,
)
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.spans import location_of
from tvmtile.tileop.registry import LoweringContext
from tvmtile.tileop.selection import emit, select


@prim_func_pass(
    "LowerElementOp", requires=(Property.NO_TILE_OPERATORS,), establishes=(Property.NO_OPERATORS,)
)
def LowerElementOp(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace each element operator by the implementation that fits the function's target best.

    Such an operator is a statement or part of an expression, and names an element by a load that is
    not done. The operators decide (see `tvmtile.tileop.registry`); this pass knows none by name. What
    they ask to be linked into the module is put around the function's body, in the pragma that TVM's
    generator for LLVM has for it; the functions that they call on a GPU are put into its source. What
    they say of the whole kernel is put around the kernel's body, as an attribute.
    """
    lowerer = _LowerElements(target_of(func))
    body = lowerer.rewrite(func.body)
    return with_body(func, importing_llvm(body, lowerer.imports))


class _LowerElements(ScopedRewriter):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self._statement: Any = None
        self.imports: list[str] = []
        self._attributes: dict[str, Any] = {}

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if not is_kernel(loop):
            return super().visit_for(loop)
        self._attributes = {}
        rewritten = self.descend_loop(loop)
        body = Launch(rewritten).body
        for key, value in self._attributes.items():
            body = tirx.AttrStmt(tirx.const(0, "int32"), key, value, body)
        return with_launch_body(rewritten, body) if self._attributes else rewritten

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        self._statement = node.value
        lowered = self.mutate(node.value)
        return lowered if isinstance(lowered, tirx.Stmt) else tirx.Evaluate(lowered, node.span)

    def visit_call(self, node: ir.Call) -> ir.Expr:
        call = self.descend(node)
        op = operator_of(call)
        if op is None or op.is_tile:
            return call
        context = LoweringContext(
            self._target,
            self.analyzer,
            location_of(call),
            self.imports,
            is_statement=node.same_as(self._statement),
            attributes=self._attributes,
        )
        chosen = select(op, context)
        assert chosen is not None, "an element operator does not ask for layouts"
        return emit(chosen, op, context)
