"""A tile as boxes of a tensor, each of which an instruction copies at once.

A box lies in shared memory as one run of bytes, the last axis of the tensor fastest, in which pieces of
16 bytes may be exchanged as a swizzle does. So a tile of plain rows is one box, or one for each of the
runs that it consists of; of a swizzled tile each panel is a box.

PTX ISA, "Asynchronous Data Movement: tensor copies"; CUDA Driver API, "cuTensorMapEncodeTiled".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.operands import bits_of, constant, describe, static_shape
from tvmtile.ir.rewriting import substitute, variables_of
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.tensor_maps import TensorMap, tensor_map
from tvmtile.ir.types import Index
from tvmtile.layout.shared import has_plain_rows, width_of
from tvmtile.tileop.elementwise import moving_axes
from tvmtile.tileop.registry import Decline

_MOST_AXES = 5
MOST_ELEMENTS = 256
"""Of a box along an axis."""
PIECE = 16
"""Bytes: what strides of a tensor, and rows of a box, are multiples of."""
_LINE = 128
"""Bytes: where boxes begin in shared memory."""
_SWIZZLED_LINES = 8
"""Lines as wide as a panel after which a swizzle repeats."""
_BITS = (8, 16, 32, 64)
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTION = 2
"""To 128 bytes."""
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_NO_INTERLEAVE, _ZEROS = 0, 0
_ROWS = 8
"""After which a swizzle repeats in a panel: where one box ends and the next begins."""
_MOST_BOXES = 64


@dataclass(frozen=True)
class Box:
    """The origin of a box."""

    tile: list[Any]
    tensor: list[Any]
    """The indices of its first element."""


@dataclass(frozen=True)
class BoxCopy:
    """A copy of a region of a shared tile, from a tensor or to it, as boxes of one shape."""

    tile: ir.TensorRegion
    tensor: ir.TensorRegion
    boxes: list[Box]
    """In any order."""
    in_tensor: tuple[int, ...]
    in_tile: tuple[int, ...]
    """The extents of a box along the axes of the tensor, and of the tile."""
    swizzle: int
    """Bytes of the panels in which pieces are exchanged; 0: none."""
    eviction: str | None = None
    """How long the L2 cache keeps what moves (`tvmtile.tileop.eviction`)."""
    tensor_map: ir.Expr | None = None
    """The user's, by which the boxes are found; by default one of our own."""

    @classmethod
    def of(
        cls,
        src: ir.TensorRegion,
        dst: ir.TensorRegion,
        analyzer: Analyzer,
        eviction: str | None = None,
    ) -> BoxCopy:
        """The boxes that a copy consists of, of which one side is a shared tile.

        Both have the same extents but for those of 1.

        Raises
        ------
        Decline
            If it does not consist of boxes.
        """
        tile, tensor = (dst, src) if is_shared(buffer_of(dst)) else (src, dst)
        item = bits_of(tile) // 8
        panel, swizzle = _panel_of(buffer_of(tile))
        in_tile = _dense(tile, panel)
        pairs = dict(zip(moving_axes(tile), moving_axes(tensor), strict=True))
        in_tensor = [1] * len(ranges_of(tensor))
        for axis, extent in enumerate(in_tile):
            if extent > 1:
                in_tensor[pairs[axis]] = extent
        if in_tensor[-1] * item % PIECE:
            raise Decline(
                f"rows of {describe(tile)} are {in_tensor[-1] * item} bytes; those of a box are "
                f"multiples of {PIECE}"
            )
        steps = _steps(tile, in_tile)
        if math.prod(map(len, steps)) > _MOST_BOXES:
            raise Decline(f"{describe(tile)} would be {math.prod(map(len, steps))} boxes")
        boxes = [_box(tile, tensor, pairs, offsets) for offsets in itertools.product(*steps)]
        copy = cls(tile, tensor, boxes, tuple(in_tensor), tuple(in_tile), swizzle, eviction)
        for box in boxes:
            place = _place(buffer_of(tile), box.tile, panel) * item
            if not analyzer.can_prove_equal(tirx.floormod(place, copy.alignment), 0):
                raise Decline(f"{describe(tile)} may not begin where its swizzle does")
        return copy

    @property
    def bytes(self) -> int:
        """The bytes of all boxes."""
        return len(self.boxes) * math.prod(self.in_tile) * bits_of(self.tile) // 8

    @property
    def alignment(self) -> int:
        """Bytes: a tile begins at a multiple of it in shared memory."""
        return max(_LINE, self.swizzle * _SWIZZLED_LINES)

    def address(self) -> ir.Expr:
        """The address of the tensor map, as an expression of the kernel."""
        if self.tensor_map is not None:
            return self.tensor_map
        return map_of(buffer_of(self.tensor), self.in_tensor, self.swizzle)

    def check_columns(self, names: dict[ir.Var, ir.Expr], analyzer: Analyzer) -> None:
        """Raise `Decline` where a box may begin between multiples of 16 bytes: illegal.

        `names` has what the kernel binds names to.
        """
        item = bits_of(self.tensor) // 8

        def is_multiple(column: Any) -> bool:
            return analyzer.can_prove_equal(tirx.floormod(column * item, PIECE), 0)

        for box in self.boxes:
            column = box.tensor[-1]  # mostly a multiple, whatever its names stand for
            if not is_multiple(column) and not is_multiple(substitute(column, names)):
                raise Decline(
                    f"rows of {describe(self.tensor)} may not begin at a multiple of {PIECE} bytes"
                )

    def check_starts(self, names: dict[ir.Var, ir.Expr], analyzer: Analyzer) -> None:
        """Raise `Decline` where a box that is stored may begin in front of the tensor.

        An H200 takes that for an illegal instruction, of stores and additions; of loads it does not,
        nor of boxes that begin behind the tensor.
        """
        for index in itertools.chain.from_iterable(box.tensor for box in self.boxes):
            if not analyzer.can_prove(substitute(index, names) >= 0):
                raise Decline(
                    f"{describe(self.tensor)} may begin at a negative index, for all that is known "
                    f"of {index}; T.assume can say that it does not"
                )


def strides_of(tensor: ir.Var) -> list[ir.Expr]:
    """The elements from one index to the next, along each axis of a tensor."""
    if tensor.ty.strides:
        return list(tensor.ty.strides)
    shape = list(tensor.ty.shape)
    return [
        math.prod(shape[axis + 1 :], start=tirx.const(1, "int64")) for axis in range(len(shape))
    ]


def map_of(tensor: ir.Var, box: Sequence[int], swizzle: int) -> ir.Expr:
    """The address of the map that describes a tensor to copies of boxes of such extents.

    Floats of 8 bits and bool are copied as integers of their width.
    """
    dtype, bits = str(tensor.ty.dtype), bits_of(tensor)
    steps = [stride * (bits // 8) for stride in strides_of(tensor)[:-1]]
    return tensor_map(
        TensorMap(
            tensor.data,
            dtype if dtype in _DTYPES else f"uint{bits}",
            list(reversed(tensor.ty.shape)),
            list(reversed(steps)),
            list(reversed(box)),
            [1] * len(box),
            [_NO_INTERLEAVE, _SWIZZLES[swizzle], _L2_PROMOTION, _ZEROS],
        )
    )


def check_tensor(tensor: ir.Var, analyzer: Analyzer) -> None:
    """Raise `Decline` where no tensor map describes a tensor."""
    bits, axes = bits_of(tensor), len(tensor.ty.shape)
    if bits not in _BITS:
        raise Decline(f"elements of {tensor.ty.dtype} are no whole bytes")
    if not 1 <= axes <= _MOST_AXES:
        raise Decline(f"{describe(tensor)} has {axes} axes; a tensor map has 1 to {_MOST_AXES}")
    if int(tensor.ty.data_alignment) < PIECE:
        raise Decline(f"{describe(tensor)} may not begin at a multiple of {PIECE} bytes")
    *outer, last = strides_of(tensor)
    if not analyzer.can_prove_equal(last, 1):
        raise Decline(f"the last axis of {describe(tensor)} has gaps")
    for stride in outer:
        rows = stride * (bits // 8)
        if not analyzer.can_prove_equal(tirx.floormod(rows, PIECE), 0):
            raise Decline(
                f"rows of {describe(tensor)} may not begin at multiples of {PIECE} bytes"
                + _remedy(rows, analyzer)
            )
    if constant(tensor.ty.elem_offset or 0) != 0:
        raise Decline(f"{describe(tensor)} begins inside of another tensor")


def _remedy(size: ir.Expr, analyzer: Analyzer) -> str:
    """The assumption about a variable by which a size is a multiple of 16 bytes."""
    for variable in reversed(variables_of(size)):
        for factor in (2, 4, 8, PIECE):
            is_multiple = tirx.floormod(variable, factor).equal(0)
            with analyzer.constraint_scope(is_multiple):
                if analyzer.can_prove_equal(tirx.floormod(size, PIECE), 0):
                    return f"; T.assume({is_multiple}) says that they do"
    return ""


def needs_panels(tile: ir.TensorRegion) -> bool:
    """Tell whether the rows of a tile are plain and too long: each would be boxes of its own.

    Raises
    ------
    Decline
        If the tile has extents that are not constant.
    """
    if not has_plain_rows(buffer_of(tile)):
        return False
    return math.prod(map(len, _steps(tile, _dense(tile, None)))) > _MOST_BOXES


def _steps(tile: ir.TensorRegion, in_tile: Sequence[int]) -> list[range]:
    """The origins of a tile's boxes along each axis, counted from its first element."""
    return [
        range(0, constant(r.extent) or 1, extent)
        for r, extent in zip(ranges_of(tile), in_tile, strict=True)
    ]


def _panel_of(tile: ir.Var) -> tuple[int | None, int]:
    """The elements of a panel, None where rows are plain, and the bytes of its swizzle."""
    if has_plain_rows(tile):
        return None, 0
    layout, dtype = tile.ty.layout, str(tile.ty.dtype)
    width = width_of(layout, static_shape(tile), dtype)
    if width is None:
        raise Decline(f"the layout of {describe(tile)} is none that a tensor map describes")
    return width * 8 // int(DataType(dtype).bits), width


def _dense(tile: ir.TensorRegion, panel: int | None) -> list[int]:
    """The extents of the largest box, along the axes of a tile, that is one run of memory."""
    shape = [constant(extent) for extent in buffer_of(tile).ty.shape]
    extents = [constant(r.extent) for r in ranges_of(tile)]
    if None in extents or None in shape:
        raise Decline(f"{describe(tile)} has extents that are not constant")
    known, whole = [e or 0 for e in extents], [e or 0 for e in shape]
    if panel is not None:
        if known[-1] % panel:
            raise Decline(f"{describe(tile)} has no whole panels of {panel} elements")
        rows = _chunk(known[-2], _ROWS) if len(known) > 1 else 1
        return [*[1] * (len(known) - 2), rows, panel]
    box = [1] * len(known)
    for axis in reversed(range(len(known))):
        box[axis] = _chunk(known[axis])
        if box[axis] != whole[axis]:
            break
    return box


def _chunk(extent: int, multiple: int = 1) -> int:
    """The largest part of an extent that a box may have; of several, each a multiple of a number."""
    parts = -(-extent // MOST_ELEMENTS)
    for number in range(parts, extent + 1):
        part = extent // number
        if extent % number == 0 and (number == 1 or part % multiple == 0):
            return part
    return 1


def _box(
    tile: ir.TensorRegion,
    tensor: ir.TensorRegion,
    pairs: dict[int, int],
    offsets: Sequence[int],
) -> Box:
    inside = [r.min + offset for r, offset in zip(ranges_of(tile), offsets, strict=True)]
    outside = [r.min for r in ranges_of(tensor)]
    for axis, there in pairs.items():
        outside[there] = outside[there] + offsets[axis]
    return Box(inside, outside)


def _place(tile: ir.Var, indices: Sequence[ir.Expr], panel: int | None) -> ir.Expr:
    """The number of elements in front of one, as if pieces were not exchanged."""
    shape = static_shape(tile)
    *outer, last = indices
    place: Index = tirx.const(0, "int32")
    for axis, index in enumerate(outer):
        inner = math.prod(shape[axis + 1 :])
        place = place + index * (inner if panel is None or axis < len(outer) - 1 else panel)
    if panel is None:
        return place + last
    rows = shape[-2] if len(shape) > 1 else 1
    return place + tirx.floordiv(last, panel) * (rows * panel) + tirx.floormod(last, panel)
