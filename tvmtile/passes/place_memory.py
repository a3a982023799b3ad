"""PlaceMemoryOnCpu, PlaceMemoryOnMetal: tiles become arrays in memory that the target has."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import DataType, ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.passes.kernels import prim_func_pass
from tvmtile.rewriting import contains

__all__ = ["PlaceMemoryOnCpu", "PlaceMemoryOnMetal"]


@prim_func_pass("PlaceMemoryOnCpu")
def PlaceMemoryOnCpu(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Give tiles the host's scope, and assume no more of a tensor's alignment than its dtype demands.

    TVM places a `global` buffer of less than 1024 bytes on the stack, where LLVM can keep it in
    registers, and takes larger ones from its pool of workspaces, 64-byte aligned. A tensor of the
    signature may be a slice of a larger one (`x[1:]`) or a numpy array, so it is not taken to be
    64-byte aligned, as TVM would.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            tile = T.alloc_buffer((32,), "float32", scope="shared.dyn")
            for i in range(32):
                tile[i] = A[i]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float32", align=4)):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            tile = T.alloc_buffer((32,), "float32", scope="global")
            for i in range(32):
                tile[i] = A[i]
    ```
    """
    del context
    placed = {tensor: _placed(tensor, alignment) for tensor, alignment in _alignments(func).items()}

    def place(var: ir.Var) -> ir.Var:
        if not is_buffer_var(var):
            return var
        if var not in placed and var.ty.storage_scope != "global":
            placed[var] = _placed(var, alignment=var.ty.data_alignment)
        return placed.get(var, var)

    body = tvm_ffi.structural_map(func.body, (ir.Var, place))
    params = [placed.get(param, param) for param in func.params]
    if not any(is_buffer_var(param) for param in params):
        # TVM takes the device from a tensor; its pool of workspaces asks for it.
        body = tirx.AttrStmt(ir.StringImm("default"), "device_id", tirx.const(0, "int32"), body)
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


@prim_func_pass("PlaceMemoryOnMetal")
def PlaceMemoryOnMetal(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Place shared tiles in threadgroup memory, whose size is fixed when a kernel is compiled.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                tile = T.alloc_buffer((32,), "float32", scope="shared.dyn")
                tile[tx] = A[tx]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                tile = T.alloc_buffer((32,), "float32", scope="shared")
                tile[tx] = A[tx]
    ```
    """
    del context
    placed: dict[ir.Var, ir.Var] = {}

    def place(var: ir.Var) -> ir.Var:
        if not is_buffer_var(var) or var.ty.storage_scope not in _SCOPES_ON_METAL:
            return var
        if var not in placed:
            placed[var] = _placed(
                var, var.ty.data_alignment, _SCOPES_ON_METAL[var.ty.storage_scope]
            )
        return placed[var]

    return func.with_body(tvm_ffi.structural_map(func.body, (ir.Var, place)))


_SCOPES_ON_METAL = {"shared.dyn": "shared", "local.var": "local"}


def _alignments(func: tirx.PrimFunc) -> dict[ir.Var, int]:
    """What may be assumed of parameters, of the views of them and of what pointers point to."""
    alignments = {param: _itemsize(param) for param in func.params if is_buffer_var(param)}

    def note(view: tirx.DeclBuffer) -> None:
        if view.buffer.ty.storage_scope != "global":
            return
        alignment = _itemsize(view.buffer)
        for tensor, known in list(alignments.items()):
            if contains(view.data, ir.Var, tensor.same_as):
                alignment = min(alignment, known)
        alignments[view.buffer] = alignment

    tvm_ffi.structural_walk(func.body, (tirx.DeclBuffer, note))
    return alignments


def _itemsize(buffer: ir.Var) -> int:
    return max(1, DataType(str(buffer.ty.dtype)).bits // 8)


def _placed(buffer: ir.Var, alignment: int, scope: str = "global") -> ir.Var:
    ty = buffer.ty
    return tirx.decl_buffer(
        ty.shape,
        str(ty.dtype),
        name=buffer.name,
        strides=ty.strides,
        elem_offset=ty.elem_offset,
        scope=scope,
        data_alignment=alignment,
        offset_factor=ty.offset_factor,
        span=buffer.span,
        layout=ty.layout,
    )
