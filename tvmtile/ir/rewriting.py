"""Searching in nodes, and making statements from others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, overload

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import (
    OPAQUE,
    PURE,
    buffer_of,
    buffer_var,
    is_buffer_var,
    mapped,
    nodes_in,
    walk,
    walk_statements,
)
from tvmtile.ir.calls import effect_of
from tvmtile.ir.nodes import cached_per_node

N = TypeVar("N")


@cached_per_node
def reads_no_memory(value: ir.Expr) -> bool:
    """Tell whether an expression keeps its value: it reads no memory, which a store may change."""
    return not contains(value, (ir.TensorLoad, ir.Call), _may_change)


def is_pure(value: ir.Expr) -> bool:
    """Tell whether an expression does nothing but compute, and read memory."""
    return not contains(value, ir.Call, lambda call: effect_of(call) > PURE)


def _may_change(node: Any) -> bool:
    return isinstance(node, ir.TensorLoad) or effect_of(node) > PURE


@cached_per_node
def has_effect(node: ir.Node) -> bool:
    """Tell whether a node has a side effect besides stores, as an atomic does."""
    return contains(node, ir.Call, lambda call: effect_of(call) == OPAQUE)


def contains(
    node: Any, types: type | tuple[type, ...], test: Callable[[Any], Any] = lambda _: True
) -> bool:
    """Tell whether some node of the given types passes a test."""
    found = walk(node, (types, lambda n: _FOUND if test(n) else None), order="pre")
    return found is not None


@lru_cache(maxsize=32)
def _statements(root: Any) -> list[Any]:
    found: list[Any] = []
    walk_statements(root, found.append)
    return found


def statements_in(root: Any, *kinds: type[N]) -> list[N]:
    """The statements of some kinds, or of all, in another one, outer ones first."""
    return [each for each in _statements(root) if not kinds or type(each) in kinds]


def mentions(node: Any, variable: ir.Var) -> bool:
    """Tell whether a variable, or a buffer, is in a statement or an expression."""
    return contains(node, ir.Var, variable.same_as)


_FOUND = tvm_ffi.VisitInterrupt(True)


def variables_of(node: Any) -> list[ir.Var]:
    """The variables in a statement or an expression, once each, in their order."""
    found = nodes_in(node, ir.Var)
    return list({hash(var): var for var in found}.values())  # `==` of variables is an expression


@cached_per_node
def variables_in(node: ir.Node) -> tuple[ir.Var, ...]:
    """The variables in a node of which several passes ask, once each, in their order."""
    return tuple(variables_of(node))


def ranges_in(stmt: tirx.Stmt) -> Analyzer:
    """An analyzer that knows the ranges of the variables of a statement's loops."""
    analyzer = Analyzer()
    for loop in nodes_in(stmt, tirx.For):
        analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    return analyzer


@cached_per_node
def defined_in(node: ir.Node) -> frozenset[ir.Var]:
    """The variables that a statement or an expression defines: loops', names, and buffers."""
    return frozenset(
        [
            *(loop.loop_var for loop in statements_in(node, tirx.For)),
            *(bind.var for bind in statements_in(node, tirx.Bind)),
            *(let.var for let in nodes_in(node, tirx.Let)),
            *map(buffer_of, statements_in(node, tirx.AllocBuffer, tirx.DeclBuffer)),
        ]
    )


@overload
def substitute(node: ir.Var, values: dict[ir.Var, Any]) -> Any: ...
@overload
def substitute(node: N, values: dict[ir.Var, Any]) -> N: ...
def substitute(node: Any, values: dict[ir.Var, Any]) -> Any:
    """Replace variables by expressions, or buffers by buffers."""
    if not values or isinstance(node, tirx.IntImm):
        return node
    return mapped(node, (ir.Var, lambda var: values.get(var, var)))


def retyped(buffer: ir.Var, **changes: object) -> ir.Var:
    """A buffer like another one, with some of the fields of its type, or its name, replaced.

    One of another shape is row-major, where neither layout nor strides are given.
    """
    ty = buffer.ty
    reshaped = "shape" in changes
    fields = {
        "name": buffer.name,
        "shape": ty.shape,
        "dtype": str(ty.dtype),
        "strides": None if reshaped else ty.strides,
        "elem_offset": ty.elem_offset,
        "scope": ty.storage_scope,
        "data_alignment": ty.data_alignment,
        "offset_factor": ty.offset_factor,
        "layout": "default" if reshaped else ty.layout,
        **changes,
    }
    return tirx.decl_buffer(**fields, span=buffer.span)


def with_fresh_variables(statement: tirx.Stmt) -> tirx.Stmt:
    """A copy whose loops, bindings and allocations define variables of their own."""
    return substitute(
        statement,
        {
            var: (buffer_var if is_buffer_var(var) else ir.Var)(var.name, var.ty)
            for var in defined_in(statement)
        },
    )


def seq(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement for several; nothing is an empty evaluation."""
    flat: list[tirx.Stmt] = []
    for statement in statements:
        flat.extend(statement.seq[:] if type(statement) is tirx.SeqStmt else [statement])
    if not flat:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def for_loop(
    var: ir.Var, extent: Any, body: tirx.Stmt, kind: tirx.ForKind = tirx.ForKind.SERIAL
) -> tirx.For:
    """A loop from 0 to `extent`."""
    count = tirx.const(extent, str(var.ty.dtype)) if isinstance(extent, int) else extent
    return tirx.For(var, tirx.const(0, str(var.ty.dtype)), count, kind, body)


def launch_loop(
    var: ir.Var,
    extent: Any,
    tag: str,
    body: tirx.Stmt,
    annotations: Any = None,
    span: ir.Span | None = None,
) -> tirx.For:
    """A loop over an axis of a launch, such as `blockIdx.x`."""
    binding = tirx.IterVar(None, tirx.Var("", var.ty), tirx.IterVar.ThreadIndex, tag)
    kind = tirx.ForKind.THREAD_BINDING
    return tirx.For(var, 0, extent, kind, body, binding, annotations, None, span)


def nest(
    extents: Sequence[Any],
    body: Callable[[list[ir.Var]], tirx.Stmt],
    kind: tirx.ForKind = tirx.ForKind.PARALLEL,
) -> tirx.Stmt:
    """Nested loops over `extents`, whose body is made from their variables."""
    variables = [tirx.Var("ijklmnpq"[axis % 8], "int32") for axis in range(len(extents))]
    statement = body(variables)
    for var, extent in reversed(list(zip(variables, extents, strict=True))):
        statement = for_loop(var, extent, statement, kind)
    return statement


def replace_loop(loop: tirx.For, **changes: Any) -> tirx.For:
    """A copy of a loop with some of its fields replaced."""
    fields = {
        name: changes.get(name, getattr(loop, name))
        for name in (
            "loop_var",
            "min",
            "extent",
            "kind",
            "body",
            "thread_binding",
            "annotations",
            "step",
            "span",
        )
    }
    return tirx.For(**fields)
