"""PreventLetInlining: costly values are computed once, where they are named."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Replacement, mapped
from tvmtile.codegen.opaque import opaque
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.divisions import is_division, rounded_to_zero
from tvmtile.ir.extents import assume_extents_nonnegative
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, reads_no_memory
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.types import Binary, is_signed_integer


@prim_func_pass("PreventLetInlining")
def PreventLetInlining(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep the names of costly values, which TVM would recompute at every use.

    That is a division by what is no constant, a choice between two values, and a value that holds names
    (`T.Let`): where copies of it stand, TVM's analyzer fails if it knows more of a name in one of them.
    So it does where an integer is made of a value that holds integers with names, as of `exp` on CPUs.
    And it fails on a float's name whose value is a product of another name and of what has a range, as
    `first * T.Cast("float32", i)`: such a factor is hidden from it.
    """

    def keep(kernel: tirx.For) -> tirx.For:
        rewriter = _Keep()
        assume_extents_nonnegative(rewriter.analyzer, func.params)
        return rewriter.rewrite(kernel)

    return with_kernels(func, keep)


class _Keep(ScopedRewriter):
    def others(self) -> list[Replacement]:
        return [(tirx.Let, self.visit_let)]

    def visit_let(self, let: tirx.Let) -> ir.Expr:
        value, body = self.mutate(let.value), self.mutate(let.body)
        kept = opaque(value) if "int" in str(value.ty.dtype) else value
        return tirx.Let(let.var, kept, body, let.span)

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        if contains(bind.value, tirx.Let) and reads_no_memory(bind.value):
            return tirx.Bind(bind.var, opaque(bind.value), bind.span)
        if not (
            is_signed_integer(bind.value) and _is_costly(bind.value) and reads_no_memory(bind.value)
        ):
            return mapped(self.descend_bind(bind), ((tirx.Mul, tirx.Div), _with_hidden_factor))
        self.note_value(bind)
        value = opaque(self._without_signs(bind.value))
        if self.analyzer.can_prove(bind.var >= 0):
            # TVM's passes learn the sign from this.
            value = tirx.max(value, tirx.const(0, bind.value.ty.dtype))
        return tirx.Bind(bind.var, value, bind.span)

    def _without_signs(self, value: ir.Expr) -> ir.Expr:
        """A division of numbers that are not negative as one that rounds to zero."""
        if not is_division(value):
            return value
        is_above_zero = all(self.analyzer.can_prove(part >= 0) for part in (value.a, value.b))
        return rounded_to_zero(value) if is_above_zero else value


def _is_costly(value: ir.Expr) -> bool:
    return is_division(value) or contains(value, (tirx.Select, ir.Call), _is_choice)


def _is_choice(node: ir.Expr) -> bool:
    return isinstance(node, tirx.Select) or is_if_then_else(node)


def _with_hidden_factor(product: Binary) -> ir.Expr:
    """A product of floats in which a name that stands beside a range is hidden."""
    if "float" not in str(product.ty.dtype):
        return product
    a, b = (
        opaque(x) if isinstance(x, ir.Var) and _has_range(y) else x
        for x, y in ((product.a, product.b), (product.b, product.a))
    )
    return type(product)(a, b, product.span)


def _has_range(value: ir.Expr) -> bool:
    """Tell whether TVM's analyzer may find bounds of a float: they come from integers and choices."""
    return reads_no_memory(value) and contains(value, (tirx.Cast, tirx.Select), _gives_range)


def _gives_range(node: Any) -> bool:
    return isinstance(node, tirx.Select) or "float" not in str(node.value.ty.dtype)
