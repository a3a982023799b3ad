"""StoreNamesOnCpu: the values of names that TVM would multiply are kept in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import Mutator, mutated, nodes_in
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.divisions import is_division
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, has_effect, seq, substitute

_LIMIT = 1000
"""What putting values in the places of their names may cost (`_cost`): more takes seconds."""


@prim_func_pass("StoreNamesOnCpu", requires=(Property.HOST_MEMORY,))
def StoreNamesOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Store what names of expressions (`T.Let`) and lines stand for, where too many are in one another.

    TVM's generator for LLVM tells its analyzer what each name stands for, which then puts that in every
    place of the name. Each conversion to bfloat16 names its bits and uses them four times: 4**n copies
    where n of them follow one another. What is loaded from memory has no value that the analyzer knows;
    LLVM makes registers of it again. A choice with names in it becomes a branch.
    """
    uses = Counter(nodes_in(func.body, ir.Var))
    costs: dict[ir.Var, int] = {}

    def visit_for(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        is_vector = loop.kind == tirx.ForKind.VECTORIZED  # its names have a lane for each iteration
        return loop if is_vector else mutator.default_mutate(loop)

    def visit(statement: Any, _: Mutator) -> tirx.Stmt:
        stored = _stored(statement, uses)
        if not isinstance(statement, tirx.Bind) or stored is not statement:
            return stored
        cost = _cost_of_value(costs, statement.value)
        is_kept = cost > _LIMIT and _is_scalar(statement.value)
        costs[statement.var] = 1 if is_kept else cost
        return _kept(statement) if is_kept else statement

    statements = (tirx.BufferStore, tirx.Bind, tirx.Evaluate)
    return with_body(func, mutated(func.body, (tirx.For, visit_for), (statements, visit)))


def _stored(statement: tirx.Stmt, uses: Counter[ir.Var]) -> tirx.Stmt:
    """A statement, behind those that store what the names in its expression stand for."""
    if not contains(statement, tirx.Let):
        return statement
    times = uses[statement.var] if isinstance(statement, tirx.Bind) else 1
    if _cost(statement) * times <= _LIMIT:
        return statement
    return _Storer().stored(statement)


def _kept(bind: tirx.Bind) -> tirx.Stmt:
    """The name of what is loaded, instead of what is stored before."""
    kept, load = _variable(bind.var.name, bind.value)
    stores = [tirx.AllocBuffer(kept), tirx.BufferStore(kept, bind.value, [0])]
    return seq([*stores, tirx.Bind(bind.var, load, bind.span)])


class _Storer:
    """Takes the names out of the expressions of one statement."""

    def __init__(self) -> None:
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
        if not _is_scalar(let.value) or has_effect(let.value):
            return substitute(let, self._loads)
        value = mutator.mutate(let.value)
        kept, load = _variable(let.var.name, value)
        self._before += [tirx.AllocBuffer(kept), tirx.BufferStore(kept, value, [0])]
        self._loads[let.var] = load
        return mutator.mutate(let.body)

    def _visit_call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        if not is_if_then_else(call):
            return mutator.default_mutate(call)
        if not contains(call, tirx.Let) or not _is_scalar(call) or has_effect(call):
            return substitute(call, self._loads)
        condition, *cases = call.args
        condition = mutator.mutate(condition)
        kept, load = _variable("value", call)
        then_case, else_case = (self._assigned(kept, case, mutator) for case in cases)
        chosen = tirx.IfThenElse(condition, then_case, else_case)
        self._before += [tirx.AllocBuffer(kept), chosen]
        return load

    def _assigned(self, kept: ir.Var, case: ir.Expr, mutator: Mutator) -> tirx.Stmt:
        """The statements that store one value of a choice, which run only where it is taken."""
        outer, self._before = self._before, []
        value = mutator.mutate(case)
        inner, self._before = self._before, outer
        return seq([*inner, tirx.BufferStore(kept, value, [0])])


def _variable(name: str, value: Any) -> tuple[ir.Var, Any]:
    """A variable for a value, and what loads it."""
    kept = tirx.decl_buffer((1,), str(value.ty.dtype), name=name, scope="global")
    return kept, tirx.BufferLoad(kept, [0])


def _is_scalar(value: ir.Expr) -> bool:
    return ir.is_prim_expr(value) and int(DataType(str(value.ty.dtype)).lanes) == 1


def _cost(statement: tirx.Stmt) -> int:
    """How much comes of putting values in the places of their names: copies, each choice twice.

    TVM simplifies what stands in a choice once for each of its outcomes.
    """
    costs: dict[ir.Var, int] = {}

    def visit(let: tirx.Let, mutator: Mutator) -> ir.Expr:
        mutator.mutate(let.value)
        costs[let.var] = _cost_of_value(costs, let.value)
        mutator.mutate(let.body)
        return let

    mutated(statement, (tirx.Let, visit))
    return _sum_of(costs, statement)


def _cost_of_value(costs: Mapping[ir.Var, int], value: ir.Expr) -> int:
    return max(1, _sum_of(costs, value)) << _choices_in(value)


def _sum_of(costs: Mapping[ir.Var, int], node: ir.Node) -> int:
    """What the names in a node cost."""
    return sum(costs.get(var, 0) for var in nodes_in(node, ir.Var))


def _choices_in(value: ir.Expr) -> int:
    """How many choices there are; TVM makes four of a division that rounds down."""
    choices = nodes_in(value, (tirx.Select, ir.Call))
    divisions = [d for d in nodes_in(value, (tirx.FloorDiv, tirx.FloorMod)) if is_division(d)]
    return sum(isinstance(c, tirx.Select) or is_if_then_else(c) for c in choices) + 4 * len(
        divisions
    )
