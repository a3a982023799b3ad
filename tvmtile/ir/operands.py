"""Operands of tile operators: whole buffers, regions, and elements that name a tile's origin."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, is_node, ranges_of
from tvmtile.errors import InvalidOperand, OutOfBounds, ShapeMismatch, warn
from tvmtile.ir.scopes import is_global
from tvmtile.ir.types import Index, TileOperand


class _OfThread(threading.local):
    """An analyzer for each thread: calls of one from several threads corrupt what it knows."""

    def __init__(self) -> None:
        self.analyzer = Analyzer()


_OF_THREAD = _OfThread()


def dtype_of(operand: ir.Expr) -> str:
    """The dtype of an operand's elements."""
    return str(buffer_of(operand).ty.dtype)


def bits_of(operand: ir.Expr) -> int:
    """Bits of an element of an operand."""
    return int(DataType(dtype_of(operand)).bits)


def is_scalar(value: Any) -> bool:
    """Tell whether a value is one number, or a truth value: no vector and no address."""
    return ir.is_prim_expr(value) and int(DataType(str(value.ty.dtype)).lanes) == 1


def extents_of(operand: ir.Expr) -> list[ir.Expr] | None:
    """The extents of an operand, or None for an element, which has only an origin."""
    if is_buffer_var(operand):
        return list(operand.ty.shape)
    if isinstance(operand, ir.TensorRegion):
        return [r.extent for r in ranges_of(operand)[:]]
    return None


def shape_of(operand: ir.Expr) -> list[ir.Expr]:
    """The extents of an operand; of an element, those of its buffer."""
    return extents_of(operand) or list(buffer_of(operand).ty.shape)


def origin_of(operand: Any) -> list[ir.Expr]:
    """The indices of an operand's first element."""
    if is_buffer_var(operand):
        return [tirx.const(0, extent.ty.dtype) for extent in operand.ty.shape]
    if isinstance(operand, ir.TensorRegion):
        return [r.min for r in ranges_of(operand)[:]]
    return list(indices_of(operand))


def region(buffer: ir.Var, origin: Sequence[Any], extents: Sequence[Any]) -> ir.TensorRegion:
    """The region of `buffer` that starts at `origin`."""
    ranges = [
        ir.Range.from_min_extent(as_int32(low), as_int32(extent))
        for low, extent in zip(origin, extents, strict=True)
    ]
    return tirx.BufferRegion(buffer, ranges)


def as_int32(value: Index) -> ir.Expr:
    """A number of Python's as an int32; an expression as it is."""
    return tirx.const(value, "int32") if isinstance(value, int) else value


def as_region(operand: Any, extents: Sequence[Any] | None = None) -> ir.TensorRegion:
    """An operand as an explicit region.

    `extents` are those of an element's tile, aligned with its last axes; leading axes have extent 1.
    """
    own = extents_of(operand)
    if own is None:
        rank = len(indices_of(operand))
        given = list(extents) if extents is not None else []
        own = [1] * (rank - len(given)) + given[max(0, len(given) - rank) :]
    return region(buffer_of(operand), origin_of(operand), own)


@cache
def integer_range(dtype: str) -> tuple[int, int]:
    """The least and the largest number that a dtype of integers holds."""
    return int(tirx.min_value(dtype).value), int(tirx.max_value(dtype).value)


def may_wrap(cast: tirx.Cast) -> bool:
    """Tell whether a conversion between integers of whole bytes does not keep all values."""
    source, target = (DataType(str(value.ty.dtype)) for value in (cast.value, cast))
    if not all(str(dtype).startswith(("int", "uint")) for dtype in (source, target)):
        return False
    (least, greatest), (low, high) = (integer_range(str(x.with_lanes(1))) for x in (source, target))
    return min(source.bits, target.bits) >= 8 and (least < low or greatest > high)


def wrapped(number: int, dtype: str) -> int:
    """The number of a dtype of integers that has the same lowest bits."""
    low, high = integer_range(dtype)
    return (number - low) % (high - low + 1) + low


def literal(value: ir.Expr) -> int | None:
    """The value of an integer as it stands, None for anything else; `constant` simplifies first."""
    return int(value.value) if is_node(value, tirx.IntImm) else None


def constant(value: Index) -> int | None:
    """The value of a constant extent or index, None for anything else."""
    if isinstance(value, int | tirx.IntImm):
        return int(value)
    return literal(_OF_THREAD.analyzer.simplify(value))


def ends_of(index: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The first and the last index of the lanes of an access."""
    if is_node(index, tirx.Ramp):
        return index.base, index.base + (index.lanes - 1) * index.stride
    return index, index


def offset_in_memory(buffer: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
    """The number of elements before one of a buffer, in memory."""
    strides = buffer.ty.strides
    offset: Any = 0
    for axis, index in enumerate(indices):
        if strides:
            offset = offset + index * strides[axis]
        else:
            offset = offset * buffer.ty.shape[axis] + index
    return offset


def static_shape(buffer: ir.Var) -> list[int]:
    """The extents of a buffer; 0 in place of one that is not constant."""
    return [constant(extent) or 0 for extent in buffer.ty.shape]


def is_whole(operand: ir.TensorRegion) -> bool:
    """Tell whether a region has the extents of its buffer, all of them constants."""
    extents = [constant(r.extent) for r in ranges_of(operand)]
    return None not in extents and extents == [constant(e) for e in buffer_of(operand).ty.shape]


def same_extents(a: Index, b: Index) -> bool:
    """Tell whether two extents are equal, as far as can be known."""
    return constant(as_int32(a) - as_int32(b)) == 0


def without_units(extents: Sequence[Index]) -> list[Index]:
    """The extents that are not 1."""
    return [extent for extent in extents if constant(extent) != 1]


def match_extents(a: Any, b: Any) -> tuple[list[Any], list[Any]] | None:
    """The extents of two operands of a copy, an element taking those of the other side.

    Axes of extent 1 may be missing on either side. Returns None where the tiles differ.
    """
    own_a, own_b = extents_of(a), extents_of(b)
    if own_a is None and own_b is None:
        return [1] * len(indices_of(a)), [1] * len(indices_of(b))
    if own_a is None:
        own_a = _fit(own_b or [], len(indices_of(a)))
    elif own_b is None:
        own_b = _fit(own_a, len(indices_of(b)))
    if own_a is None or own_b is None:
        return None
    left, right = without_units(own_a), without_units(own_b)
    if len(left) != len(right):
        return None
    if not all(same_extents(x, y) for x, y in zip(left, right, strict=True)):
        return None
    return own_a, own_b


def _fit(extents: list[Any], rank: int) -> list[ir.Expr] | None:
    """`extents` on the last of `rank` axes, units dropped where there are too many."""
    if len(extents) > rank:
        extents = without_units(extents)
    if len(extents) > rank:
        return None
    return [1] * (rank - len(extents)) + extents


SAME_EXTENTS = "give both sides the same extents (axes of extent 1 don't count)"


def matched_regions(
    operator: str,
    src: ir.Expr,
    dst: ir.Expr,
    help: str = SAME_EXTENTS,
    *,
    may_reach_over: bool = False,
) -> tuple[ir.TensorRegion, ir.TensorRegion]:
    """Both sides of a copy; one that is named by its first element has the extents of the other.

    Raises
    ------
    ShapeMismatch
        If the tiles differ in their shapes; `help` says what to do then.
    OutOfBounds
        If a side certainly reaches outside its buffer, as `check_bounds` says.
    """
    matched = match_extents(src, dst)
    if matched is None:
        raise ShapeMismatch(
            f"{operator}: {describe(src)} and {describe(dst)} are tiles of different shapes",
            help=help,
        )
    for operand in (src, dst):
        check_bounds(operator, operand, may_be_guarded=True, may_reach_over=may_reach_over)
    return as_region(src, matched[0]), as_region(dst, matched[1])


def check_bounds(
    operator: str,
    operand: ir.Expr,
    *,
    may_be_guarded: bool = False,
    may_reach_over: bool = False,
) -> None:
    """Refuse a constant region that certainly reaches outside its buffer.

    Regions whose position is known only at run time are guarded instead: elements outside the
    tensor read as zero and are not written. With `may_be_guarded` the message says how to ask for that;
    with `may_reach_over` so are those of a region that begins inside of its tensor.
    """
    for axis, first, end, is_guarded in _outside(operand):
        if is_guarded and may_reach_over:
            continue
        buffer = buffer_of(operand)
        help = f"the axis has {buffer.ty.shape[axis]} elements, the region is {first}:{end}"
        if is_guarded and may_be_guarded:
            help += (
                f"; named by its first element, `{_first_element(operand)}`, with the extents of the "
                "other side, it reads zero and writes nothing there"
            )
        raise OutOfBounds(
            f"{operator}: {describe(operand)} reaches outside {describe(buffer)} along axis {axis}",
            help=help,
        )


def warn_of_edges(operator: str, operand: ir.Expr) -> None:
    """Warn of a constant region that reaches over the edge of its tensor."""
    for axis, *_, is_guarded in _outside(operand):
        if is_guarded:
            warn(
                f"{operator}: {describe(operand)} reaches outside {describe(buffer_of(operand))} along "
                f"axis {axis}, where it reads zero and writes nothing; `{_first_element(operand)}`, "
                "which takes the extents of the other side, says so without this warning"
            )


def _first_element(operand: ir.Expr) -> str:
    return f"{buffer_of(operand).name}[{', '.join(map(str, origin_of(operand)))}]"


def _outside(operand: ir.Expr) -> Iterator[tuple[int, int, int, bool]]:
    """Axes along which a constant region reaches outside: each with where the region begins and ends.

    And whether it begins inside of a tensor, whose accesses are guarded.
    """
    extents = extents_of(operand)
    if extents is None or is_buffer_var(operand):
        return
    buffer = buffer_of(operand)
    for axis, (low, extent, size) in enumerate(
        zip(origin_of(operand), extents, buffer.ty.shape, strict=True)
    ):
        first, count, limit = constant(low), constant(extent), constant(size)
        if first is None or count is None:
            continue
        if first < 0 or (limit is not None and first + count > limit):
            yield axis, first, first + count, is_global(buffer) and 0 <= first < (limit or 0)


def checked_axis(operator: str, name: str, operand: TileOperand, dim: Index) -> int:
    """An axis of an operand, counted from the first.

    Raises
    ------
    InvalidOperand
        If the operand is an element, which has no axes, or there is no such axis.
    """
    extents = extents_of(operand)
    if extents is None:
        raise InvalidOperand(
            f"{operator}: {name} is the element {describe(operand)}, which has no axes",
            help="give a whole buffer or a region, `A[i0:i1, j0:j1]`",
        )
    rank = len(extents)
    if isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank:
        raise InvalidOperand(
            f"{operator}: {describe(operand)} has no axis {dim!r}",
            help=f"dim is an integer from {-rank} to {rank - 1}",
        )
    return dim % rank


def describe(operand: Any) -> str:
    """An operand as messages show it: `A_shared[128, 32] float16`."""
    if not isinstance(operand, ir.TensorRegion | ir.TensorLoad) and not is_buffer_var(operand):
        return str(operand)
    buffer = buffer_of(operand)
    dtype = buffer.ty.dtype
    if isinstance(operand, ir.TensorRegion):
        slices = ", ".join(_slice(r) for r in ranges_of(operand))
        return f"{buffer.name}[{slices}] {dtype}"
    if isinstance(operand, ir.TensorLoad):
        return f"{buffer.name}[{', '.join(str(i) for i in indices_of(operand))}] {dtype}"
    return f"{buffer.name}[{', '.join(str(e) for e in buffer.ty.shape)}] {dtype}"


def _slice(r: ir.Range) -> str:
    low, extent = constant(r.min), constant(r.extent)
    if low is not None and extent is not None:
        return f"{low}:{low + extent}"
    return f"{r.min}:{_OF_THREAD.analyzer.simplify(r.min + r.extent)}"
