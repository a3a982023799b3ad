"""Shared memory through which fragments go on their way to tensors, and how much of it is left."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, walk
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.kernel_info import info_of
from tvmtile.ir.asynchronous import BULK_STORE, wait
from tvmtile.ir.operands import bits_of, static_shape
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.rewriting import retyped, seq
from tvmtile.ir.scopes import SHARED_SCOPE, is_fragment, is_global, is_shared
from tvmtile.ir.threads import WARPGROUP
from tvmtile.layout.shared import swizzled
from tvmtile.tileop.registry import LoweringContext

PIECE_BYTES = 64 * 128
"""Of a copy that a warpgroup does piece by piece: 64 rows."""


def name_of(op: TileOp) -> str:
    """The name of the shared tile through which a fragment goes to a tensor."""
    return f"{buffer_of(op.writes()[0]).name}_staged"


def swizzled_tile(op: TileOp, shape: Sequence[int], dtype: str, context: LoweringContext) -> ir.Var:
    """Such a tile of the threads that do the operator, its rows in panels that are swizzled."""
    group = context.group
    name = name_of(op) if group is None or not group.first else f"{name_of(op)}_{group.first}"
    tile = tirx.decl_buffer(shape, dtype, name=name, scope=SHARED_SCOPE)
    layout = swizzled(tuple(shape), dtype)
    return tile if layout is None else retyped(tile, layout=layout)


def uses_of(tensor: ir.Var, context: LoweringContext) -> list[Effect]:
    """The kernel's effects on a tensor, which stores from shared memory do not wait for."""
    info = info_of(context.launch.body)
    return info.effects_on(info.root(tensor))


def allocated(tile: ir.Var, context: LoweringContext) -> ir.Var | None:
    """The tile like this one through which the same threads' operators before went to the tensor."""
    tiles = (buffer_of(node) for node in context.setup if isinstance(node, tirx.AllocBuffer))
    return next((t for t in tiles if t.name == tile.name and structural_equal(t.ty, tile.ty)), None)


def allocate(tile: ir.Var, context: LoweringContext) -> ir.Var:
    """A tile that the kernel allocates, and waits for stores from at its end; or one that is alike."""
    former = allocated(tile, context)
    if former is not None:
        return former
    context.setup.append(tirx.AllocBuffer(tile))
    context.teardown.append(wait(BULK_STORE.name, 0))
    return tile


def bytes_taken(op: TileOp, context: LoweringContext) -> int:
    """Bytes of shared memory that are not left for an operator.

    The kernel has allocated them, or operators that are lowered later need them at least: copies for a
    piece of each warpgroup, others for all that they move.
    """
    unit, taken, known = context.gpu.shared_alignment, 0, set[str]()

    def take(node: tirx.AllocBuffer) -> None:
        nonlocal taken
        if is_shared(buffer_of(node)):
            taken += -(-bytes_of(buffer_of(node)) // unit) * unit
            known.add(buffer_of(node).name)

    walk(seq([*context.setup, context.launch.body]), (tirx.AllocBuffer, take))

    def reserve(call: ir.Call) -> None:
        nonlocal taken
        other = operator_of(call)
        if other is None or not _may_be_staged(other) or name_of(other) in {*known, name_of(op)}:
            return
        pieces = context.launch.num_threads // WARPGROUP * PIECE_BYTES
        taken += pieces if other.role == "copy" else bytes_of(buffer_of(other.reads()[0]))
        known.add(name_of(other))

    walk(context.launch.body, (ir.Call, reserve))
    return taken


def _may_be_staged(op: TileOp) -> bool:
    """Tell whether an operator moves a fragment to a tensor."""
    if not op.is_tile or len(op.writes()) != 1:
        return False
    target = buffer_of(op.writes()[0])
    return is_global(target) and any(is_fragment(buffer_of(operand)) for operand in op.reads()[:1])


def bytes_of(buffer: ir.Var) -> int:
    """The size of a tile."""
    size = math.prod(static_shape(buffer))
    return size * bits_of(buffer) // 8
