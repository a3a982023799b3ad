"""PlaceMemoryOnCpu: tiles become arrays of the host."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.passes.kernels import prim_func_pass

__all__ = ["PlaceMemoryOnCpu"]


@prim_func_pass("PlaceMemoryOnCpu")
def PlaceMemoryOnCpu(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Give shared tiles, fragments and local arrays the host's scope.

    TVM places a `global` buffer of less than 1024 bytes on the stack, where LLVM can keep it in
    registers, and takes larger ones from its pool of workspaces, 64-byte aligned.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            tile = T.alloc_buffer((32,), "float32", scope="shared.dyn")
            for i in T.parallel(32):
                tile[i] = A[i]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            tile = T.alloc_buffer((32,), "float32", scope="global")
            for i in T.parallel(32):
                tile[i] = A[i]
    ```
    """
    del context
    placed: dict[ir.Var, ir.Var] = {}

    def place(var: ir.Var) -> ir.Var:
        if not is_buffer_var(var) or var.ty.storage_scope == "global":
            return var
        if var not in placed:
            placed[var] = _on_host(var)
        return placed[var]

    return func.with_body(tvm_ffi.structural_map(func.body, (ir.Var, place)))


def _on_host(buffer: ir.Var) -> ir.Var:
    ty = buffer.ty
    return tirx.decl_buffer(
        ty.shape,
        str(ty.dtype),
        name=buffer.name,
        strides=ty.strides,
        elem_offset=ty.elem_offset,
        scope="global",
        data_alignment=ty.data_alignment,
        offset_factor=ty.offset_factor,
        span=buffer.span,
        layout=ty.layout,
    )
