"""SpillNestedLets: the values of names that TVM would multiply are kept in memory."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated, nodes_in
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.kernels import with_body
from tvmtile.ir.name_costs import NameCosts
from tvmtile.ir.operands import is_scalar
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, has_effect, seq, substitute

_MOST_COPIES = 1000
"""More takes seconds."""


@prim_func_pass("SpillNestedLets")
def SpillNestedLets(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Store what names of expressions (`T.Let`) and lines stand for, where too many are in one another.

    TVM's generator for LLVM tells its analyzer what each name stands for, which then puts that in every
    place of the name. Each conversion to bfloat16 names its bits and uses them four times: 4**n copies
    where n of them follow one another. TVM's SplitHostDevice does the same with the names of a GPU's
    kernel. What is loaded from memory has no value that they know; the compilers of machine code make
    registers of it again. A choice with names in it becomes a branch.
    """
    on_cpu = func.attrs["target"].kind.name == "llvm"
    scope = "global" if on_cpu else "local"
    has_lets = contains(func.body, tirx.Let)
    uses = Counter(nodes_in(func.body, ir.Var)) if has_lets else Counter()
    costs = NameCosts(_MOST_COPIES, choices=on_cpu)
    vectorized: list[tuple[tirx.For, list[tirx.Stmt]]] = []  # the loop around, and its allocations

    def visit_for(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return mutator.default_mutate(loop)
        vectorized.append((loop, []))
        rewritten = mutator.default_mutate(loop)
        return seq([*vectorized.pop()[1], rewritten])

    def visit(statement: Any, _: Mutator) -> tirx.Stmt:
        if vectorized and not isinstance(statement, tirx.Bind):
            return statement
        stored = _stored(statement, uses, scope) if has_lets and not vectorized else statement
        if not isinstance(statement, tirx.Bind) or stored is not statement:
            return stored
        if not (is_scalar(statement.value) and costs.note(statement.var, statement.value)):
            return statement
        loop, allocations = vectorized[-1] if vectorized else (None, [])
        kept = _variable(statement.var.name, statement.value, scope, loop)
        allocations.append(tirx.AllocBuffer(kept))
        place = [0 if loop is None else loop.loop_var - loop.min]
        load = tirx.Bind(statement.var, tirx.BufferLoad(kept, place), statement.span)
        store = tirx.BufferStore(kept, statement.value, place)
        return seq([*(allocations if loop is None else ()), store, load])

    statements = (tirx.BufferStore, tirx.Bind, tirx.Evaluate)
    return with_body(func, mutated(func.body, (tirx.For, visit_for), (statements, visit)))


def _stored(statement: tirx.Stmt, uses: Counter[ir.Var], scope: str) -> tirx.Stmt:
    """A statement, behind those that store what the names in its expression stand for."""
    if not contains(statement, tirx.Let):
        return statement
    times = uses[statement.var] if isinstance(statement, tirx.Bind) else 1
    if _costs_of_names_in(statement).copies_in(statement) * times <= _MOST_COPIES:
        return statement
    return _Storer(scope).stored(statement)


class _Storer:
    """Takes the names out of the expressions of one statement."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._before: list[tirx.Stmt] = []
        self._loads: dict[ir.Var, ir.Expr] = {}

    def stored(self, statement: tirx.Stmt) -> tirx.Stmt:
        rewritten = mutated(
            statement,
            (tirx.Let, self._visit_let),
            (ir.Call, self._visit_call),
            ((tirx.And, tirx.Or), lambda node, _: substitute(node, self._loads)),
            (ir.Var, lambda var, _: self._loads.get(var, var)),
        )
        return seq([*self._before, rewritten])

    def _visit_let(self, let: tirx.Let, mutator: Mutator) -> ir.Expr:
        if not is_scalar(let.value) or has_effect(let.value):
            return substitute(let, self._loads)
        value = mutator.mutate(let.value)
        kept = _variable(let.var.name, value, self._scope)
        self._before += [tirx.AllocBuffer(kept), tirx.BufferStore(kept, value, [0])]
        self._loads[let.var] = tirx.BufferLoad(kept, [0])
        return mutator.mutate(let.body)

    def _visit_call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        if not is_if_then_else(call):
            return mutator.default_mutate(call)
        if not contains(call, tirx.Let) or not is_scalar(call) or has_effect(call):
            return substitute(call, self._loads)
        condition, *cases = call.args
        condition = mutator.mutate(condition)
        kept = _variable("value", call, self._scope)
        then_case, else_case = (self._assigned(kept, case, mutator) for case in cases)
        chosen = tirx.IfThenElse(condition, then_case, else_case)
        self._before += [tirx.AllocBuffer(kept), chosen]
        return tirx.BufferLoad(kept, [0])

    def _assigned(self, kept: ir.Var, case: ir.Expr, mutator: Mutator) -> tirx.Stmt:
        """The statements that store one value of a choice, which run only where it is taken."""
        outer, self._before = self._before, []
        value = mutator.mutate(case)
        inner, self._before = self._before, outer
        return seq([*inner, tirx.BufferStore(kept, value, [0])])


def _variable(name: str, value: Any, scope: str, loop: tirx.For | None = None) -> ir.Var:
    """A variable for a value, of each iteration of a vectorized loop."""
    shape = (1 if loop is None else loop.extent,)
    return tirx.decl_buffer(shape, str(value.ty.dtype), name=name, scope=scope)


def _costs_of_names_in(statement: tirx.Stmt) -> NameCosts:
    costs = NameCosts(math.inf, math.inf)  # none of them stays where it is

    def visit(let: tirx.Let, mutator: Mutator) -> ir.Expr:
        mutator.mutate(let.value)
        costs.note(let.var, let.value)
        mutator.mutate(let.body)
        return let

    mutated(statement, (tirx.Let, visit))
    return costs
