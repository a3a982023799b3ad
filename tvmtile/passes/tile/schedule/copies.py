"""The work of producers: copies that arrive on an mbarrier, and tiles that its threads compute.

A warpgroup of the producer's computes them ahead, in registers, and stores them where a product reads
them. What it has in fragments on the way is its own: no consumer touches these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tvm import ir, tirx
from tvm.tirx.layout import ComposeLayout, Layout

from tvmtile._tvm import buffer_of, is_buffer_var, mapped, ranges_of
from tvmtile.analysis.kernel_info import KernelInfo
from tvmtile.errors import NoLowering
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.operators import TileOp, begun_on, copied, fixed_layouts, operator_of, operators_in
from tvmtile.ir.rewriting import contains, retyped, substitute
from tvmtile.ir.scopes import is_fragment, is_global, is_shared, is_tensor
from tvmtile.layout.shared import SWIZZLES, period_of, swizzled
from tvmtile.passes.memory.shared_layouts import layout_of_map
from tvmtile.passes.tile.schedule.body import PipelineStmt
from tvmtile.passes.tile.schedule.rings import Mbarriers, Position
from tvmtile.tileop.registry import LoweringContext
from tvmtile.tileop.selection import declined_before, select


def is_computed(unit: PipelineStmt) -> bool:
    """Tell whether the elements that a statement writes are more than moved, one by one."""
    operators = [op for op in operators_in(unit.stmt) if op.is_tile]
    if operators:
        return all(_is_elementwise(op) and copied(op) is None for op in operators)
    return contains(unit.stmt, tirx.BufferStore, lambda store: not _is_move(store))


def computes_as_it_loads(unit: PipelineStmt) -> bool:
    """Tell whether a statement is a loop that computes from global memory, and no copy."""
    operators = [op for op in operators_in(unit.stmt) if op.is_tile]
    return not operators and any(map(is_tensor, unit.reads))


def _is_elementwise(op: TileOp) -> bool:
    """Tell whether threads may do an operator; a copy may say that its loop has one role."""
    return begun_on(op, ANY_MBARRIER) is not None and op.as_loops() is not None


ANY_MBARRIER = Mbarriers.named("any", 1).at(Position.of(tirx.const(0, "int32"), 1))
"""To ask an operator whether it can arrive on one."""


def _is_move(store: tirx.BufferStore) -> bool:
    """Tell whether an element is stored as it is, or a constant where there is none."""
    value = store.value
    if isinstance(value, ir.Call) and is_if_then_else(value):
        _, value, other = value.args
        if not isinstance(other, tirx.IntImm | tirx.FloatImm):
            return False
    return isinstance(value, ir.TensorLoad)


def computed_ahead(
    units: Sequence[PipelineStmt],
    tiles: KernelInfo,
    ahead: Collection[int],
    *,
    from_tiles: bool = False,
) -> frozenset[int]:
    """The statements that compute operands of products from global memory, by way of fragments.

    `ahead` are those that run ahead without them; with `from_tiles` their tiles are sources, too. A
    fragment on the way is touched by nothing else.
    """
    found = {i for i in range(len(units)) if i not in ahead and _may_compute(units[i], tiles)}
    chain = _Chain(units, tiles, ahead, found, from_tiles=from_tiles)
    while without := [number for number in found if not chain.is_closed(number)]:
        found.difference_update(without)
    fills_tiles = any(is_shared(var) for number in found for var in units[number].writes)
    return frozenset(found) if fills_tiles else frozenset()


def why_not_from_tiles(
    units: Sequence[PipelineStmt], tiles: KernelInfo, ahead: Collection[int]
) -> str | None:
    """The reason why threads compute a product's operands in shared memory that they read, if so.

    A producer would have to wait for its own copies, which a ring between the two would take, and whose
    bytes a block would hold twice: it is slower (`benchmarks/h200/decisions.md`).
    """
    chain = [units[n] for n in sorted(computed_ahead(units, tiles, ahead, from_tiles=True))]
    brought = {var for number in ahead for var in units[number].writes if is_shared(var)}
    sources = [var for unit in chain for var in unit.reads if var in brought]
    targets = [var for unit in chain for var in unit.writes if is_shared(var)]
    if not sources or not targets:
        return None
    return (
        f"{targets[0].name} is computed from {sources[0].name}, which a copy brings: threads that "
        "multiply do that"
    )


def _may_compute(unit: PipelineStmt, tiles: KernelInfo) -> bool:
    """Tell whether a statement stores elements in fragments or shared tiles, and does nothing else."""
    operators = [op for op in operators_in(unit.stmt) if op.is_tile]
    is_elementwise = all(map(_is_elementwise, operators)) if operators else is_parallel(unit.inner)
    return (
        is_elementwise
        and not unit.binds
        and not unit.has_effects
        and bool(unit.writes)
        and unit.writes.keys().isdisjoint(unit.reads)
        and len({is_shared(var) for var in unit.writes}) == 1
        and all(
            var in tiles.allocated
            and (is_shared(var) or is_fragment(var))
            and not tiles.views_of(var)
            and not tiles.escapes(var)
            for var in unit.writes
        )
    )


class _Chain:
    """Statements that compute ahead, `found`, as long as all that they need is theirs."""

    def __init__(
        self,
        units: Sequence[PipelineStmt],
        tiles: KernelInfo,
        ahead: Collection[int],
        found: Collection[int],
        *,
        from_tiles: bool,
    ) -> None:
        self._units = units
        self._ahead = ahead
        self._found = found
        self._from_tiles = from_tiles
        self._operands = {
            var
            for unit in units
            if any(op.role == "product" for op in operators_in(unit.stmt))
            for var in unit.reads
        }
        self._written = tiles.written
        self._uses = {var: len(tiles.effects_on(var)) for unit in units for var in unit.touches}

    def is_closed(self, number: int) -> bool:
        unit = self._units[number]
        return all(map(self._is_known, unit.reads)) and all(
            self._is_own(var, number) for var in unit.writes
        )

    def _is_known(self, var: ir.Var) -> bool:
        if not is_buffer_var(var) or (self._from_tiles and is_shared(var)):
            return all(other in self._ahead for other in self._writers(var))
        if is_fragment(var):
            return self._is_theirs(var)
        return is_global(var) and var not in self._written

    def _is_own(self, var: ir.Var, number: int) -> bool:
        """Tell whether only such statements write a tile, and touch a fragment."""
        if not is_shared(var):
            return self._is_theirs(var)
        readers = [i for i, unit in enumerate(self._units) if var in unit.reads]
        return (
            var in self._operands
            and all(other in self._found for other in self._writers(var))
            and all(other > number and other not in self._found for other in readers)
        )

    def _is_theirs(self, var: ir.Var) -> bool:
        inside = [i for i, unit in enumerate(self._units) if var in unit.touches]
        is_inside = sum(len(self._units[i].effects_on(var)) for i in inside) == self._uses[var]
        return is_inside and all(other in self._found for other in inside)

    def _writers(self, var: ir.Var) -> list[int]:
        return [i for i, unit in enumerate(self._units) if var in unit.writes]


# Copies that complete on an mbarrier --------------------------------------------------------------


class BulkCopies:
    """The copies of a kernel, and the layouts that it fixes for their tiles."""

    def __init__(self, kernel: tirx.For, context: LoweringContext) -> None:
        self._context = context
        self._fixed = {
            tile: op for op in operators_in(kernel) for tile in fixed_layouts(op) if is_shared(tile)
        }

    def why_not(self, op: TileOp, stages: int) -> str | None:
        """The reason why a copy can't go on by itself, in whichever way its tile's copies lie."""
        begun = begun_on(op, ANY_MBARRIER)
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
    return fixed_layouts(fixing)[staged]


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
