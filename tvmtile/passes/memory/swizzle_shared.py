"""SwizzleShared: decide where the elements of shared tiles lie."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx.layout import ComposeLayout, Layout

from tvmtile.errors import InvalidOperand
from tvmtile.ir.kernels import target_of, with_kernels
from tvmtile.ir.operands import static_shape
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.layout.shared import SWIZZLES, period_of, swizzled
from tvmtile.passes.memory.shared_tiles import SharedTiles
from tvmtile.passes.memory.user_layouts import user_layout


@prim_func_pass(
    "SwizzleShared", requires=(Property.FRAGMENT_LAYOUTS,), establishes=(Property.SHARED_LAYOUTS,)
)
def SwizzleShared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give the types of shared tiles a layout, a `tvm.tirx.layout.ComposeLayout` or `TileLayout`.

    It is the one that `T.annotate_layout` asks for, or, for tiles that an implementation wants
    swizzled and in kernels with such tiles for those that are moved to or from fragments, the widest
    swizzle that a row allows. Tiles that are seen through views, or whose address is taken, have
    plain rows.
    Indices stay those of the elements; FlattenShared computes places from them.

    Raises
    ------
    InvalidOperand
        If a user layout can't be represented, gives two elements one place, or is one
        of a tile that is seen through views.
    """
    target = target_of(func)
    return with_kernels(func, lambda kernel: _with_layouts(kernel, target))


def _with_layouts(kernel: tirx.For, target: Target) -> tirx.For:
    tiles = SharedTiles.of(kernel, target)
    layouts: dict[ir.Var, Layout | None] = {}
    for tile in tiles.with_rows:
        widest = tiles.form_of(tile).swizzle
        layouts[tile] = swizzled(static_shape(tile), str(tile.ty.dtype), widest=widest)
    for tile, (layout, location) in tiles.user_layouts.items():
        try:
            widest = tiles.form_of(tile).swizzle or max(SWIZZLES.values())
            layouts[tile] = user_layout(tile, layout, widest, is_viewed=tile in tiles.viewed)
        except InvalidOperand as error:
            error.location = location
            raise
    return substitute(
        kernel,
        {
            tile: _laid_out(tile, layout, aligned=tiles.form_of(tile).required)
            for tile, layout in layouts.items()
            if layout
        },
    )


def _laid_out(tile: ir.Var, layout: Layout, *, aligned: bool) -> ir.Var:
    """A tile with a layout; one in which the hardware finds elements begins where its swizzle does."""
    if not aligned or not isinstance(layout, ComposeLayout):
        return retyped(tile, layout=layout)
    alignment = max(int(tile.ty.data_alignment), period_of(layout, str(tile.ty.dtype)))
    return retyped(tile, layout=layout, data_alignment=alignment)
