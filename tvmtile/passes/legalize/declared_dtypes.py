"""DeclareAsAccessed and PreventVectorArrays: the dtypes in which Metal's memory is declared.

Memory that is accessed as words is declared in words. TVM's generator declares an array that is written
as vectors of four as an array of vectors, where elements that are read one by one lie at known places
in them: at `8 * x + c`, say. It then insists that the stride divides the width of a vector, 8 does not
divide 4, and gives up. An index whose stride it can't see keeps the array one of elements.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, indices_of, mapped, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.codegen.device import device_pass
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import retyped, substitute


@device_pass("DeclareAsAccessed")
def DeclareAsAccessed(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Declare memory that is only accessed through views of one other dtype in that dtype, for Metal.

    TVM's generator does so itself, but keeps the number of elements: float16 that moves as uint32 would
    take twice its memory, and uint32 that is accessed as float16 would get half of it. It looks at the
    accesses that are left when nothing simplifies any more, as we do.

    ```
    tile = T.alloc_buffer((128,), "float16", scope="shared")
    words = T.decl_buffer((64,), "uint32", data=tile.data, scope="shared")
    words[tx] = A[tx]
    ```

    becomes

    ```
    tile = T.alloc_buffer((64,), "uint32", scope="shared")
    words = T.decl_buffer((64,), "uint32", data=tile.data, scope="shared")
    words[tx] = A[tx]
    ```
    """
    if kind != "metal":
        return func
    aliases = Aliases(func.body)
    accessed: dict[ir.Var, set[str]] = {
        buffer_of(each): set() for each in nodes_in(func.body, tirx.AllocBuffer)
    }
    for node in nodes_in(func.body, (tirx.BufferStore, ir.TensorLoad)):
        buffer = buffer_of(node)
        if aliases.root(buffer) in accessed:
            accessed[aliases.root(buffer)].add(str(buffer.ty.dtype))
    new = {root: _redeclared(root, dtypes) for root, dtypes in accessed.items()}
    changed = {root: buffer for root, buffer in new.items() if buffer is not None}
    return with_body(func, _with(changed, func.body)) if changed else func


def _with(changed: dict[ir.Var, ir.Var], body: tirx.Stmt) -> tirx.Stmt:
    """The body with other buffers; the type of a pointer to one is that of the new one."""
    pointers = [(old.data, new.data) for old, new in changed.items()]

    def view(node: tirx.DeclBuffer) -> tirx.DeclBuffer:
        for old, new in pointers:
            if tvm_ffi.structural_equal(node.data, old):
                return tirx.DeclBuffer(buffer_of(node), data=new, span=node.span)
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


@device_pass("PreventVectorArrays")
def PreventVectorArrays(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Hide the strides of arrays of Metal that are written as vectors and read by elements."""
    if kind != "metal":
        return func
    root = Aliases(func.body).root
    lanes = _vector_lanes(func.body, root)
    analyzer = Analyzer()

    def read(load: ir.TensorLoad) -> ir.Expr:
        width = lanes.get(root(buffer_of(load)))
        last = indices_of(load)[-1]
        if width is None or isinstance(last, tirx.Ramp):
            return load
        stride = int(analyzer.modular_set(last).coeff)
        if stride <= width or stride % width:
            return load
        hidden = tirx.bitwise_or(last, tirx.const(0, str(last.ty.dtype)))
        return tirx.BufferLoad(buffer_of(load), [*indices_of(load)[:-1], hidden])

    return with_body(func, mapped(func.body, (ir.TensorLoad, read)))


def _vector_lanes(body: tirx.Stmt, root: Callable[[ir.Var], ir.Var]) -> dict[ir.Var, int]:
    """The widest vectors that each array is accessed as."""
    lanes: dict[ir.Var, int] = {}
    for access in nodes_in(body, (tirx.BufferStore, ir.TensorLoad)):
        indices = indices_of(access)
        if len(indices) and isinstance(indices[-1], tirx.Ramp):
            array = root(buffer_of(access))
            lanes[array] = max(lanes.get(array, 0), int(indices[-1].lanes))
    return lanes
