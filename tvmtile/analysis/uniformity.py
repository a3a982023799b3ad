"""What differs from thread to thread of a block, and what a block does once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var, walk
from tvmtile.analysis.aliases import Aliases
from tvmtile.ir.kernels import is_loop_exit, is_parallel, statements_of
from tvmtile.ir.operands import buffer_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import has_effect, variables_of
from tvmtile.ir.scopes import is_private

__all__ = ["ThreadVariance"]


class ThreadVariance:
    """The variables and private arrays of a block whose values differ from thread to thread.

    A value differs if it is made from a thread's index, from another value that differs, or by an
    operation that every thread does for itself. A private array differs if it is stored such a value,
    at an index that differs, or under a condition that differs.

    Parameters
    ----------
    body : Stmt
        What a block does.
    threads : iterable of Var
        The indices of a thread.

    Attributes
    ----------
    root : callable
        Gives the array that a view looks at.
    """

    def __init__(self, body: tirx.Stmt, threads: Iterable[ir.Var]) -> None:
        self.root = Aliases(body).root
        self._variant: set[ir.Var] = set(threads)
        self._variables: dict[Any, tuple[ir.Var, ...]] = {}
        self._effects: dict[Any, bool] = {}
        self._arguments: dict[Any, tuple[ir.Var, ...]] = {}
        self._in_parallel = False
        known = 0
        while known != len(self._variant):
            known = len(self._variant)
            self._visit(body, False)

    def depends(self, node: Any) -> bool:
        """Tell whether a statement or an expression uses something that differs."""
        if node not in self._variables:
            self._variables[node] = tuple(dict.fromkeys(map(self.root, variables_of(node))))
        return any(var in self._variant for var in self._variables[node])

    def differs(self, expression: Any) -> bool:
        """Tell whether an expression may have another value in another thread."""
        # The iterations of T.Parallel are shared out: what one does is done once.
        return self.depends(expression) or (not self._in_parallel and self._does(expression))

    def _does(self, expression: Any) -> bool:
        if expression not in self._effects:
            self._effects[expression] = has_effect(expression)
        return self._effects[expression]

    def is_divergent(self, loop: tirx.For | tirx.While) -> bool:
        """Tell whether threads may go through a loop a different number of times."""
        if isinstance(loop, tirx.While):
            bounds = self.differs(loop.condition)
        else:
            bounds = self.differs(loop.min) or self.differs(loop.extent)
        return bounds or self._leaves_divergently(loop.body, False)

    def ends_divergently(self, loop: tirx.For | tirx.While) -> bool:
        """Tell whether it is by their bounds alone that threads leave a loop at different times."""
        return isinstance(loop, tirx.For) and not self._leaves_divergently(loop.body, False)

    def add(self, *variables: ir.Var) -> None:
        """Take variables for such that differ."""
        self._variant.update(variables)

    def _leaves_divergently(self, stmt: tirx.Stmt, divergent: bool) -> bool:
        if is_loop_exit(stmt):
            return divergent
        if isinstance(stmt, tirx.For | tirx.While):
            return False
        if isinstance(stmt, tirx.IfThenElse):
            divergent = divergent or self.differs(stmt.condition)
        return any(self._leaves_divergently(child, divergent) for child in statements_of(stmt))

    # The fixed point ---------------------------------------------------------------------------

    def _visit(self, stmt: tirx.Stmt, divergent: bool) -> None:
        if isinstance(stmt, tirx.Bind):
            self._mark(stmt.var, self.differs(stmt.value))
        elif isinstance(stmt, tirx.BufferStore):
            differs = any(self.differs(e) for e in (stmt.value, *stmt.indices))
            self._mark_private(stmt.buffer, divergent or differs)
        elif isinstance(stmt, tirx.Evaluate):
            self._visit_call(stmt.value, divergent)
        elif isinstance(stmt, tirx.IfThenElse):
            divergent = divergent or self.differs(stmt.condition)
        elif isinstance(stmt, tirx.For | tirx.While):
            divergent = divergent or self.is_divergent(stmt)
            if isinstance(stmt, tirx.For):
                self._mark(stmt.loop_var, self.differs(stmt.min) or self.differs(stmt.extent))
        outer, self._in_parallel = self._in_parallel, self._in_parallel or is_parallel(stmt)
        for child in statements_of(stmt):
            self._visit(child, divergent)
        self._in_parallel = outer

    def _visit_call(self, call: Any, divergent: bool) -> None:
        op = operator_of(call)
        if op is not None and op.is_tile:
            differs = divergent or self.depends(call)
            for operand in op.writes():
                self._mark_private(buffer_of(operand), differs)
        elif not self._in_parallel and self._does(call):
            # Every thread makes the call, and may write what it is given.
            if call not in self._arguments:
                self._arguments[call] = tuple(dict.fromkeys(_given(call)))
            for given in self._arguments[call]:
                self._mark_private(given, True)

    def _mark(self, var: ir.Var, differs: bool) -> None:
        if differs:
            self._variant.add(var)

    def _mark_private(self, buffer: ir.Var, differs: bool) -> None:
        if is_buffer_var(buffer) and is_private(buffer):
            self._mark(self.root(buffer), differs)


def _given(argument: Any) -> Iterator[ir.Var]:
    """The buffers whose elements or addresses a call gets; what only an index reads is none of them."""
    if isinstance(argument, ir.Call):
        for each in argument.args:
            yield from _given(each)
    elif isinstance(argument, ir.TensorLoad):
        yield argument.source
    elif not ir.is_prim_expr(argument):
        found: list[ir.Var] = []
        walk(argument, (ir.Var, found.append))
        yield from found
