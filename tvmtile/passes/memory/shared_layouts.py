"""LayOutSharedTiles and FlattenShared: the places of the elements of shared tiles.

The first gives tiles the layouts that implementations of operators want (`SharedTiles`), or that
`T.annotate_layout` fixes by hand; the second, behind the barriers, computes places by them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx.layout import ComposeLayout, Layout

from tvmtile._tvm import (
    Mutator,
    Replacement,
    buffer_of,
    indices_of,
    is_buffer_var,
    mutated,
    ranges_of,
)
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.errors import InvalidOperand, SourceLocation
from tvmtile.ir.asynchronous import CP_ASYNC, issued
from tvmtile.ir.calls import takes_address
from tvmtile.ir.kernels import Launch, target_of, with_kernels
from tvmtile.ir.operands import bits_of, constant, describe, static_shape
from tvmtile.ir.operators import TileOp, fixed_layouts, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.ir.scopes import is_fragment, is_shared
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import Regions
from tvmtile.layout.shared import (
    SWIZZLES,
    contiguous_run,
    has_plain_rows,
    layout_of_places,
    period_of,
    span,
    swizzle_of,
    swizzled,
    width_of,
)
from tvmtile.passes.memory.flatten_buffers import Flattener
from tvmtile.passes.memory.shared_memory import allocated_bytes, shared_tiles_in
from tvmtile.target import GpuCapability, gpu
from tvmtile.tileop.registry import Lowering, LoweringContext, SharedTile, implementation_of


@prim_func_pass(
    "LayOutSharedTiles",
    requires=(Property.FRAGMENT_LAYOUTS,),
    establishes=(Property.SHARED_LAYOUTS,),
)
def LayOutSharedTiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let what threads take at once of a shared tile lie in different banks.

    On Metal rows become as much longer as implementations want, where a block has room; tiles with a
    user layout stay as they are. On CUDA the types of tiles get a layout, a
    `tvm.tirx.layout.ComposeLayout` or `TileLayout`: the one that `T.annotate_layout` asks for, or, for
    tiles that an implementation wants swizzled and in kernels with such tiles for those that are moved
    to or from fragments, the widest swizzle that a row allows. Indices stay those of the elements;
    FlattenShared computes places from them. Tiles that are seen through views, or whose address is
    taken, have plain rows.

    Raises
    ------
    InvalidOperand
        If a user layout can't be represented, gives two elements one place, or is one
        of a tile that is seen through views.
    """
    target = target_of(func)
    capability = gpu(target)
    if capability is None:
        return func

    def lay_out(kernel: tirx.For) -> tirx.For:
        tiles = SharedTiles.of(kernel, target)
        is_cuda = target.kind.name == "cuda"
        return substitute(kernel, _swizzled(tiles) if is_cuda else _padded(tiles, capability))

    return with_kernels(func, lay_out)


def _padded(tiles: SharedTiles, capability: GpuCapability) -> dict[ir.Var, ir.Var]:
    """The tiles with longer rows; none where a block has no room for all."""
    wanted = {tile: tiles.form_of(tile).padding for tile in tiles.with_rows}
    padded = {tile: _with_padding(tile, padding) for tile, padding in wanted.items() if padding}
    needed = sum(allocated_bytes(padded.get(tile, tile), capability) for tile in tiles.all)
    return padded if needed <= capability.shared_memory else {}


def _with_padding(tile: ir.Var, padding: int) -> ir.Var:
    *outer, row = tile.ty.shape
    return retyped(tile, shape=(*outer, row + padding * 8 // bits_of(tile)))


def _swizzled(tiles: SharedTiles) -> dict[ir.Var, ir.Var]:
    """The tiles with layouts."""
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
    return {
        tile: _laid_out(tile, layout, aligned=tiles.form_of(tile).required)
        for tile, layout in layouts.items()
        if layout
    }


def _laid_out(tile: ir.Var, layout: Layout, *, aligned: bool) -> ir.Var:
    """A tile with a layout; one in which the hardware finds elements begins where its swizzle does."""
    if not aligned or not isinstance(layout, ComposeLayout):
        return retyped(tile, layout=layout)
    alignment = max(int(tile.ty.data_alignment), period_of(layout, str(tile.ty.dtype)))
    return retyped(tile, layout=layout, data_alignment=alignment)


# Places ------------------------------------------------------------------------------------------


@prim_func_pass(
    "FlattenShared",
    requires=(Property.BARRIERS_INSERTED,),
    establishes=(Property.FLAT_TILES,),
)
def FlattenShared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make tiles with a layout arrays of one axis, and their indices places in memory.

    It comes after the passes that ask which elements are accessed.
    """
    return with_kernels(func, lambda kernel: _TileFlattener().rewrite(kernel))


class _TileFlattener(Flattener):
    def __init__(self) -> None:
        super().__init__()
        self._flat: dict[int, tuple[ir.Var, ir.Var]] = {}  # by address

    def others(self) -> list[Replacement]:
        return [(ir.Var, self.array_of)]

    def array_of(self, buffer: ir.Var) -> ir.Var:
        """The array that a tile becomes; anything else stays what it is."""
        if hash(buffer) not in self._flat:
            stays = not is_buffer_var(buffer) or not is_shared(buffer) or has_plain_rows(buffer)
            array = buffer if stays else retyped(buffer, shape=(span(buffer),))
            self._flat[hash(buffer)] = buffer, array
        return self._flat[hash(buffer)][1]

    def place_of(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
        """The place of an element, or of the contiguous elements of a vector."""
        *outer, last = indices
        vector = last if isinstance(last, tirx.Ramp) else None
        first = last if vector is None else vector.base
        # Neighbours differ in what is added last, so that nvcc sees that they can be accessed at once.
        run = contiguous_run(buffer) or 1
        within = self.analyzer.simplify(tirx.floormod(first, run))
        start = self.analyzer.simplify(tirx.floordiv(first, run) * run)
        place = buffer.ty.layout.apply(*outer, start, shape=buffer.ty.shape)["m"]
        place = self.analyzer.simplify(place) + within
        return place if vector is None else tirx.Ramp(place, vector.stride, vector.lanes)


# What a kernel does with its tiles -----------------------------------------------------------------


@dataclass
class SharedTiles:
    """The shared tiles that a kernel allocates, by what is done with them."""

    context: LoweringContext
    """Of the kernel."""
    all: list[ir.Var] = field(default_factory=list)
    """In the order of the program."""
    moved: set[ir.Var] = field(default_factory=set)
    """Tiles that operators move to or from fragments, several rows at once."""
    wanted_where_moved: SharedTile = field(default_factory=SharedTile)
    """How the implementations of operators want these to lie."""
    viewed: set[ir.Var] = field(default_factory=set)
    """Tiles that are seen through views, or whose address is taken: their rows are plain."""
    user_layouts: dict[ir.Var, tuple[Any, SourceLocation | None]] = field(default_factory=dict)
    """The layouts that the user fixes, and where."""
    _readers: list[tuple[Lowering, TileOp, LoweringContext]] = field(default_factory=list)
    _of_pieces: list[ir.Call] = field(default_factory=list)

    @classmethod
    def of(cls, kernel: tirx.For, target: Target) -> SharedTiles:
        """The shared tiles of a kernel, which is a tile program, for a target."""
        launch = Launch(kernel)
        context = LoweringContext(target, launch.analyzer(), launch=launch)
        tiles = cls(context, shared_tiles_in(kernel), viewed=set(Aliases(kernel).aliased))
        regions = Regions()

        def call(node: ir.Call, mutator: Mutator) -> ir.Call:
            tiles._note(node, context.of(regions.group))
            return mutator.default_mutate(node)

        mutated(kernel, (tirx.AttrStmt, regions.visit), (ir.Call, call))
        return tiles

    @cached_property
    def wanted(self) -> dict[ir.Var, SharedTile]:
        """The layouts that the implementations of operators want of the tiles that they read."""
        found: dict[ir.Var, SharedTile] = {}
        for chosen, op, context in self._readers:
            forms = chosen.shared.tiles(op, context) if chosen.shared is not None else {}
            for tile, form in forms.items():
                found[tile] = found.get(tile, SharedTile()) & form
        return found

    def form_of(self, tile: ir.Var) -> SharedTile:
        """The layout that a tile should have."""
        wanted = self.wanted.get(tile, SharedTile())
        return wanted & self.wanted_where_moved if tile in self.moved else wanted

    def why_plain(self, tile: ir.Var, panels: Collection[int]) -> str | None:
        """The reason why a tile does not lie in panels of these widths in bytes; None where it may.

        A layout that is fixed by hand may be such a swizzle, whatever it was made by. A fragment
        that is seen through views ends up in shared memory, in plain rows.
        """
        layout, _ = self.user_layouts.get(tile, ("auto", None))
        if tile in self.viewed:
            return f"{tile.name} is seen through a view, or its address is taken"
        if is_fragment(tile):
            return None
        if layout != "auto" and _panel_of(tile, layout) not in panels:
            return f"the layout of {tile.name} is fixed by hand"
        return None if _has_whole_rows(tile) else f"{tile.name} has no rows of constant extents"

    @property
    def with_rows(self) -> list[ir.Var]:
        """The tiles of at least two axes and constant extents that may lie in any way."""
        taken = self.viewed | self.user_layouts.keys()
        return [tile for tile in self.all if tile not in taken and _has_whole_rows(tile)]

    def _note(self, node: ir.Call, context: LoweringContext) -> None:
        op = operator_of(node)
        if op is None:
            self.viewed.update(arg for arg in node.args if is_buffer_var(arg))
            self._of_pieces += self._written_in_pieces(node)
            if takes_address(node) and not any(map(node.same_as, self._of_pieces)):
                self.viewed.update(buffer_of(arg) for arg in node.args if _is_load(arg))
            return
        for tile, layout in fixed_layouts(op).items():
            if is_shared(tile):
                self.user_layouts[tile] = layout, location_of(node)
        chosen = implementation_of(op, context.kind)
        if chosen is not None and chosen.shared is not None:
            self._readers.append((chosen, op, context))
            self.wanted_where_moved &= chosen.shared.moved
        operands = [*op.reads(), *op.writes()]
        if op.is_tile and any(is_fragment(buffer_of(operand)) for operand in operands):
            several = [operand for operand in operands if not _is_part_of_a_row(operand)]
            self.moved.update(filter(is_shared, map(buffer_of, several)))

    def _written_in_pieces(self, node: ir.Call) -> list[ir.Call]:
        """The address of what a thread's copy writes, where that is part of a piece of 16 bytes."""
        copy = issued(node)
        if copy is None or copy.token != CP_ASYNC.name or not takes_address(copy.operands[0]):
            return []
        (place,), size = copy.operands[0].args, constant(copy.operands[2])
        start = indices_of(place)[-1] * (bits_of(buffer_of(place)) // 8)
        is_part = size is not None and self.context.analyzer.can_prove_equal(
            tirx.floormod(start, size), 0
        )
        return [copy.operands[0]] if is_part else []


def _panel_of(tile: ir.Var, layout: Any) -> int | None:
    """Bytes of a panel of a tile with a layout that is fixed by hand; None of one without panels."""
    try:
        fixed = user_layout(tile, layout, max(SWIZZLES.values()), is_viewed=False)
    except InvalidOperand:  # LayOutSharedTiles says it
        return None
    return width_of(fixed, static_shape(tile), str(tile.ty.dtype))


def _is_load(node: ir.Expr) -> bool:
    return isinstance(node, ir.TensorLoad)


def _is_part_of_a_row(operand: Any) -> bool:
    """Tell whether a region has elements of one row only, which lie in different banks anyhow."""
    *outer, _ = ranges_of(operand)
    return all(constant(axis.extent) == 1 for axis in outer)


def _has_whole_rows(tile: ir.Var) -> bool:
    extents = [constant(extent) for extent in tile.ty.shape]
    return len(extents) > 1 and None not in extents and not tile.ty.strides


# Layouts that users fix ------------------------------------------------------------------------------


def user_layout(tile: ir.Var, layout: Any, widest: int, *, is_viewed: bool) -> Layout | None:
    """The layout that `T.annotate_layout` asks for; None where rows are plain.

    Parameters
    ----------
    tile : Var
        A shared tile.
    layout : str, Layout or IndexMap
        As the operator holds it.
    widest : int
        Bytes of a panel, where the user leaves that to the compiler.
    is_viewed : bool
        Whether it is seen through views, or its address is taken.

    Raises
    ------
    InvalidOperand
        If it can't be represented, or the tile is seen through views, which show plain rows.
    """
    if layout == "linear" or (is_viewed and layout == "auto"):
        return None
    if not is_viewed:
        return _fixed(tile, layout, widest)
    fixed = None if isinstance(layout, str) else _fixed(tile, layout, widest, is_exact=True)
    if fixed is None or not has_plain_rows(retyped(tile, layout=fixed)):
        raise _refused(tile, "it is seen through a view, or its address is taken")
    return None


def _fixed(tile: ir.Var, layout: Any, widest: int, *, is_exact: bool = False) -> Layout | None:
    dtype = str(tile.ty.dtype)
    if layout == "auto":
        return swizzled(static_shape(tile), dtype, widest=widest)
    if isinstance(layout, str):
        found = swizzled(static_shape(tile), dtype, SWIZZLES[layout])
        if found is None:
            raise _refused(tile, f"its rows do not consist of pieces of {SWIZZLES[layout]} bytes")
        return found
    if isinstance(layout, Layout):
        return layout
    return layout_of_map(tile, layout, is_exact=is_exact)


def layout_of_map(tile: ir.Var, layout: tirx.IndexMap, *, is_exact: bool = False) -> Layout:
    """The layout of an index map, whose results are the indices of a row-major array.

    If it `is_exact`, the first element lies where the map says.

    Raises
    ------
    InvalidOperand
        If it can't be represented, or gives two elements one place.
    """
    indices = np.indices(static_shape(tile), np.int64).reshape(len(tile.ty.shape), -1)
    points = dict(zip(layout.initial_indices, indices, strict=True))
    try:
        results = [
            np.broadcast_to(evaluate(e, points, lambda _: False, 0).numbers, indices.shape[1:])
            for e in layout.final_indices
        ]
    except NotSeparable:
        raise _refused(tile, f"{layout} is no function of the indices alone") from None
    places = _row_major(results).reshape(static_shape(tile))
    if len(np.unique(places)) < places.size:
        raise _refused(tile, "two elements would lie in one place")
    dtype = str(tile.ty.dtype)
    found = swizzle_of(places, dtype)
    # Only an address shows where the first element lies; another place of it renames the banks.
    alike = [places] if is_exact else [places, places - places.min(), places ^ places.flat[0]]
    for each in alike:
        found = found or layout_of_places(each, bits_of(tile))
    if found is None:
        raise _refused(
            tile,
            "a place is neither a sum of digits of the indices, nor such a sum with pieces of 16 bytes "
            "swizzled by XOR",
        )
    return found


def _row_major(indices: Sequence[np.ndarray]) -> np.ndarray:
    places = np.zeros_like(indices[0])
    for index in indices:
        places = places * (int(index.max()) + 1) + index
    return places


def _refused(tile: ir.Var, reason: str) -> InvalidOperand:
    return InvalidOperand(
        f"T.annotate_layout: the layout of the shared tile {describe(tile)} can't be used: {reason}",
        help="use tvmtile.layout.make_swizzled_layout(tile), which knows the banks of the target, or "
        "leave the layout to the compiler",
    )
