"""Lowerings that visit the elements of a tile one by one, with loops that may run in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile.language.dtypes import DType, cast
from tvmtile.rewriting import nest
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.fill import Fill
from tvmtile.tileop.operands import constant, dtype_of
from tvmtile.tileop.registry import LoweringContext, lowering

__all__ = ["element", "over_region"]


def over_region(operand: ir.TensorRegion, body: Callable[[list[Any]], tirx.Stmt]) -> tirx.Stmt:
    """Loops over the axes of a region that are not of extent 1; `body` gets one index an axis."""
    extents = [r.extent for r in operand.region]
    moving = [axis for axis, extent in enumerate(extents) if constant(extent) != 1]

    def inside(variables: list[ir.Var]) -> tirx.Stmt:
        offsets: list[Any] = [0] * len(extents)
        for axis, var in zip(moving, variables, strict=True):
            offsets[axis] = var
        return body(offsets)

    return nest([extents[axis] for axis in moving], inside)


def element(operand: ir.TensorRegion, offsets: Sequence[Any]) -> list[Any]:
    """The indices of the element at `offsets` from a region's origin."""
    return [
        r.min if isinstance(offset, int) and offset == 0 else r.min + offset
        for r, offset in zip(operand.region, offsets, strict=True)
    ]


def matching_offsets(
    source: ir.TensorRegion, target: ir.TensorRegion, offsets: Sequence[Any]
) -> list[Any]:
    """Offsets in `target` of the element at `offsets` in `source`, units on either side skipped."""
    moving = [
        offset for offset, r in zip(offsets, source.region, strict=True) if constant(r.extent) != 1
    ]
    moving.reverse()
    return [0 if constant(r.extent) == 1 else moving.pop() for r in target.region]


@lowering(Copy, target="llvm", variant="elements")
def copy_elements(op: Copy, context: LoweringContext) -> tirx.Stmt:
    """`dst[i, j] = cast(src[i, j])` over the tile; edges are guarded by GuardGlobalAccess."""
    del context
    dtype = DType(dtype_of(op.dst))

    def body(offsets: list[Any]) -> tirx.Stmt:
        load = tirx.BufferLoad(
            op.src.source, element(op.src, matching_offsets(op.dst, op.src, offsets))
        )
        return tirx.BufferStore(op.dst.source, cast(load, dtype), element(op.dst, offsets))

    return over_region(op.dst, body)


@lowering(Fill, target="llvm", variant="elements")
def fill_elements(op: Fill, context: LoweringContext) -> tirx.Stmt:
    """`dst[i, j] = value` over the tile."""
    del context
    value = cast(op.value, DType(dtype_of(op.dst)))
    return over_region(
        op.dst, lambda offsets: tirx.BufferStore(op.dst.source, value, element(op.dst, offsets))
    )
