"""Vectorized moves of contiguous elements, 4, 8 or 16 bytes a thread.

Elements narrower than 4 bytes move as words: TVM's generators for GPUs have vectors of at most four
lanes, and none of bfloat16. What is computed with them is computed element by element, in registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.kernels import flattened
from tvmtile.ir.rewriting import (
    contains,
    for_loop,
    mentions,
    reads_no_memory,
    seq,
    substitute,
    with_fresh_variables,
)
from tvmtile.ir.scopes import is_in_registers
from tvmtile.ir.spans import span_within
from tvmtile.passes.gpu.vector_moves import LARGEST, Moves, takes_places, without_lane


def vectorized(variable: ir.Var, extent: int, body: tirx.Stmt, analyzer: Analyzer) -> tirx.Stmt:
    """A loop over contiguous elements as vector moves around an unrolled loop that computes."""
    invariant, body = _without_invariant_names(variable, _with_places_inlined(body))
    if invariant:
        return seq([*invariant, vectorized(variable, extent, body, analyzer)])
    condition, body = without_invariant(variable, extent, body, analyzer)
    if condition is not None:
        return tirx.IfThenElse(condition, vectorized(variable, extent, body, analyzer), None)
    choice = _choice(body)
    if choice is not None:
        condition = _same_for_all(choice.condition, variable, extent, analyzer)
    if choice is not None and condition is not None:
        assert choice.else_case is not None, "without_invariant has taken the others"
        then_case = vectorized(variable, extent, choice.then_case, analyzer)
        else_case = vectorized(variable, extent, choice.else_case, analyzer)
        return tirx.IfThenElse(condition, then_case, with_fresh_variables(else_case), choice.span)
    moves = Moves(variable, extent, analyzer, span_within(body))
    together = moves.of_operator(body)
    if together is not None:
        return together
    for load in _loads_in(body):
        moves.add_load(load)
    if isinstance(body, tirx.BufferStore) and len(moves.loaded) == 1:
        direct = moves.direct(body)
        if direct is not None:
            return direct
    *names, last = flattened(moves.with_loads_replaced(body))
    if isinstance(last, tirx.BufferStore) and _is_stored_once(body) and _is_known(last, body):
        last = moves.with_store_replaced(last)
    loop = for_loop(variable, extent, seq([*names, last]), tirx.ForKind.UNROLLED)
    return seq([*moves.before, loop, *moves.after])


def without_invariant(
    variable: ir.Var, extent: int, body: tirx.Stmt, analyzer: Analyzer
) -> tuple[Any, tirx.Stmt]:
    """The loop-invariant condition of an iteration, or None, and the rest of it."""
    if not isinstance(body, tirx.IfThenElse) or body.else_case is not None:
        return None, body
    outside: list[ir.Expr] = []
    inside: list[ir.Expr] = []
    for part in conjuncts(body.condition):
        invariant = _same_for_all(part, variable, extent, analyzer)
        (inside if invariant is None else outside).append(part if invariant is None else invariant)
    if not outside:
        return None, body
    if not inside:
        return tirx.all(*outside), body.then_case
    return tirx.all(*outside), tirx.IfThenElse(tirx.all(*inside), body.then_case, None, body.span)


def _same_for_all(
    condition: ir.Expr, variable: ir.Var, extent: int, analyzer: Analyzer
) -> ir.Expr | None:
    """A condition without the variable, if it is the same for all its values; None otherwise.

    `tx % 8 * 8 + i < 16` is `tx % 8 < 2` for eight elements in a row.
    """
    if not reads_no_memory(condition):
        return None
    condition = without_lane(condition, variable, extent, analyzer)
    if not mentions(condition, variable):
        return condition
    if extent > LARGEST:
        return None
    dtype = str(variable.ty.dtype)

    def at(value: int) -> ir.Expr:
        return analyzer.simplify(substitute(condition, {variable: tirx.const(value, dtype)}))

    first = at(0)
    # The last one is the likeliest to differ.
    others = (at(value) for value in range(extent - 1, 0, -1))
    return first if all(tvm_ffi.structural_equal(first, other) for other in others) else None


def _choice(body: tirx.Stmt) -> tirx.IfThenElse | None:
    """An iteration that stores one of two values, as a branch with two stores."""
    if isinstance(body, tirx.IfThenElse):
        return body
    if not isinstance(body, tirx.BufferStore) or not is_if_then_else(body.value):
        return None
    condition, *values = body.value.args
    then_case, else_case = (
        tirx.BufferStore(buffer_of(body), value, indices_of(body), span=body.span)
        for value in values
    )
    return tirx.IfThenElse(condition, then_case, else_case)


def _with_places_inlined(body: tirx.Stmt) -> tirx.Stmt:
    """An iteration with the names of computed integers and conditions inlined."""
    values: dict[ir.Var, ir.Expr] = {}
    rest: list[tirx.Stmt] = []
    for stmt in flattened(body):
        written = substitute(stmt, values)
        if isinstance(written, tirx.Bind) and _is_place(written.value):
            values[written.var] = written.value
        else:
            rest.append(written)
    return seq(rest)


def _is_place(value: ir.Expr) -> bool:
    dtype = str(value.ty.dtype)
    return dtype.startswith(("int", "bool")) and not contains(value, (ir.TensorLoad, ir.Call))


def _without_invariant_names(
    variable: ir.Var, body: tirx.Stmt
) -> tuple[list[tirx.Stmt], tirx.Stmt]:
    """The names that an iteration binds to loop-invariant values, and the rest of it."""
    varying = {variable}
    invariant: list[tirx.Stmt] = []
    rest: list[tirx.Stmt] = []
    for stmt in flattened(body):
        if not isinstance(stmt, tirx.Bind):
            rest.append(stmt)
        elif reads_no_memory(stmt.value) and not contains(stmt.value, ir.Var, varying.__contains__):
            invariant.append(stmt)
        else:
            rest.append(stmt)
            varying.add(stmt.var)
    return invariant, seq(rest)


def _is_known(access: ir.TensorLoad | tirx.BufferStore, body: tirx.Stmt) -> bool:
    """Tell whether the place of an access is known before an iteration, which binds no name in it."""
    names = {stmt.var for stmt in flattened(body) if isinstance(stmt, tirx.Bind)}
    return not any(contains(index, ir.Var, names.__contains__) for index in indices_of(access))


def _is_stored_once(body: tirx.Stmt) -> bool:
    """Tell whether an iteration is one store, after names of values that it needs."""
    *names, last = flattened(body)
    return isinstance(last, tirx.BufferStore) and all(isinstance(x, tirx.Bind) for x in names)


def _stores_registers(body: tirx.Stmt) -> bool:
    """Tell whether an iteration is names and stores to registers that it does not load."""
    statements = list(flattened(body))
    if not all(isinstance(x, tirx.Bind | tirx.BufferStore) for x in statements):
        return False
    stored = {buffer_of(x) for x in statements if isinstance(x, tirx.BufferStore)}
    return all(map(is_in_registers, stored)) and not contains(
        body, ir.TensorLoad, lambda load: buffer_of(load) in stored
    )


def _loads_in(body: tirx.Stmt) -> list[ir.TensorLoad]:
    """The unconditional loads of an iteration, at addresses known before the loop.

    None where the body stores to memory more than once: what a later statement loads may be what an
    earlier one has stored.
    """
    if not _is_stored_once(body) and not _stores_registers(body):
        return []
    found: list[ir.TensorLoad] = []

    def call(node: ir.Call, mutator: Mutator) -> ir.Expr:
        is_certain = not is_if_then_else(node) and not takes_places(node)
        return mutator.default_mutate(node) if is_certain else node

    def load(node: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        found.append(node)
        return mutator.default_mutate(node)

    statements: Iterable[Any] = flattened(body)
    for stmt in statements:
        mutated(stmt.value, (ir.Call, call), (ir.TensorLoad, load))
    return [node for node in found if _is_known(node, body)]
