"""Loops over the elements of tiles, shared by elementwise lowerings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import DataType, ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.operands import constant, dtype_of
from tvmtile.ir.rewriting import nest
from tvmtile.ir.scopes import is_fragment
from tvmtile.ir.types import Index


def moving_axes(operand: ir.TensorRegion) -> list[int]:
    """The axes of a region along which it has more than one element, as far as is known."""
    return [axis for axis, r in enumerate(ranges_of(operand)) if constant(r.extent) != 1]


def _looped_axes(operand: ir.TensorRegion) -> list[int]:
    """The axes of a region that loops run over: of a single element, the last one."""
    return moving_axes(operand) or [len(ranges_of(operand)) - 1]


def _picked_axes(operand: ir.TensorRegion) -> list[int]:
    """The axes of a fragment of which a region has one index of several: not all threads hold it."""
    if not is_fragment(buffer_of(operand)):
        return []
    shape = zip(ranges_of(operand), buffer_of(operand).ty.shape, strict=True)
    return [
        axis for axis, (r, size) in enumerate(shape) if constant(r.extent) == 1 != constant(size)
    ]


def over_region(
    operand: ir.TensorRegion,
    body: Callable[[list[Index]], tirx.Stmt],
    *,
    without: Sequence[int] = (),
    kind: tirx.ForKind = tirx.ForKind.PARALLEL,
) -> tirx.Stmt:
    """Loops over the axes of a region that are not of extent 1, but one around a single element.

    A loop says that its iteration is done by the thread that holds the element; without one, all would.
    So there is one around a single row of a fragment too. `body` makes the innermost statement from one
    offset an axis, 0 along axes without a loop; the axes of `without` get none. The loops are parallel,
    as elementwise work is, or serial where the body is not elementwise.
    """
    extents = [r.extent for r in ranges_of(operand)]
    over = {*_looped_axes(operand), *_picked_axes(operand)}
    looped = [axis for axis in range(len(extents)) if axis in over and axis not in without]

    def inside(variables: list[ir.Var]) -> tirx.Stmt:
        offsets: list[Index] = [0] * len(extents)
        for axis, var in zip(looped, variables, strict=True):
            offsets[axis] = var
        return body(offsets)

    return nest([extents[axis] for axis in looped], inside, kind)


def element(operand: ir.TensorRegion, offsets: Sequence[Index]) -> list[ir.Expr]:
    """The indices of the element at `offsets` from a region's origin."""
    return [
        r.min if isinstance(offset, int) and offset == 0 else r.min + offset
        for r, offset in zip(ranges_of(operand), offsets, strict=True)
    ]


def matching_offsets(
    source: ir.TensorRegion,
    target: ir.TensorRegion,
    offsets: Sequence[Index],
    *,
    without: Sequence[int] = (),
) -> list[Index]:
    """Offsets in `target` of the element at `offsets` in `source`, units on either side skipped.

    Where both have them in the same places, there is nothing to skip. The axes `without` of the source
    have no counterpart in the target.
    """
    if not without and _are_alike(source, target):
        return list(offsets)
    moving = [offsets[axis] for axis in _looped_axes(source) if axis not in without]
    matching: list[Index] = [0] * len(ranges_of(target))
    for axis, offset in zip(_looped_axes(target), moving, strict=False):
        matching[axis] = offset
    return matching


def _are_alike(a: ir.TensorRegion, b: ir.TensorRegion) -> bool:
    """Tell whether two regions of a shape have their units along the same axes."""
    return len(ranges_of(a)) == len(ranges_of(b)) and moving_axes(a) == moving_axes(b)


def converted(value: ir.Expr, dtype: str) -> ir.Expr:
    """`value` in another dtype; a vector keeps its lanes."""
    source = DataType(str(value.ty.dtype))
    wanted = f"{dtype}x{source.lanes}" if source.lanes > 1 else dtype
    return value if str(source) == wanted else tirx.Cast(wanted, value)


def moved(src: ir.TensorRegion, dst: ir.TensorRegion) -> tirx.Stmt:
    """Loops that copy a tile to another of its shape, each element converted."""
    looped = src if _is_left_by_holders(src, dst) else dst

    def body(offsets: list[Index]) -> tirx.Stmt:
        at_src, at_dst = (matching_offsets(looped, side, offsets) for side in (src, dst))
        value = tirx.BufferLoad(buffer_of(src), element(src, at_src))
        return tirx.BufferStore(
            buffer_of(dst), converted(value, dtype_of(dst)), element(dst, at_dst)
        )

    return over_region(looped, body)


def _is_left_by_holders(src: ir.TensorRegion, dst: ir.TensorRegion) -> bool:
    """Tell whether the threads that hold a single row of a fragment write it to memory.

    Where the row varies, it must be seen from the places written that other threads write others.
    """
    picked = _picked_axes(src)
    if not picked or is_fragment(buffer_of(dst)):
        return False
    is_known = all(constant(ranges_of(src)[axis].min) is not None for axis in picked)
    return is_known or _are_alike(src, dst)
