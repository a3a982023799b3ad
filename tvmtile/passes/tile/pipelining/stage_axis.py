"""The axis of buffer copies that tiles of a pipelined loop get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated, ranges_of
from tvmtile.ir.operators import operator_of
from tvmtile.passes.tile.pipelining.tiles import KernelTiles


@dataclass(frozen=True)
class StageAxis:
    """The buffer copies of a tile in a loop."""

    count: int
    """How many there are."""
    index: ir.Expr
    """Which one an iteration works on, in terms of the loop's variable."""


def with_stage_axes(
    kernel: tirx.For, tiles: KernelTiles, axes: Mapping[ir.Var, Mapping[ir.Var, StageAxis]]
) -> tirx.For:
    """Give tiles a leading axis of buffer copies; what stands outside of the loops works on copy 0.

    The axes are given by the variable of a loop, then by tile.
    """
    return _Expander(tiles, axes).rewrite(kernel)


class _Expander:
    """Gives tiles their axis of buffer copies, and every use of them an index along it."""

    def __init__(
        self, tiles: KernelTiles, axes: Mapping[ir.Var, Mapping[ir.Var, StageAxis]]
    ) -> None:
        self._tiles = tiles
        self._axes = axes
        self._index: dict[ir.Var, ir.Expr] = {}  # of each tile, where the rewriting is
        self._new: dict[ir.Var, ir.Var] = {}
        for tile, count in self._counts().items():
            self._new[tile] = _with_stage_axis(tile, count, tile)
            for view in tiles.views_of(tile):
                self._new[view] = _with_stage_axis(view, count, tile)

    def _counts(self) -> dict[ir.Var, int]:
        counts: dict[ir.Var, int] = {}
        for of_loop in self._axes.values():
            for tile, axis in of_loop.items():
                counts[tile] = max(counts.get(tile, 1), axis.count)
        return counts

    def rewrite(self, kernel: tirx.For) -> tirx.For:
        return mutated(
            kernel,
            (tirx.For, self._loop),
            (tirx.BufferStore, self._store),
            (ir.TensorLoad, self._load),
            (ir.TensorRegion, self._region),
            (ir.Call, self._call),
            (ir.Var, self._variable),
        )

    def _variable(self, var: ir.Var, _: Mutator) -> ir.Var:
        return self._new.get(var, var)

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        outer = self._index
        own = self._axes.get(loop.loop_var, {})
        self._index = {**outer, **{tile: axis.index for tile, axis in own.items()}}
        result = mutator.default_mutate(loop)
        self._index = outer
        return result

    def _at(self, buffer: ir.Var) -> ir.Expr:
        return self._index.get(self._tiles.root(buffer), tirx.const(0, "int32"))

    def _load(self, load: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        if buffer_of(load) not in self._new:
            return mutator.default_mutate(load)
        indices = [
            self._at(buffer_of(load)),
            *(mutator.mutate(index) for index in indices_of(load)),
        ]
        return tirx.BufferLoad(self._new[buffer_of(load)], indices, load.span)

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        if buffer_of(store) not in self._new:
            return mutator.default_mutate(store)
        indices = [
            self._at(buffer_of(store)),
            *(mutator.mutate(index) for index in indices_of(store)),
        ]
        value = mutator.mutate(store.value)
        return tirx.BufferStore(self._new[buffer_of(store)], value, indices, span=store.span)

    def _region(self, region: ir.TensorRegion, mutator: Mutator) -> ir.Expr:
        if buffer_of(region) not in self._new:
            return mutator.default_mutate(region)
        stage = ir.Range.from_min_extent(self._at(buffer_of(region)), tirx.const(1, "int32"))
        ranges = [
            ir.Range.from_min_extent(mutator.mutate(r.min), mutator.mutate(r.extent))
            for r in ranges_of(region)
        ]
        return tirx.BufferRegion(self._new[buffer_of(region)], [stage, *ranges])

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(call)
        op = operator_of(result)
        if op is None:
            return result
        new = set(self._new.values())
        operands = [*op.reads(), *op.writes(), *op.fixed_layouts()]
        grown = [operand for operand in operands if buffer_of(operand) in new]
        return op.with_buffer_copies(grown).to_call(call.span) if grown else result


def _with_stage_axis(buffer: ir.Var, count: int, allocated: ir.Var) -> ir.Var:
    """A buffer like another one with a leading axis; views in the layout of their source keep it."""
    ty = buffer.ty
    keeps = structural_equal(ty.layout, allocated.ty.layout)
    shape = allocated.ty.shape if keeps else ty.shape
    layout = tirx.decl_buffer([count, *shape], str(ty.dtype)).ty.layout
    return tirx.decl_buffer(
        [count, *ty.shape],
        str(ty.dtype),
        name=buffer.name,
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
        layout=layout,
        span=buffer.span,
    )
