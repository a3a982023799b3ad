"""What of a traced program is ever reached: the rest is left out, and indices are checked in this."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, mapped, nodes_in, walk
from tvmtile.errors import OutOfBounds
from tvmtile.ir.operands import describe, literal
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import replace_loop, retyped, substitute
from tvmtile.ir.spans import location_of


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
