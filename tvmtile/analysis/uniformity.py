"""Which values of a block diverge from thread to thread, and what a block does once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var, walk
from tvmtile.analysis.aliases import Aliases
from tvmtile.ir.kernels import is_parallel, leaves_loop, statements_of
from tvmtile.ir.operands import buffer_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import has_effect, variables_of
from tvmtile.ir.scopes import is_private

__all__ = ["ThreadVariance"]

_EFFECT = 0
"""Stands for what every thread does for itself among the sources of a value."""


class ThreadVariance:
    """The variables and private arrays of a block whose values diverge between its threads.

    A value diverges if it is computed from a thread's index, from another divergent value, or by an
    operation that every thread does for itself. A private array diverges if a divergent value is stored
    to it, or any value at a divergent index or under a divergent condition.

    The statements are visited once, for a graph of what flows where; divergence spreads along it from
    the indices of the threads. Its nodes are addresses of variables, and numbers for conditions.

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
        self._divergent: set[int] = set()
        self._flows: defaultdict[int, list[int]] = defaultdict(list)
        self._names: dict[int, tuple[Any, list[int]]] = {}  # by address; keeps the node alive
        self._conditions = 0
        self._visit(body, [], in_parallel=False)
        self._spread([_EFFECT, *map(hash, threads)])

    def depends(self, node: Any) -> bool:
        """Tell whether a statement or an expression uses a divergent value."""
        return not self._divergent.isdisjoint(self._names_in(node))

    def may_diverge(self, expression: Any) -> bool:
        """Tell whether an expression may have another value in another thread."""
        return self.depends(expression) or self.acts(expression)

    def acts(self, expression: Any) -> bool:
        """Tell whether threads may get different values of an expression of uniform operands."""
        return has_effect(expression)

    def is_divergent(self, loop: tirx.For | tirx.While) -> bool:
        """Tell whether threads may go through a loop a different number of times."""
        return any(map(self.may_diverge, _decisions(loop)))

    def ends_divergently(self, loop: tirx.For | tirx.While) -> TypeGuard[tirx.For]:
        """Tell whether it is by their bounds alone that threads leave a loop at different times."""
        exits = _conditions_of_exits(loop.body)
        return isinstance(loop, tirx.For) and not any(map(self.may_diverge, exits))

    def add(self, *variables: ir.Var) -> None:
        """Mark variables as divergent."""
        self._spread(map(hash, variables))

    def _names_in(self, node: Any) -> list[int]:
        known = self._names.get(hash(node))
        if known is None:
            known = node, [hash(self.root(var)) for var in variables_of(node)]
            self._names[hash(node)] = known
        return known[1]

    # The graph ---------------------------------------------------------------------------------

    def _spread(self, nodes: Iterable[int]) -> None:
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node not in self._divergent:
                self._divergent.add(node)
                pending += self._flows.get(node, ())

    def _flow(self, sources: Iterable[int], target: int) -> None:
        for source in sources:
            self._flows[source].append(target)

    def _sources(self, expressions: Any, *, in_parallel: bool) -> list[int]:
        """The nodes that an expression, or some of them, diverge with."""
        sources = [hash(self.root(var)) for var in variables_of(expressions)]
        # The iterations of T.Parallel are distributed: what one does is done once.
        return sources if in_parallel or not self.acts(expressions) else [*sources, _EFFECT]

    def _visit(self, stmt: Any, guards: list[int], *, in_parallel: bool) -> None:
        def sources(expressions: Any) -> list[int]:
            return self._sources(expressions, in_parallel=in_parallel)

        kind = type(stmt)
        if kind is tirx.Bind:
            self._flow(sources(stmt.value), hash(stmt.var))
        elif kind is tirx.BufferStore:
            if is_private(stmt.buffer):
                self._flow_into(stmt.buffer, [*guards, *sources([stmt.value, *stmt.indices[:]])])
        elif kind is tirx.Evaluate:
            self._visit_call(stmt.value, guards, in_parallel=in_parallel)
        elif kind is tirx.IfThenElse:
            guards = self._guarded(guards, sources(stmt.condition))
        elif kind is tirx.For or kind is tirx.While:
            guards = self._guarded(guards, sources(_decisions(stmt)))
            if kind is tirx.For:
                self._flow(sources([stmt.min, stmt.extent]), hash(stmt.loop_var))
        in_parallel = in_parallel or is_parallel(stmt)
        for child in statements_of(stmt):
            self._visit(child, guards, in_parallel=in_parallel)

    def _guarded(self, guards: list[int], sources: list[int]) -> list[int]:
        """A node that diverges where a statement under a further condition does."""
        self._conditions -= 1
        self._flow([*guards, *sources], self._conditions)
        return [self._conditions]

    def _visit_call(self, call: Any, guards: list[int], *, in_parallel: bool) -> None:
        op = operator_of(call)
        if op is not None and op.is_tile:
            for operand in op.writes():
                self._flow_into(buffer_of(operand), [*guards, *self._names_in(call)])
        elif not in_parallel and has_effect(call):
            # Every thread makes the call, and may write what it is given.
            for given in _given(call):
                self._flow_into(given, [_EFFECT])

    def _flow_into(self, buffer: ir.Var, sources: list[int]) -> None:
        if sources and is_buffer_var(buffer) and is_private(buffer):
            self._flow(sources, hash(self.root(buffer)))


def _decisions(loop: tirx.For | tirx.While) -> list[Any]:
    """The expressions that decide how often a loop runs."""
    bounds = [loop.min, loop.extent] if isinstance(loop, tirx.For) else [loop.condition]
    return [*bounds, *(_conditions_of_exits(loop.body) if leaves_loop(loop.body) else ())]


def _conditions_of_exits(stmt: tirx.Stmt) -> list[Any]:
    """The conditions under which a statement leaves the loop around it."""
    if isinstance(stmt, tirx.For | tirx.While) or not leaves_loop(stmt):
        return []
    own = [stmt.condition] if isinstance(stmt, tirx.IfThenElse) else []
    return own + [c for child in statements_of(stmt) for c in _conditions_of_exits(child)]


def _given(argument: Any) -> Iterator[ir.Var]:
    """The buffers whose elements or addresses a call gets; what only an index reads is none of them."""
    if isinstance(argument, ir.Call):
        for each in argument.args[:]:
            yield from _given(each)
    elif isinstance(argument, ir.TensorLoad):
        yield argument.source
    elif not ir.is_prim_expr(argument):
        found: list[ir.Var] = []
        walk(argument, (ir.Var, found.append))
        yield from found
