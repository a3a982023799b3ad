"""The shared tiles of a kernel, and what is known about where their elements may lie."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import Mutator, buffer_of, is_buffer_var, mutated
from tvmtile.analysis.aliases import Aliases
from tvmtile.errors import InvalidOperand, SourceLocation
from tvmtile.ir.asynchronous import CP_ASYNC, issued
from tvmtile.ir.calls import takes_address
from tvmtile.ir.kernels import Launch
from tvmtile.ir.operands import bits_of, constant, static_shape
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.scopes import is_fragment, is_shared
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import Regions
from tvmtile.layout.shared import SWIZZLES, width_of
from tvmtile.passes.memory.shared_memory import shared_tiles_in
from tvmtile.passes.memory.user_layouts import user_layout
from tvmtile.tileop.registry import Lowering, LoweringContext, SharedTile, implementation_of


@dataclass
class SharedTiles:
    """The shared tiles that a kernel allocates, by what is done with them."""

    context: LoweringContext
    """Of the kernel."""
    all: list[ir.Var] = field(default_factory=list)
    """In the order of the program."""
    moved: set[ir.Var] = field(default_factory=set)
    """Those that operators move to or from fragments, several rows at once."""
    wanted_where_moved: SharedTile | None = None
    """How an implementation wants these to lie."""
    viewed: set[ir.Var] = field(default_factory=set)
    """Those that are seen through views, or whose address is taken: their rows are plain."""
    user_layouts: dict[ir.Var, tuple[Any, SourceLocation | None]] = field(default_factory=dict)
    """The layouts that the user fixes, and where."""
    _readers: list[tuple[Lowering, TileOp, LoweringContext]] = field(default_factory=list)
    _of_pieces: list[ir.Call] = field(default_factory=list)

    @classmethod
    def of(cls, kernel: tirx.For, target: Target) -> SharedTiles:
        """Those of a kernel, which is a tile program, for a target."""
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
        """How the implementations of operators want tiles to lie that they read."""
        found: dict[ir.Var, SharedTile] = {}
        for chosen, op, context in self._readers:
            forms = chosen.shared(op, context) if chosen.shared is not None else {}
            for tile, form in forms.items():
                found[tile] = found.get(tile, SharedTile()) & form
        return found

    def form_of(self, tile: ir.Var) -> SharedTile:
        """How a tile should lie."""
        moved = self.wanted_where_moved if tile in self.moved else None
        return self.wanted.get(tile, SharedTile()) & (moved or SharedTile())

    def why_plain(self, tile: ir.Var, panels: Collection[int]) -> str | None:
        """Why a tile does not lie in panels of any of these widths in bytes; None where it may.

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
        """Those of at least two axes and constant extents that may lie in any way."""
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
        for tile, layout in op.fixed_layouts().items():
            if is_shared(tile):
                self.user_layouts[tile] = layout, location_of(node)
        chosen = implementation_of(op, context.kind)
        if chosen is not None and chosen.shared is not None:
            self._readers.append((chosen, op, context))
        if chosen is not None and chosen.moved is not None:
            self.wanted_where_moved = chosen.moved
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
        start = place.indices[-1] * (bits_of(buffer_of(place)) // 8)
        is_part = size is not None and self.context.analyzer.can_prove_equal(
            tirx.floormod(start, size), 0
        )
        return [copy.operands[0]] if is_part else []


def _panel_of(tile: ir.Var, layout: Any) -> int | None:
    """Bytes of a panel of a tile with a layout that is fixed by hand; None of one without panels."""
    try:
        fixed = user_layout(tile, layout, max(SWIZZLES.values()), is_viewed=False)
    except InvalidOperand:  # SwizzleShared says it
        return None
    return width_of(fixed, static_shape(tile), str(tile.ty.dtype))


def _is_load(node: ir.Expr) -> bool:
    return isinstance(node, ir.TensorLoad)


def _is_part_of_a_row(operand: Any) -> bool:
    """Tell whether a region has elements of one row only, which lie in different banks anyhow."""
    *outer, _ = operand.region
    return all(constant(axis.extent) == 1 for axis in outer)


def _has_whole_rows(tile: ir.Var) -> bool:
    extents = [constant(extent) for extent in tile.ty.shape]
    return len(extents) > 1 and None not in extents and not tile.ty.strides
