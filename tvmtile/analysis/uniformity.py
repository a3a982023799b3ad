"""Which values of a block diverge from thread to thread, and what a block does once."""

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
    """The variables and private arrays of a block whose values diverge between its threads.

    A value diverges if it is computed from a thread's index, from another divergent value, or by an
    operation that every thread does for itself. A private array diverges if a divergent value is stored
    to it, or any value at a divergent index or under a divergent condition.

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
        """Tell whether a statement or an expression uses a divergent value."""
        if node not in self._variables:
            self._variables[node] = tuple(dict.fromkeys(map(self.root, variables_of(node))))
        return any(var in self._variant for var in self._variables[node])

    def may_diverge(self, expression: Any) -> bool:
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
            bounds = self.may_diverge(loop.condition)
        else:
            bounds = self.may_diverge(loop.min) or self.may_diverge(loop.extent)
        return bounds or self._leaves_divergently(loop.body, False)

    def ends_divergently(self, loop: tirx.For | tirx.While) -> bool:
        """Tell whether it is by their bounds alone that threads leave a loop at different times."""
        return isinstance(loop, tirx.For) and not self._leaves_divergently(loop.body, False)

    def add(self, *variables: ir.Var) -> None:
        """Mark variables as divergent."""
        self._variant.update(variables)

    def _leaves_divergently(self, stmt: tirx.Stmt, divergent: bool) -> bool:
        if is_loop_exit(stmt):
            return divergent
        if isinstance(stmt, tirx.For | tirx.While):
            return False
        if isinstance(stmt, tirx.IfThenElse):
            divergent = divergent or self.may_diverge(stmt.condition)
        return any(self._leaves_divergently(child, divergent) for child in statements_of(stmt))

    # The fixed point ---------------------------------------------------------------------------

    def _visit(self, stmt: tirx.Stmt, divergent: bool) -> None:
        if isinstance(stmt, tirx.Bind):
            self._mark(stmt.var, self.may_diverge(stmt.value))
        elif isinstance(stmt, tirx.BufferStore):
            diverges = any(self.may_diverge(e) for e in (stmt.value, *stmt.indices))
            self._mark_private(stmt.buffer, divergent or diverges)
        elif isinstance(stmt, tirx.Evaluate):
            self._visit_call(stmt.value, divergent)
        elif isinstance(stmt, tirx.IfThenElse):
            divergent = divergent or self.may_diverge(stmt.condition)
        elif isinstance(stmt, tirx.For | tirx.While):
            divergent = divergent or self.is_divergent(stmt)
            if isinstance(stmt, tirx.For):
                self._mark(
                    stmt.loop_var, self.may_diverge(stmt.min) or self.may_diverge(stmt.extent)
                )
        outer, self._in_parallel = self._in_parallel, self._in_parallel or is_parallel(stmt)
        for child in statements_of(stmt):
            self._visit(child, divergent)
        self._in_parallel = outer

    def _visit_call(self, call: Any, divergent: bool) -> None:
        op = operator_of(call)
        if op is not None and op.is_tile:
            diverges = divergent or self.depends(call)
            for operand in op.writes():
                self._mark_private(buffer_of(operand), diverges)
        elif not self._in_parallel and self._does(call):
            # Every thread makes the call, and may write what it is given.
            if call not in self._arguments:
                self._arguments[call] = tuple(dict.fromkeys(_given(call)))
            for given in self._arguments[call]:
                self._mark_private(given, True)

    def _mark(self, var: ir.Var, diverges: bool) -> None:
        if diverges:
            self._variant.add(var)

    def _mark_private(self, buffer: ir.Var, diverges: bool) -> None:
        if is_buffer_var(buffer) and is_private(buffer):
            self._mark(self.root(buffer), diverges)


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
