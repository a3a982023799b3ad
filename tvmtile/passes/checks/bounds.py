"""Accesses of a program that certainly lie outside of what they access."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tvm import ir, tirx
from tvm.sym import ConstIntBound, ProofStrength

from tvmtile._tvm import buffer_of, indices_of, mapped, ranges_of
from tvmtile.ir.asynchronous import issued
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.operands import constant, describe, ends_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.types import is_integer

_MOST_KEPT = 1 << 13

S = TypeVar("S", bound=tirx.Stmt)


class _Sound:
    """Statements in which nothing was found, and what the analyzer was told around each.

    Most passes leave most statements as they are. A node never changes, and keeps its address as long
    as it is kept: by its own address and those of all that was told around it, a statement is known.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)  # none comes twice: other threads look, too
        self._surroundings: dict[tuple[Any, ...], tuple[int, tuple[Any, ...]]] = {}
        self._statements: dict[tuple[int, int], tirx.Stmt] = {}

    def surroundings(self, outer: int, *told: object) -> int:
        """The number of surroundings: others, and what was told there; 0 where nothing was."""
        if len(self._surroundings) >= _MOST_KEPT:
            self._surroundings.clear()
        key = (outer, *map(_identity, told))
        return self._surroundings.setdefault(key, (next(self._numbers), told))[0]

    def has(self, surroundings: int, statement: tirx.Stmt) -> bool:
        """Tell whether nothing was found in a statement, in surroundings of that number."""
        return (surroundings, hash(statement)) in self._statements

    def add(self, surroundings: int, statement: tirx.Stmt) -> None:
        """Note that nothing was found in a statement."""
        if len(self._statements) >= _MOST_KEPT:
            self._statements.clear()
        self._statements[surroundings, hash(statement)] = statement


def _identity(node: Any) -> Any:
    """The address of a node; of a constant, which any pass may make anew, its value."""
    return ("constant", int(node)) if type(node) is tirx.IntImm else hash(node)


_SOUND = _Sound()


class OutsideAccesses(ScopedRewriter):
    """Finds accesses that the analyzer proves to lie outside, in code that may be reached.

    Statements in which nothing was found, and all around which is as it was, are not looked at again.
    """

    def __init__(self, ignored: Iterable[ir.Var] = ()) -> None:
        super().__init__()
        self._problems: list[str] = []
        # By address: variables are slow to compare.
        self._shapes: dict[int, tuple[ir.Var, list[tuple[Any, int | None]]]] = {}
        self._ignored = {hash(buffer): buffer for buffer in ignored}
        self._surroundings = _SOUND.surroundings(0, *self._ignored.values())

    def check(self, func: tirx.PrimFunc) -> list[str]:
        self.rewrite(func.body)
        return list(dict.fromkeys(self._problems))

    # Statements ----------------------------------------------------------------------------------

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        return self._look_once(loop, self._look_at_loop)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        return self._look_once(branch, self._look_at_branch)

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        return self._look_once(node, self.descend)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        return self._look_once(node, self._look_at_store)

    def _look_once(self, statement: S, look: Callable[[S], object]) -> S:
        surroundings, problems = self._surroundings, len(self._problems)
        if not _SOUND.has(surroundings, statement):
            look(statement)
            if len(self._problems) == problems:
                _SOUND.add(surroundings, statement)
        return statement

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        self._surroundings = _SOUND.surroundings(self._surroundings, bind.var, bind.value)
        # The range holds for what memory is read for, too.
        if is_integer(bind.value):
            bounds = self.analyzer.const_int_bound(bind.value)
            self.analyzer.update(bind.var, bounds, override=True)
        return super().visit_bind(bind)

    def _look_at_loop(self, loop: tirx.For) -> None:
        with self._where(loop.extent > 0, loop.loop_var, loop.min, loop.extent):
            self.descend_loop(loop)

    def _look_at_branch(self, branch: tirx.IfThenElse) -> None:
        self._visit_cases(branch.condition, branch.then_case, branch.else_case)

    def _visit_cases(
        self, condition: ir.Expr, then_case: ir.Node, else_case: ir.Node | None
    ) -> None:
        self.mutate(condition)
        with self._where(condition, condition), self.assuming(condition):
            self.mutate(then_case)
        if else_case is not None:
            otherwise = tirx.Not(condition)
            with self._where(otherwise, None, condition), self.assuming(otherwise):
                self.mutate(else_case)

    @contextmanager
    def _where(self, holds: Any, *told: object) -> Iterator[None]:
        """Look at what stands where something holds; what is found there, if that may be.

        The analyzer is asked only where something is found: seldom, and it takes long.
        """
        outer, problems = self._surroundings, len(self._problems)
        self._surroundings = _SOUND.surroundings(outer, *told)
        yield
        self._surroundings = outer
        if len(self._problems) > problems and self._never(holds):
            del self._problems[problems:]

    def _never(self, holds: ir.Expr) -> bool:
        """Tell whether a condition never holds, as `n - i < 1` in a loop over `range(n)`."""
        never = self.analyzer.simplify(tirx.Not(holds))
        return self.analyzer.can_prove(never, ProofStrength.SYMBOLIC_BOUND)

    # Accesses ------------------------------------------------------------------------------------

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

    def _visit_operand(self, operand: ir.Expr) -> None:
        if type(operand) is ir.TensorRegion:
            ends = [(r.min, r.min + r.extent - 1) for r in ranges_of(operand)]
            self._note(buffer_of(operand), ends, lambda: operand)
        elif type(operand) is ir.TensorLoad:
            self.visit_load(operand)

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        self._note(buffer_of(node), map(ends_of, indices_of(node)), lambda: node)
        return self.descend(node)

    def _look_at_store(self, node: tirx.BufferStore) -> None:
        buffer, indices = buffer_of(node), indices_of(node)
        self._note(buffer, map(ends_of, indices), lambda: tirx.BufferLoad(buffer, indices))
        self.descend(node)

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
        low = high = self._bound(first, size)
        if last is not first:
            high = self._bound(last, size)
        return bool(low.min_value >= 0 and high.max_value < size)

    def _bound(self, index: ir.Expr, size: int) -> ConstIntBound:
        bound = self.analyzer.const_int_bound(index)
        if bound.min_value >= 0 and bound.max_value < size:
            return bound
        bounded = mapped(index, (tirx.BitwiseXor, self._bounded))
        return bound if bounded.same_as(index) else self.analyzer.const_int_bound(bounded)

    def _bounded(self, swizzled: tirx.BitwiseXor) -> ir.Expr:
        """A variable with the range of a swizzle: TVM knows none of an exclusive or."""
        sides = [self.analyzer.const_int_bound(side) for side in (swizzled.a, swizzled.b)]
        if any(side.min_value < 0 for side in sides):
            return swizzled
        bits = max(int(side.max_value).bit_length() for side in sides)
        result = ir.Var("swizzled", swizzled.ty)
        self.analyzer.update(result, ConstIntBound(0, (1 << bits) - 1))
        return result

    def _is_proven(self, excess: ir.Expr) -> bool:
        """Tell whether an index is outside; under conditions that exclude each other, nothing is."""
        may_be = self.analyzer.const_int_bound(excess).max_value >= 0
        return may_be and self.analyzer.can_prove(excess >= 0)
