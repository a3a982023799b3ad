"""PlaceMemoryOnCpu, PlaceMemoryOnGpu, PlaceMemoryOnCuda: tiles become arrays of the target."""

from __future__ import annotations

from collections.abc import Iterable

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import is_buffer_var, mapped
from tvmtile.ir.alignment import least_alignments
from tvmtile.ir.kernels import (
    Launch,
    leaves_loop,
    target_of,
    with_body,
    with_kernels,
    with_launch_body,
    with_statements,
)
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, retyped, seq, substitute
from tvmtile.ir.scopes import is_global, is_mbarrier, is_shared
from tvmtile.passes.memory.shared_memory import (
    alignment_of,
    all_bytes,
    one_after_the_other,
    shared_tiles_in,
)
from tvmtile.target import GpuCapability, gpu


@prim_func_pass(
    "PlaceMemoryOnCpu", requires=(Property.NO_TILE_OPERATORS,), establishes=(Property.HOST_MEMORY,)
)
def PlaceMemoryOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give tiles the host's scope, and assume no more of a tensor's alignment than its dtype demands.

    TVM places a `global` buffer of less than 1024 bytes on the stack, where LLVM can keep it in
    registers, and takes larger ones from its pool of workspaces, 64-byte aligned. It gives them back
    at the end of a loop's body, which `break` and `continue` don't reach, and not at all in the body of
    a `while`: what such a loop allocates stands in front of it.

    A tensor of the signature may be a slice of a larger one (`x[1:]`) or a numpy
    array, so it is not taken to be 64-byte aligned, as TVM would.
    """
    placed = {
        tensor: retyped(tensor, data_alignment=alignment)
        for tensor, alignment in least_alignments(func, func.params).items()
    }

    def place(var: ir.Var) -> ir.Var:
        if not is_buffer_var(var):
            return var
        if var not in placed and not is_global(var):
            placed[var] = retyped(var, scope="global")
        return placed.get(var, var)

    body = mapped(func.body, (ir.Var, place), ((tirx.For, tirx.While), _allocated_in_front))
    params = [placed.get(param, param) for param in func.params]
    if not any(is_buffer_var(param) for param in params):
        # TVM takes the device from a tensor; its pool of workspaces asks for it.
        body = tirx.AttrStmt(ir.StringImm("default"), "device_id", tirx.const(0, "int32"), body)
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


def _allocated_in_front(loop: tirx.For | tirx.While) -> tirx.Stmt:
    """A loop that does not reach the end of its body, without allocations in that."""
    if not isinstance(loop, tirx.While) and not leaves_loop(loop.body):
        return loop
    if contains(loop.body, tirx.For, lambda inner: inner.kind in _BLOCKS):
        return loop
    found: list[tirx.Stmt] = []

    def take(allocation: tirx.AllocBuffer) -> tirx.Stmt:
        if not all(isinstance(extent, tirx.IntImm) for extent in allocation.buffer.ty.shape):
            return allocation
        found.append(allocation)
        return seq([])

    body = mapped(loop.body, (tirx.AllocBuffer, take))
    return seq([*found, with_statements(loop, [body])]) if found else loop


_BLOCKS = (tirx.ForKind.PARALLEL, tirx.ForKind.THREAD_BINDING)


@prim_func_pass("PlaceMemoryOnGpu", requires=(Property.NO_FRAGMENTS,))
def PlaceMemoryOnGpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Place shared tiles in memory of a block whose size is fixed when a kernel is compiled."""
    placed: dict[ir.Var, ir.Var] = {}

    def place(var: ir.Var) -> ir.Var:
        if not is_buffer_var(var) or var.ty.storage_scope not in _SCOPES_ON_GPU:
            return var
        if var not in placed:
            placed[var] = retyped(var, scope=_SCOPES_ON_GPU[var.ty.storage_scope])
        return placed[var]

    return with_body(func, mapped(func.body, (ir.Var, place)))


_SCOPES_ON_GPU = {"shared.dyn": "shared", "local.var": "local"}


_STATIC_LIMIT = 48 * 1024
"""Bytes of shared memory that a CUDA kernel may declare; more is asked for when it is launched."""


@prim_func_pass("PlaceMemoryOnCuda", requires=(Property.FLAT_TILES,))
def PlaceMemoryOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Place shared tiles in memory that a kernel declares, or, if they need more than 48 KB, asks for.

    Memory that is asked for when a kernel is launched is one array, of which the tiles are parts.
    """
    capability = gpu(target_of(func))
    if capability is None:
        return func
    return with_kernels(func, lambda kernel: _with_arena(kernel, capability))


def _with_arena(kernel: tirx.For, capability: GpuCapability) -> tirx.For:
    tiles = shared_tiles_in(kernel)
    size = all_bytes(kernel, capability)
    if size <= _STATIC_LIMIT and not _moves_boxes(kernel, tiles):
        return kernel
    if size <= _STATIC_LIMIT:
        return substitute(
            kernel,
            {
                tile: retyped(tile, scope="shared", data_alignment=alignment_of(tile, capability))
                for tile in tiles
            },
        )
    offsets = one_after_the_other(tiles, capability)
    largest = max(alignment_of(tile, capability) for tile in tiles)
    arena = tirx.decl_buffer(
        (size,),
        "uint8",
        name="tiles",
        scope="shared.dyn",
        data_alignment=largest if largest > capability.shared_alignment else -1,
    )
    dynamic: dict[ir.Var, ir.Var] = {}

    def part(node: tirx.AllocBuffer) -> tirx.Stmt:
        if node.buffer not in offsets:
            return node
        dtype = str(node.buffer.ty.dtype)
        data = T.ptr_byte_offset(arena.data, offsets[node.buffer], dtype)
        return tirx.DeclBuffer(node.buffer, data=data)

    def place(var: ir.Var) -> ir.Var:
        if not is_buffer_var(var) or not is_shared(var) or var.same_as(arena):
            return var
        if var not in dynamic:
            dynamic[var] = retyped(var, scope="shared.dyn")
        return dynamic[var]

    parts = mapped(Launch(kernel).body, (tirx.AllocBuffer, part))
    body = mapped(parts, (ir.Var, place))
    return with_launch_body(kernel, seq([tirx.AllocBuffer(arena), body]))


def _moves_boxes(kernel: tirx.For, tiles: Iterable[ir.Var]) -> bool:
    """Tell whether boxes of tiles move at once, which begin at multiples of the target's alignment."""

    def is_bulk(call: ir.Call) -> bool:
        op = operator_of(call)
        return op is not None and op.token() is not None

    return any(map(is_mbarrier, tiles)) or contains(kernel, ir.Call, is_bulk)
