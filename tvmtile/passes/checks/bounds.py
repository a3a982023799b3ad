"""Accesses of a program that certainly lie outside of what they access."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tvm import ir, tirx

from tvmtile.ir.asynchronous import issued
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import ScopedRewriter

__all__ = ["Bounds"]


class Bounds(ScopedRewriter):
    """Finds accesses that the analyzer proves to lie outside, in code that may be reached."""

    def __init__(self, ignored: set[ir.Var]) -> None:
        super().__init__()
        self._problems: list[str] = []
        # By address: variables are slow to compare.
        self._shapes: dict[int, tuple[ir.Var, list[tuple[Any, int | None]]]] = {}
        self._ignored = {hash(buffer): buffer for buffer in ignored}

    def check(self, func: tirx.PrimFunc) -> list[str]:
        self.rewrite(func.body)
        return list(dict.fromkeys(self._problems))

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        # The body of a loop without iterations is never reached.
        extent = constant(loop.extent)
        is_empty = self.analyzer.can_prove(loop.extent <= 0) if extent is None else extent <= 0
        return loop if is_empty else super().visit_for(loop)

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        # The range holds for what memory is read for, too.
        if ir.is_prim_expr(bind.value) and "int" in str(bind.value.ty.dtype):
            bounds = self.analyzer.const_int_bound(bind.value)
            self.analyzer.update(bind.var, bounds, override=True)
        return super().visit_bind(bind)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        self._visit_cases(branch.condition, branch.then_case, branch.else_case)
        return branch

    def visit_call(self, node: ir.Call) -> ir.Expr:
        op = operator_of(node)
        if op is not None:
            for operand in [*op.reads(), *op.writes()]:
                self._visit_operand(operand)
            return node
        if is_if_then_else(node):
            self._visit_cases(*node.args)
            return node
        copy = issued(node)
        if copy is not None and copy.fills:
            self.mutate(copy.operands[0])
            return node
        return self.descend(node)

    def _visit_cases(
        self, condition: ir.Expr, then_case: ir.Node, else_case: ir.Node | None
    ) -> None:
        self.mutate(condition)
        for case, holds in ((then_case, condition), (else_case, tirx.Not(condition))):
            if case is None or self.analyzer.can_prove(tirx.Not(holds)):
                continue
            with self.assuming(holds):
                self.mutate(case)

    def _visit_operand(self, operand: ir.Expr) -> None:
        if isinstance(operand, ir.TensorRegion):
            ends = [(r.min, r.min + r.extent - 1) for r in operand.region]
            self._note(operand.source, ends, lambda: operand)
        elif isinstance(operand, ir.TensorLoad):
            self.visit_load(operand)

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        self._note(node.source, map(_ends, node.indices), lambda: node)
        return self.descend(node)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        buffer, indices = node.buffer, node.indices
        self._note(buffer, map(_ends, indices), lambda: tirx.BufferLoad(buffer, indices))
        return self.descend(node)

    def _note(
        self, buffer: ir.Var, ends: Iterable[tuple[Any, Any]], access: Callable[[], Any]
    ) -> None:
        """Look at the first and the last index of an access along each axis."""
        if hash(buffer) in self._ignored:
            return
        for (first, last), (extent, size) in zip(ends, self._shape(buffer), strict=True):
            if self._is_inside(first, last, size):
                continue
            if self._is_proven(-1 - first) or self._is_proven(last - extent):
                self._problems.append(f"{describe(access())} lies outside {describe(buffer)}")

    def _shape(self, buffer: ir.Var) -> list[tuple[Any, int | None]]:
        """The extents, and what they are where they are constants."""
        known = self._shapes.get(hash(buffer))
        if known is None:
            known = buffer, [(extent, constant(extent)) for extent in buffer.ty.shape]
            self._shapes[hash(buffer)] = known
        return known[1]

    def _is_inside(self, first: ir.Expr, last: ir.Expr, size: int | None) -> bool:
        """Tell whether bounds say so at once, as they mostly do."""
        if size is None:
            return False
        low = high = self.analyzer.const_int_bound(first)
        if last is not first:
            high = self.analyzer.const_int_bound(last)
        return bool(low.min_value >= 0 and high.max_value < size)

    def _is_proven(self, excess: ir.Expr) -> bool:
        """Tell whether an index is outside; under conditions that exclude each other, nothing is."""
        may_be = self.analyzer.const_int_bound(excess).max_value >= 0
        return may_be and self.analyzer.can_prove(excess >= 0)


def _ends(index: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    if isinstance(index, tirx.Ramp):
        return index.base, index.base + (index.lanes - 1) * index.stride
    return index, index
