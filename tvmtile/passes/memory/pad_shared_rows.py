"""PadSharedRows: the rows of tiles that matrix units read begin in different banks."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile.ir.kernels import target_of, with_kernels
from tvmtile.ir.operands import bits_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.passes.memory.shared_memory import allocated_bytes
from tvmtile.passes.memory.shared_tiles import SharedTiles
from tvmtile.target import gpu


@prim_func_pass(
    "PadSharedRows", requires=(Property.FRAGMENT_LAYOUTS,), establishes=(Property.SHARED_LAYOUTS,)
)
def PadSharedRows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make the rows of shared tiles as much longer as implementations want, where a block has room.

    Tiles that are seen through views, or have a user layout, stay as they are.
    """
    target = target_of(func)
    capability = gpu(target)
    if capability is None:
        return func

    def pad(kernel: tirx.For) -> tirx.For:
        tiles = SharedTiles.of(kernel, target)
        wanted = {t: tiles.form_of(t).padding for t in tiles.with_rows}
        padded = {t: _padded(t, padding) for t, padding in wanted.items() if padding}
        needed = sum(allocated_bytes(padded.get(t, t), capability) for t in tiles.all)
        return substitute(kernel, padded) if needed <= capability.shared_memory else kernel

    return with_kernels(func, pad)


def _padded(tile: ir.Var, padding: int) -> ir.Var:
    *outer, row = tile.ty.shape
    elements = padding * 8 // bits_of(tile)
    return retyped(tile, shape=(*outer, row + elements))
