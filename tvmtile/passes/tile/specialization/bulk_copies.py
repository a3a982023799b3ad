"""Which copies of a kernel can go on by themselves until they arrive on an mbarrier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tvm import ir, tirx
from tvm.tirx.layout import ComposeLayout, Layout

from tvmtile._tvm import buffer_of, mapped, ranges_of
from tvmtile.errors import NoLowering
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.operators import TileOp, operator_of, operators_in
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.ir.scopes import is_shared
from tvmtile.layout.shared import SWIZZLES, period_of, swizzled
from tvmtile.passes.memory.shared_layouts import layout_of_map
from tvmtile.passes.tile.specialization.computed import ANY_MBARRIER
from tvmtile.tileop.registry import LoweringContext
from tvmtile.tileop.selection import declined_before, select


class BulkCopies:
    """The copies of a kernel, and the layouts that it fixes for their tiles."""

    def __init__(self, kernel: tirx.For, context: LoweringContext) -> None:
        self._context = context
        self._fixed = {
            tile: op
            for op in operators_in(kernel)
            for tile in op.fixed_layouts()
            if is_shared(tile)
        }

    def why_not(self, op: TileOp, stages: int) -> str | None:
        """Why a copy can't go on by itself, in whichever way the copies of its tile will lie."""
        begun = op.begun_on(ANY_MBARRIER)
        if begun is None:
            return f"{op.name} can't go on by itself"
        call = begun.to_call()
        for written in begun.writes():
            for tile in _layouts_of(buffer_of(written), stages, self._fixed):
                placed = operator_of(_into(tile, call, buffer_of(written)))
                assert placed is not None, "it was one"
                try:
                    select(placed, self._context)
                except NoLowering:
                    reasons = declined_before(placed, self._context)
                    copies = next(at for at in placed.writes() if buffer_of(at).same_as(tile))
                    said = "; ".join(reason for _, reason in reasons)
                    said = said.replace(describe(copies), describe(written))
                    return said.replace(describe(tile), describe(buffer_of(written)))
        return None


def _layouts_of(tile: ir.Var, stages: int, fixed: Mapping[ir.Var, TileOp]) -> Iterator[ir.Var]:
    """A tile, with its buffer copies, in each of the layouts that LayOutSharedTiles may give it."""
    copies = [stages] if stages > 1 else []
    staged = retyped(tile, shape=[*copies, *tile.ty.shape]) if copies else tile
    layout = _fixed_layout(tile, staged, fixed[tile]) if tile in fixed else None
    if isinstance(layout, tirx.IndexMap):
        layout = layout_of_map(staged, layout)
    if isinstance(layout, Layout):
        yield _laid_out(staged, layout)
        return
    yield staged
    extents = [constant(extent) for extent in tile.ty.shape]
    shape = [extent for extent in extents if extent is not None]
    for width in SWIZZLES.values() if len(shape) == len(extents) > 1 else ():
        found = swizzled([*copies, *shape], str(tile.ty.dtype), width)
        if found is not None:
            yield _laid_out(staged, found)


def _fixed_layout(tile: ir.Var, staged: ir.Var, op: TileOp) -> Any:
    """The layout that a kernel fixes for a tile, for all of its buffer copies."""
    fixing = operator_of(substitute(op.to_call(), {tile: staged}))
    assert fixing is not None, "it was one"
    if not staged.same_as(tile):
        fixing = fixing.with_buffer_copies([staged])
    return fixing.fixed_layouts()[staged]


def _laid_out(tile: ir.Var, layout: Layout) -> ir.Var:
    """A tile that begins where its swizzle does."""
    swizzles = isinstance(layout, ComposeLayout)
    period = period_of(layout, str(tile.ty.dtype)) if swizzles else int(tile.ty.data_alignment)
    return retyped(tile, layout=layout, data_alignment=period)


def _into(tile: ir.Var, call: ir.Call, former: ir.Var) -> ir.Call:
    """A copy to a tile in place of a former one, or to any of its buffer copies."""
    added = len(tile.ty.shape) - len(former.ty.shape)
    copy = [ir.Range.from_min_extent(ir.Var("stage", "int32"), tirx.const(1, "int32"))] * added

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        if not buffer_of(node).same_as(former):
            return node
        return tirx.BufferRegion(tile, [*copy, *ranges_of(node)])

    return mapped(call, (ir.TensorRegion, region))
