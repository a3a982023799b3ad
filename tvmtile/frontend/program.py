"""The program of a trace, completed: its lines, launches and results, and only what is ever reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import ir, tirx
from tvm.tirx.analysis import undefined_vars

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, mapped, nodes_in, walk
from tvmtile.errors import (
    InvalidOperand,
    OutOfBounds,
    SourceLocation,
    SyntaxNotSupported,
)
from tvmtile.frontend.kernel import with_launch
from tvmtile.frontend.large import with_named_parts
from tvmtile.frontend.tracer import Tracer
from tvmtile.ir.operands import describe, literal
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import mentions, replace_loop, retyped, substitute
from tvmtile.ir.spans import location_of

OUT_IDX_ATTR = "tvmtile.out_idx"


# What Relax and dlight look at: a tile program is opaque to fusion (OpPatternKind::kOpaque of TVM's
# relax/op_attr_types.h), and its schedule is its own.
_FOR_SCHEDULERS = {"op_pattern": 8, "tirx.is_scheduled": True}


def completed(func: tirx.PrimFunc, tracer: Tracer) -> tirx.PrimFunc:
    """The program with what only the tracer knows: where its kernels stand, and what it returns."""
    located = with_named_parts(reached(_with_locations(func, tracer)), tracer.sizes)
    _check_variables(located)
    for name, value in {**_FOR_SCHEDULERS, **tracer.attributes}.items():
        located = located.with_attr(name, value)
    return _with_outputs(located, tracer)


def _check_variables(func: tirx.PrimFunc) -> None:
    """Refuse a dynamic extent that no parameter gives."""
    given = [
        expression
        for param in func.params
        if is_buffer_var(param)
        for expression in (*param.ty.shape, *param.ty.strides, param.ty.elem_offset)
    ]
    for variable in undefined_vars(func.body, list(func.params)):
        is_given = any(mentions(expression, variable) for expression in given)
        if not is_given and not is_buffer_var(variable):
            raise InvalidOperand(
                f"no parameter of the kernel gives {variable.name}",
                help="a T.dynamic extent is the extent of a tensor parameter; pass other values as "
                "parameters, e.g. `n: T.int32`",
                location=_first_use(func, variable),
            )


def _first_use(func: tirx.PrimFunc, variable: ir.Var) -> SourceLocation | None:
    nodes: list[Any] = []
    kinds = (ir.TensorLoad, ir.Call, tirx.BufferStore, tirx.For)
    walk(func.body, (kinds, nodes.append))  # what is inside comes first
    uses = (node for node in nodes if mentions(node, variable))
    return next(filter(None, map(location_of, uses)), None)


def _with_locations(func: tirx.PrimFunc, tracer: Tracer) -> tirx.PrimFunc:
    """Give kernels their launch, and what TVM's builder leaves without one its line."""
    from tvmtile.ir.annotations import KERNEL_ANNOTATION
    from tvmtile.ir.options import with_options

    spans, options = iter(tracer.kernel_spans), iter(tracer.kernel_options)
    assertions = iter(tracer.assertion_spans)

    def locate(loop: tirx.For) -> tirx.Stmt:
        if KERNEL_ANNOTATION not in loop.annotations:
            return loop
        located = with_options(replace_loop(loop, span=next(spans)), next(options))
        bound = tracer.launches.get(loop.loop_var)
        return located if bound is None else with_launch(located, bound)

    def locate_allocation(node: tirx.AllocBuffer) -> tirx.AllocBuffer:
        span = tracer.name_spans.get(buffer_of(node))
        return node if span is None else tirx.AllocBuffer(buffer_of(node), node.annotations, span)

    def locate_bind(node: tirx.Bind) -> tirx.Bind:
        span = tracer.name_spans.get(node.var)
        return node if span is None else tirx.Bind(node.var, node.value, span)

    def locate_assertion(node: tirx.AssertStmt) -> tirx.AssertStmt:
        span = next(assertions, None)
        return tirx.AssertStmt(node.condition, node.error_kind, node.message_parts, span)

    located = mapped(
        func.body,
        (tirx.For, locate),
        (tirx.AllocBuffer, locate_allocation),
        (tirx.Bind, locate_bind),
        (tirx.AssertStmt, locate_assertion),
    )
    return func.with_body(located)


def _with_outputs(func: tirx.PrimFunc, tracer: Tracer) -> tirx.PrimFunc:
    """Record which parameters are tensors that the kernel returns."""
    if not tracer.outputs:
        return func
    if len(tracer.returned) != len(tracer.outputs):
        names = ", ".join(str(output.name) for output in tracer.outputs)
        raise SyntaxNotSupported(
            f"not every tensor made by T.empty is returned: {names}",
            help="return them all, in the order in which the caller wants them",
        )
    params = list(func.params)
    positions = [
        next(i for i, p in enumerate(params) if p.same_as(output)) for output in tracer.returned
    ]
    return func.with_attr(OUT_IDX_ATTR, positions)


def reached(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The program without loops of no iteration, grids of no block, and tiles of no element.

    A shape may be 0 when a kernel is built: the grid of a tensor without elements, a tile that this
    configuration does not use. What stands in such a loop or branch may use an element that there is
    not. Where an access remains that only a call decides on, its tile has one element.

    Raises
    ------
    OutOfBounds
        If what remains uses an element that certainly lies outside of its buffer.
    """
    body = mapped(func.body, (tirx.For, _with_iterations), (tirx.IfThenElse, _decided))
    _check_elements(body)
    allocated = [buffer_of(alloc) for alloc in nodes_in(body, tirx.AllocBuffer)]
    empty = [buffer for buffer in allocated if 0 in map(literal, buffer.ty.shape)]
    tiles = {tile: retyped(tile, shape=[_positive(e) for e in tile.ty.shape]) for tile in empty}
    return func.with_body(substitute(body, tiles))


def _with_iterations(loop: tirx.For) -> tirx.Stmt:
    """A loop; of a grid without blocks one that does nothing, so that the program remains one."""
    if literal(loop.extent) != 0:
        return loop
    nothing = tirx.Evaluate(0)
    if loop.thread_binding is None:
        return nothing
    return replace_loop(loop, extent=tirx.const(1, loop.extent.ty.dtype), body=nothing)


def _decided(branch: tirx.IfThenElse) -> tirx.Stmt:
    holds = literal(branch.condition)
    if holds is None:
        return branch
    chosen = branch.then_case if holds else branch.else_case
    return tirx.Evaluate(0) if chosen is None else chosen


def _positive(extent: ir.Expr) -> ir.Expr:
    return tirx.const(1, extent.ty.dtype) if literal(extent) == 0 else extent


def _check_elements(body: tirx.Stmt) -> None:
    """Refuse a constant index that lies outside; an empty tensor may be named by its origin."""
    origins: set[int] = set()

    def note_origins(call: ir.Call) -> None:
        op = operator_of(call)
        operands: list[Any] = [] if op is None or not op.is_tile else [*op.reads(), *op.writes()]
        origins.update(hash(operand) for operand in operands)

    def check_load(load: ir.TensorLoad) -> None:
        _check(load, buffer_of(load), indices_of(load), is_origin=hash(load) in origins)

    def check_store(store: tirx.BufferStore) -> None:
        _check(store, buffer_of(store), indices_of(store))

    walk(
        body,
        (ir.Call, note_origins),
        (ir.TensorLoad, check_load),
        (tirx.BufferStore, check_store),
        order="pre",
    )


def _check(
    access: ir.Node, buffer: ir.Var, indices: Iterable[ir.Expr], is_origin: bool = False
) -> None:
    for axis, (index, extent) in enumerate(zip(indices, buffer.ty.shape, strict=True)):
        value, limit = literal(index), literal(extent)
        if value is None or (is_origin and value == limit == 0):
            continue
        if value < 0 or (limit is not None and value >= limit):
            raise OutOfBounds(
                f"{describe(buffer)} has {extent} elements along axis {axis}; index {value} is outside",
                help="indices run from 0; a constant negative one counts from the end",
                location=location_of(access),
            )
