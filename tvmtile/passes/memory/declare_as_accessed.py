"""DeclareAsAccessed: memory is declared in the dtype in which it is accessed."""

from __future__ import annotations

import tvm_ffi
from tvm import DataType, ir, tirx

from tvmtile._tvm import mapped, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.ir.operands import buffer_of, constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, substitute


@prim_func_pass("DeclareAsAccessed", requires=(Property.NO_FRAGMENTS,))
def DeclareAsAccessed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Declare memory that is only accessed through views of one other dtype in that dtype.

    TVM's generator for Metal does so itself, but keeps the number of elements: float16 that moves as
    uint32 would take twice its memory, and uint32 that is accessed as float16 would get half of it.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "uint32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                tile = T.alloc_buffer((2, 64), "float16", scope="shared")
                words = T.decl_buffer((2, 32), "uint32", data=tile.data, scope="shared")
                words[0, tx] = A[tx]
    ```

    After
    -----
    ```
                tile = T.alloc_buffer((2, 32), "uint32", scope="shared")
                words = T.decl_buffer((2, 32), "uint32", data=tile.data, scope="shared")
                words[0, tx] = A[tx]
    ```
    """
    aliases = Aliases(func.body)
    accessed: dict[ir.Var, set[str]] = {
        each.buffer: set() for each in nodes_in(func.body, tirx.AllocBuffer)
    }
    for node in nodes_in(func.body, (tirx.BufferStore, ir.TensorLoad)):
        buffer = buffer_of(node)
        if aliases.root(buffer) in accessed:
            accessed[aliases.root(buffer)].add(str(buffer.ty.dtype))
    new = {root: _redeclared(root, dtypes) for root, dtypes in accessed.items()}
    changed = {root: buffer for root, buffer in new.items() if buffer is not None}
    return func.with_body(_with(changed, func.body)) if changed else func


def _with(changed: dict[ir.Var, ir.Var], body: tirx.Stmt) -> tirx.Stmt:
    """The body with other buffers; the type of a pointer to one is that of the new one."""
    pointers = [(old.data, new.data) for old, new in changed.items()]

    def view(node: tirx.DeclBuffer) -> tirx.DeclBuffer:
        for old, new in pointers:
            if tvm_ffi.structural_equal(node.data, old):
                return tirx.DeclBuffer(node.buffer, data=new, span=node.span)
        return node

    return substitute(mapped(body, (tirx.DeclBuffer, view)), changed)


def _redeclared(root: ir.Var, dtypes: set[str]) -> ir.Var | None:
    """The buffer in the only dtype in which it is accessed, where that is of another width."""
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    own, others = DataType(str(root.ty.dtype)), DataType(dtype)
    own_bits, bits = own.bits * own.lanes, others.bits * others.lanes
    *outer, last = root.ty.shape or [1]
    count = constant(last)
    if own_bits == bits or count is None or count * own_bits % bits:
        return None
    shape = [*outer, count * own_bits // bits]
    return retyped(root, dtype=dtype, shape=shape)
