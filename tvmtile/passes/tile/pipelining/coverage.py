"""Which elements of a tile an iteration of a loop writes before it reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.ir.kernels import statements_of
from tvmtile.ir.operands import constant, extents_of, origin_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import substitute
from tvmtile.passes.tile.pipelining.body import PipelineStmt
from tvmtile.passes.tile.pipelining.tiles import KernelTiles

_MOST_STEPS = 64  # iterations of a serial loop that are followed one by one


class Coverage:
    """The elements of a tile that an iteration has written, as a mask."""

    def __init__(self, buffer: ir.Var, tiles: KernelTiles) -> None:
        self._buffer = buffer
        self._tiles = tiles
        self._shape = tuple(constant(extent) or 0 for extent in buffer.ty.shape)
        extents = {loop.loop_var: constant(loop.extent) for loop in tiles.bound_loops}
        self._ranges = {var: range(count) for var, count in extents.items() if count is not None}

    def holds_own_values(self, units: Sequence[PipelineStmt]) -> bool:
        """Tell whether an iteration reads only what it has written before."""
        if 0 in self._shape:
            return False
        for position, unit in enumerate(units):
            if self._buffer not in unit.reads:
                continue
            before = [u for u in units[:position] if _implied(u.conditions, unit.conditions)]
            if not self._written_by(before)[self._read_by(unit)].all():
                return False
        return True

    def is_complete(self, units: Sequence[PipelineStmt]) -> bool:
        """Tell whether every iteration writes the whole tile."""
        return bool(self._written_by([u for u in units if not u.conditions]).all())

    def _read_by(self, unit: PipelineStmt) -> tuple[slice, ...]:
        everything = tuple(slice(None) for _ in self._shape)
        op = operator_of(unit.inner.value) if isinstance(unit.inner, tirx.Evaluate) else None
        if op is None:
            return everything
        operands = [o for o in op.reads() if self._tiles.root(buffer_of(o)).same_as(self._buffer)]
        boxes = [self._box(o) if buffer_of(o).same_as(self._buffer) else None for o in operands]
        return boxes[0] if len(boxes) == 1 and boxes[0] is not None else everything

    def _written_by(self, units: Sequence[PipelineStmt]) -> np.ndarray:
        mask = np.zeros(self._shape, bool)
        for unit in units:
            if self._buffer in unit.writes:
                mask |= self._written(unit.inner, {})
        return mask

    def _written(self, stmt: tirx.Stmt, parallel: Mapping[ir.Var, range]) -> np.ndarray:
        nothing = np.zeros(self._shape, bool)
        if isinstance(stmt, tirx.Evaluate):
            return self._by_operator(stmt)
        if isinstance(stmt, tirx.BufferStore):
            return self._by_store(stmt, parallel)
        if isinstance(stmt, tirx.SeqStmt):
            return np.logical_or.reduce([self._written(s, parallel) for s in stmt.seq])
        if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is not None:
            cases = [self._written(case, parallel) for case in statements_of(stmt)]
            return np.logical_and.reduce(cases)
        if not isinstance(stmt, tirx.For):
            return nothing
        first, extent = constant(stmt.min), constant(stmt.extent)
        if first is None or extent is None or extent < 1:
            return nothing
        steps = range(first, first + extent)
        if stmt.kind != tirx.ForKind.SERIAL:
            return self._written(stmt.body, {**parallel, stmt.loop_var: steps})
        if extent > _MOST_STEPS:
            return nothing
        dtype = str(stmt.loop_var.ty.dtype)
        bodies = [substitute(stmt.body, {stmt.loop_var: tirx.const(i, dtype)}) for i in steps]
        return np.logical_or.reduce([self._written(body, parallel) for body in bodies])

    def _by_operator(self, stmt: tirx.Evaluate) -> np.ndarray:
        mask = np.zeros(self._shape, bool)
        op = operator_of(stmt)
        if op is None or not op.is_tile:
            return mask
        for operand in op.writes():
            box = self._box(operand)
            if buffer_of(operand).same_as(self._buffer) and box is not None:
                mask[box] = True
        return mask

    def _by_store(self, store: tirx.BufferStore, parallel: Mapping[ir.Var, range]) -> np.ndarray:
        """A store whose indices are constants and different loop variables writes a box."""
        mask = np.zeros(self._shape, bool)
        if not buffer_of(store).same_as(self._buffer):
            return mask
        ranges = {**self._ranges, **parallel}
        box = []
        for index in indices_of(store):
            if isinstance(index, ir.Var) and index in ranges:
                steps = ranges.pop(index)
                box.append(slice(max(steps.start, 0), steps.stop))
                continue
            value = constant(index)
            if value is None:
                return mask
            box.append(slice(value, value + 1))
        mask[tuple(box)] = True
        return mask

    def _box(self, operand: ir.Expr) -> tuple[slice, ...] | None:
        origin = [constant(low) for low in origin_of(operand)]
        extents = [constant(extent) for extent in extents_of(operand) or []]
        if None in origin or None in extents:
            return None
        return tuple(
            slice(low, low + extent)
            for low, extent in zip(origin, extents, strict=True)
            if low is not None and extent is not None
        )


def _implied(conditions: Sequence[ir.Expr], known: Sequence[ir.Expr]) -> bool:
    return all(any(structural_equal(c, k) for k in known) for c in conditions)
