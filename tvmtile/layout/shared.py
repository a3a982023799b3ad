"""Layouts of tiles in shared memory.

Shared memory has 32 banks, each 4 bytes wide, and a piece of 16 bytes lies in four of them. A matrix
instruction takes a piece of each of eight rows at once, so they must lie in different banks. A swizzle
sees to that: a row is cut into panels of at most 128 bytes, and within its line of 128 bytes a piece's
number is XORed with the number of the line. In the intermediate representation it is a
`tvm.tirx.layout.ComposeLayout` in the type of the tile's buffer, with the field names of TVM:

```
place = p ^ ((p >> (per_element + atom_len)) & (2**swizzle_len - 1)) << per_element
```

where `p` is the element's place in the panels. The three widths, of 32, 64 and 128 bytes, are those
that Hopper's copies and matrix units know too (PTX ISA, "Shared Memory Matrix Layout").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from tvm import DataType, ir, tirx
from tvm.tirx.layout import ComposeLayout, Iter, Layout, S, TileLayout
from tvm_ffi import structural_equal

from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.operands import bits_of

SWIZZLES = {"full": 128, "half": 64, "quarter": 32}
"""The widths in bytes, by the names that `T.annotate_layout` takes."""
_PIECE_BITS = 128
_LINES = 3
"""Lines of 128 bytes are counted modulo 2**3: eight rows are what a matrix has."""


def swizzled(
    shape: Sequence[int], dtype: str, width: int | None = None, *, widest: int = 128
) -> ComposeLayout | None:
    """The layout in which pieces of 16 bytes of neighbouring rows lie in different banks.

    The last axis runs along rows, and the axes before the last two count tiles. A panel has `width`
    bytes, 32, 64 or 128; by default, the widest up to `widest` of which a row consists. None where a
    row does not consist of such panels, or the tile has one axis.
    """
    bits = int(DataType(dtype).bits)
    widths = [w for w in SWIZZLES.values() if w <= widest] if width is None else [width]
    if len(shape) < 2 or _PIECE_BITS % bits:
        return None
    panel = next((8 * w // bits for w in widths if shape[-1] * bits % (8 * w) == 0), None)
    if panel is None:
        return None
    pieces = panel * bits // _PIECE_BITS
    *outer, rows, row = shape
    extents = [*outer, rows, row // panel, panel]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(outer))]
    panels = TileLayout(S[tuple(extents) : (*strides, panel, rows * panel, 1)])
    return ComposeLayout(_log2(_PIECE_BITS // bits), _log2(pieces), _LINES, panels)


def panel_of(layout: ComposeLayout, dtype: str) -> int:
    """Bytes of a panel of a swizzled tile: 128, 64 or 32."""
    return (1 << (layout.per_element + layout.swizzle_len)) * int(DataType(dtype).bits) // 8


def period_of(layout: ComposeLayout, dtype: str) -> int:
    """Bytes after which a swizzle repeats: hardware finds elements if a tile begins at a multiple."""
    bits = layout.per_element + layout.atom_len + layout.swizzle_len
    return (1 << bits) * int(DataType(dtype).bits) // 8


def _log2(power_of_two: int) -> int:
    return power_of_two.bit_length() - 1


@cached_per_node
def has_plain_rows(buffer: ir.Var) -> bool:
    """Tell whether the elements of a buffer lie one after the other, the last axis fastest."""
    layout = buffer.ty.layout
    return layout is None or structural_equal(layout, TileLayout(S[tuple(buffer.ty.shape)]))


def contiguous_run(buffer: ir.Var) -> int | None:
    """The length of the contiguous runs along the last axis; each begins at a multiple of it.

    None means the whole row.
    """
    layout = buffer.ty.layout
    if has_plain_rows(buffer):
        return None
    tile = layout.tile_layout if isinstance(layout, ComposeLayout) else layout
    *_, last = tile.shard
    alone = _number(last.stride) != 1
    run = 1 if alone else _number(last.extent)
    if isinstance(layout, ComposeLayout):
        run = math.gcd(run, 1 << layout.per_element)
    # What lies before must leave the run on a multiple of its length.
    strides = [_number(part.stride) for part in list(tile.shard)[:-1]]
    return math.gcd(run, *strides)


def span(buffer: ir.Var) -> int:
    """Elements that the memory of a buffer of constant extents has."""
    if has_plain_rows(buffer):
        return math.prod(_number(extent) for extent in buffer.ty.shape)
    layout = buffer.ty.layout
    if not isinstance(layout, ComposeLayout):
        return _number(layout.span("m"))
    mixed = 1 << (layout.per_element + layout.swizzle_len)  # elements that trade places
    return -(-_number(layout.tile_layout.span("m")) // mixed) * mixed


def bytes_of(buffer: ir.Var) -> int:
    """Bytes of the memory of a buffer of constant extents, one at least."""
    return max(1, (bits_of(buffer) * span(buffer) + 7) // 8)


def _number(value: ir.Expr) -> int:
    """A constant; 0 for an extent that is known only when a kernel runs."""
    return int(value) if isinstance(value, tirx.IntImm) else 0


# Layouts from a function of the indices -----------------------------------------------------------


def width_of(layout: Layout | None, shape: Sequence[int], dtype: str) -> int | None:
    """Bytes of a panel of the layout of `swizzled` that a layout is; None of any other."""
    if not isinstance(layout, ComposeLayout):
        return None
    widths = SWIZZLES.values()
    return next((w for w in widths if structural_equal(layout, swizzled(shape, dtype, w))), None)


def swizzle_of(places: np.ndarray, dtype: str) -> ComposeLayout | None:
    """The layout of `swizzled` that puts every element at a given place; None where none does."""
    for width in SWIZZLES.values():
        layout = swizzled(places.shape, dtype, width)
        if layout is not None and np.array_equal(_places_of(layout, places.shape), places):
            return layout
    return None


def _places_of(layout: ComposeLayout, shape: Sequence[int]) -> np.ndarray:
    """The place of each element by a layout of `swizzled`."""
    parts = list(layout.tile_layout.shard)
    digits = np.indices([_number(part.extent) for part in parts], np.int64)
    plain = sum(
        digit * _number(part.stride) for digit, part in zip(digits, parts, strict=True)
    ).reshape(shape)
    line = (plain >> (layout.per_element + layout.atom_len)) & ((1 << layout.swizzle_len) - 1)
    return plain ^ (line << layout.per_element)


def layout_of_places(places: np.ndarray, bits: int) -> Layout | None:
    """The layout that puts every element at a given place.

    `places`, of the tile's shape, are in elements of so many bits. A TileLayout where a place is a sum
    of digits of the indices, a ComposeLayout where pieces of 16 bytes of such a layout are swizzled;
    None where it is neither.
    """
    plain = _sum_of_digits(places)
    if plain is not None:
        return plain
    per_element = _log2(max(1, _PIECE_BITS // bits))
    for atom_len in range(1, 8):
        for swizzle_len in range(1, min(atom_len, _LINES) + 1):
            line = (places >> (per_element + atom_len)) & ((1 << swizzle_len) - 1)
            tile = _sum_of_digits(places ^ (line << per_element))
            if tile is not None:
                return ComposeLayout(per_element, swizzle_len, atom_len, tile)
    return None


def _sum_of_digits(places: np.ndarray) -> TileLayout | None:
    origin = places[(0,) * places.ndim]
    if origin != 0:
        return None
    parts: list[Iter] = []
    total = np.zeros_like(places)
    for axis, extent in enumerate(places.shape):
        line = places[tuple(slice(None) if a == axis else 0 for a in range(places.ndim))]
        digits = list(digits_of(line))
        parts += [Iter(count, stride, "m") for count, stride in digits] or [Iter(1, 1, "m")]
        total = total + line.reshape([-1 if a == axis else 1 for a in range(places.ndim)])
        if math.prod(count for count, _ in digits) != extent:
            return None
    return TileLayout.from_iters(parts) if np.array_equal(total, places) else None


def digits_of(line: np.ndarray) -> Iterator[tuple[int, int]]:
    """Extents and strides of the digits of an index, most significant first, if it has such digits."""
    size = len(line)
    found: list[tuple[int, int]] = []
    lower = 1
    while lower < size:
        stride = int(line[lower])
        counts = np.arange(1, size // lower + 1)
        follows = line[::lower][: len(counts)] == (counts - 1) * stride
        run = int(np.argmin(follows)) if not follows.all() else len(counts)
        count = next(c for c in range(run, 0, -1) if size % (lower * c) == 0)
        if count == 1:
            return
        found.append((count, stride))
        lower *= count
    within = np.arange(size)
    value = np.zeros(size, np.int64)
    lower = 1
    for count, stride in found:
        value += within // lower % count * stride
        lower *= count
    if np.array_equal(value, line):
        yield from reversed(found)
