"""AddAxes: tensors and tiles without axes get one, of extent 1."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var, mapped, nodes_in
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import retyped, seq


@prim_func_pass("AddAxes")
def AddAxes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make an element without an index the first of an axis: every tile has an axis from here on.

    A parameter keeps its shape, by which a call is checked, and gets a view.
    """
    params = [param for param in func.params if is_buffer_var(param) and not param.ty.shape]
    allocated = [alloc.buffer for alloc in nodes_in(func.body, _DECLARED)]
    without = [*params, *(buffer for buffer in allocated if not buffer.ty.shape)]
    if not without:
        return func
    instead: dict[ir.Var, Any] = {buffer: retyped(buffer, shape=[1]) for buffer in without}
    origin = [tirx.const(0, "int32")]
    whole = [ir.Range.from_min_extent(origin[0], tirx.const(1, "int32"))]

    def load(node: ir.TensorLoad) -> ir.Expr:
        return node if node.indices else tirx.BufferLoad(buffer_of(node), origin, span=node.span)

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        indices = node.indices or origin
        return tirx.BufferStore(node.buffer, node.value, indices, span=node.span)

    def region(node: ir.TensorRegion) -> ir.Expr:
        return node if node.region else tirx.BufferRegion(buffer_of(node), whole)

    body = mapped(
        func.body,
        (ir.Var, lambda var: instead.get(var, var)),
        (ir.TensorLoad, load),
        (tirx.BufferStore, store),
        (ir.TensorRegion, region),
    )
    views = [tirx.DeclBuffer(instead[param], data=param.data) for param in params]
    return func.with_body(seq([*views, body]))


_DECLARED = (tirx.AllocBuffer, tirx.DeclBuffer)
