"""Legalize: bring the tile operators of a program into one form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.kernels import (
    bound_target,
    with_body,
)
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.transform import NO_TENSOR_MAPS

__all__ = ["Legalize"]


@prim_func_pass("Legalize", establishes=(Property.REGIONS,))
def Legalize(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make every operand of a tile operator an explicit region.

    Whole buffers and elements that name a tile's origin are what users write; from here on an operand
    says where it begins and how far it extends. An operator that stands for others becomes those. No
    copy goes by a tensor map where the attribute `tvmtile.no_tensor_maps` of a function says so, which
    `tl.disable_tma_lower` sets.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((1024, 1024), "float16"), C: T.Buffer((1024, 1024), "float16")):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                tile = T.alloc_buffer((128, 64), "float16", scope="shared.dyn")
                T.tile.copy(A[bx * 128, 0], tile)
                T.tile.copy(tile, C[bx * 128, 64])
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((1024, 1024), "float16"), C: T.Buffer((1024, 1024), "float16")):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                tile = T.alloc_buffer((128, 64), "float16", scope="shared.dyn")
                T.tile.copy(A[bx * 128 : bx * 128 + 128, 0:64], tile[0:128, 0:64])
                T.tile.copy(tile[0:128, 0:64], C[bx * 128 : bx * 128 + 128, 64:128])
    ```
    """
    target = bound_target(func)
    has_maps = func.attrs is None or not func.attrs.get(NO_TENSOR_MAPS, False)

    def normalize(call: ir.Call) -> ir.Call:
        op = operator_of(call)
        if op is None:
            return call
        normal = replace(op.normalized(), impl=op.impl)
        return (normal if has_maps else normal.without_tensor_maps()).to_call(call.span)

    def expand(node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node.value)
        expanded = None if op is None else op.expanded(target)
        return node if expanded is None else _with_span(expanded, node.value.span)

    body = mapped(func.body, (ir.Call, normalize))
    return with_body(func, mapped(body, (tirx.Evaluate, expand)))


def _with_span(body: tirx.Stmt, span: Any) -> tirx.Stmt:
    """Statements whose operators stand at a line of the user's."""

    def placed(call: ir.Call) -> ir.Call:
        op = operator_of(call)
        return call if op is None else op.to_call(span)

    return mapped(body, (ir.Call, placed))
