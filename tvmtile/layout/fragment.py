"""Layouts of fragments: which thread of a block holds which element, and in which register.

An index along an axis of a tile is a number in mixed radix. Each of its digits is kept either in the
number of the thread or in the number of the register:

```
8x8 accumulator of a simdgroup          row = 4 a + 2 b + c      column = 4 d + 2 e + f
                                        thread = 16 a + 8 d + 4 b + 2 c + e      register = f
```

Threads that differ in no digit of an element hold copies of it. In the intermediate representation the
same is a `tvm.tirx.layout.TileLayout` over the axes `tx` (the thread's number in its block) and `m`
(the register), in the type of the fragment's buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tvm import ir, tirx
from tvm.tirx.layout import Iter, TileLayout

from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.types import Index
from tvmtile.layout import Fragment

__all__ = [
    "REGISTER",
    "THREAD",
    "Digit",
    "Fragment",
    "FragmentLayout",
    "common_refinement",
    "compact_registers",
    "gaps",
    "layout_of",
    "replicated",
    "spread",
    "widest_vector",
    "with_weights",
]

THREAD = "tx"
"""The axis of a layout that counts the threads of a block, `threadIdx.x` fastest."""
REGISTER = "m"
"""The axis of a layout that counts the registers of a thread."""
_VECTOR_BITS = 128


@dataclass(frozen=True)
class Digit:
    """One digit of an index, and what keeps it."""

    extent: int
    """Its values are 0 to `extent - 1`."""
    axis: str
    """Thread or register."""
    stride: int
    """The weight of the digit in the number of the thread or register."""

    @property
    def is_thread(self) -> bool:
        """Tell whether the number of the thread keeps it."""
        return self.axis == THREAD

    def value_in(self, number: ir.Expr, count: int) -> ir.Expr:
        """The digit's value in the number of a thread or register, of which there are `count`."""
        value = tirx.floordiv(number, self.stride) if self.stride > 1 else number
        if self.stride * self.extent >= count:
            return value  # the most significant digit
        return tirx.floormod(value, self.extent)

    def split(self, inner: int) -> tuple[Digit, Digit]:
        """The same as two digits, the less significant one of extent `inner`."""
        outer = Digit(self.extent // inner, self.axis, self.stride * inner)
        return outer, Digit(inner, self.axis, self.stride)


@dataclass(frozen=True)
class FragmentLayout:
    """The place of every element of a fragment."""

    threads: int
    """Threads of the block."""
    axes: tuple[tuple[Digit, ...], ...]
    """The digits of the index along each axis of the tile, most significant first."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The extents that the layout has places for; at least those of the tile."""
        return tuple(math.prod(digit.extent for digit in digits) for digits in self.axes)

    @property
    def digits(self) -> Iterator[Digit]:
        """All digits, of all axes."""
        return (digit for digits in self.axes for digit in digits)

    @property
    def registers(self) -> int:
        """Registers that a thread needs."""
        return 1 + sum((d.extent - 1) * d.stride for d in self.digits if not d.is_thread)

    @property
    def replicas(self) -> list[Digit]:
        """The digits of the thread's number that no index has: an element is replicated over them."""
        return gaps(self.threads, self.digits)

    def register_of(self, indices: Sequence[Index]) -> ir.Expr:
        """The register of an element, in the threads that hold it."""
        return self._number(REGISTER, indices)

    def thread_of(self, indices: Sequence[Index]) -> ir.Expr:
        """The first of the threads that hold an element."""
        return self._number(THREAD, indices)

    def register_along(self, axis: int, index: Index) -> ir.Expr:
        """The part of an element's register that the index along an axis has."""
        return self._number(REGISTER, [index], slice(axis, axis + 1))

    def _number(self, kept: str, indices: Sequence[Index], axes: slice = slice(None)) -> Any:
        number: ir.Expr = tirx.const(0, "int32")
        for index, digits, size in zip(indices, self.axes[axes], self.shape[axes], strict=True):
            for weight, digit in with_weights(digits):
                if digit.axis == kept:
                    number = number + _digit_value(index, weight, digit, size) * digit.stride
        return number

    def without_axis(self, *reduced: int) -> FragmentLayout:
        """The layout without reduced axes: replicated over the threads that held them."""
        kept = (digits for number, digits in enumerate(self.axes) if number not in reduced)
        return compact_registers(FragmentLayout(self.threads, tuple(kept)))

    def reshaped(self, shape: Sequence[int]) -> FragmentLayout | None:
        """The layout of the same elements, in row-major order, under another shape.

        None where an axis of it would end within a digit.
        """
        rest = list(self.digits)
        axes: list[tuple[Digit, ...]] = []
        for extent in reversed(shape):
            digits: list[Digit] = []
            left = extent
            while left > 1:
                digit = rest.pop()
                inner = math.gcd(digit.extent, left)
                if inner < min(digit.extent, left):
                    return None
                if inner < digit.extent:
                    outer, digit = digit.split(inner)
                    rest.append(outer)
                digits.append(digit)
                left //= inner
            axes.append(tuple(reversed(digits)))
        return FragmentLayout(self.threads, tuple(reversed(axes)))

    def partial(self, *reduced: int) -> FragmentLayout:
        """The layout of partial results over axes: of their digits, those that threads keep."""
        axes = (
            tuple(d for d in digits if d.is_thread or number not in reduced)
            for number, digits in enumerate(self.axes)
        )
        return compact_registers(FragmentLayout(self.threads, tuple(axes)))

    def to_tvm(self) -> TileLayout:
        """The layout as TVM writes it."""
        shard = [Iter(d.extent, d.stride, d.axis) for d in self.digits]
        replica = [Iter(d.extent, d.stride, d.axis) for d in self.replicas]
        if self.threads == 1:  # so that the layout names the threads
            replica = [Iter(1, 1, THREAD)]
        return TileLayout.from_iters(shard or [Iter(1, 1, REGISTER)], replica)

    def __str__(self) -> str:
        axes = (
            "(" + ", ".join(f"{d.extent}:{d.stride}@{d.axis}" for d in digits) + ")"
            for digits in self.axes
        )
        return f"[{', '.join(axes)}] over {self.threads} threads"


def _digit_value(index: Index, lower: int, digit: Digit, size: int) -> Index:
    value = tirx.floordiv(index, lower) if lower > 1 else index
    if lower * digit.extent >= size:
        return value  # the most significant digit: nothing to cut off
    return tirx.floormod(value, digit.extent)


def with_weights(digits: Sequence[Digit]) -> list[tuple[int, Digit]]:
    """The digits of an index with their weights in it, most significant first."""
    result = []
    weight = 1
    for digit in reversed(digits):
        result.append((weight, digit))
        weight *= digit.extent
    return result[::-1]


@cached_per_node
def layout_of(buffer: ir.Var) -> FragmentLayout | None:
    """The layout in a fragment's type; None where InferLayout has not given it one."""
    layout = buffer.ty.layout
    if not isinstance(layout, TileLayout):
        return None
    if not any(item.axis.name == THREAD for item in (*layout.shard, *layout.replica)):
        return None
    return _read(layout, tuple(int(extent) for extent in buffer.ty.shape))


def _read(layout: TileLayout, shape: tuple[int, ...]) -> FragmentLayout:
    rest = [Digit(int(i.extent), i.axis.name, int(i.stride)) for i in layout.shard]
    copies = math.prod(int(item.extent) for item in layout.replica)
    axes = []
    for extent in shape:
        digits: list[Digit] = []
        while math.prod(digit.extent for digit in digits) < extent:
            digits.append(rest.pop(0))
        axes.append(tuple(digits))
    threads = copies * math.prod(d.extent for digits in axes for d in digits if d.is_thread)
    return FragmentLayout(threads, tuple(axes))


def gaps(threads: int, digits: Iterable[Digit]) -> list[Digit]:
    """The digits of a thread's number that are not among `digits`, least significant first."""
    found = []
    position = 1
    for digit in sorted((d for d in digits if d.is_thread), key=lambda d: d.stride):
        if digit.stride > position:
            found.append(Digit(digit.stride // position, THREAD, position))
        position = digit.stride * digit.extent
    if threads > position:
        found.append(Digit(threads // position, THREAD, position))
    return found


def compact_registers(layout: FragmentLayout) -> FragmentLayout:
    """The same threads, with the registers counted row by row."""
    stride = 1
    axes = []
    for digits in reversed(layout.axes):
        counted = []
        for digit in reversed(digits):
            if digit.is_thread:
                counted.append(digit)
                continue
            counted.append(Digit(digit.extent, REGISTER, stride))
            stride *= digit.extent
        axes.append(tuple(reversed(counted)))
    return FragmentLayout(layout.threads, tuple(reversed(axes)))


def common_refinement(
    first: Sequence[Digit], second: Sequence[Digit]
) -> list[tuple[Digit, Digit]] | None:
    """Two ways to write one index, cut into digits of equal extents; None where they don't fit.

    The more significant digits of the longer one are left out.
    """
    pairs: list[tuple[Digit, Digit]] = []
    left, right = list(first), list(second)
    while left and right:
        a, b = left.pop(), right.pop()
        extent = min(a.extent, b.extent)
        if a.extent % extent or b.extent % extent:
            return None
        if a.extent > extent:
            outer, a = a.split(extent)
            left.append(outer)
        if b.extent > extent:
            outer, b = b.split(extent)
            right.append(outer)
        pairs.append((a, b))
    return pairs[::-1]


def replicated(shape: Sequence[int], threads: int) -> FragmentLayout:
    """Every thread holds the whole tile."""
    axes = tuple((Digit(extent, REGISTER, 1),) if extent > 1 else () for extent in shape)
    return compact_registers(FragmentLayout(threads, axes))


def widest_vector(bits: int) -> int:
    """Elements of `bits` bits in 16 bytes, which is what a thread moves at most at once."""
    return max(1, _VECTOR_BITS // max(8, bits))


@lru_cache(maxsize=1024)
def spread(shape: tuple[int, ...], threads: int, vector: int) -> FragmentLayout:
    """Spread a tile over the threads so that they read neighbouring elements from memory.

    Along the last axis a thread holds up to `vector` neighbours: as many as make for the fewest moves a
    thread, and no more, so that no threads are left without work. Neighbouring threads follow along the
    last axis, then the one before, and the rest is in registers. Axes that the threads don't divide are
    padded. Among the ways to do so, the one with the fewest registers a thread is taken, and then the
    one with most threads along the last axis.
    """
    if not shape:
        return FragmentLayout(threads, ())
    widest = math.gcd(vector, shape[-1])
    candidates = [(width, _spread(shape, threads, width)) for width in _powers_of_two(widest)]

    def cost(candidate: tuple[int, FragmentLayout]) -> tuple[int, int]:
        width, layout = candidate
        return layout.registers // width, layout.registers

    return min(candidates, key=cost)[1]


def _powers_of_two(largest: int) -> list[int]:
    return [1 << exponent for exponent in range(largest.bit_length())]


def _spread(shape: tuple[int, ...], threads: int, width: int) -> FragmentLayout:
    counts = [*shape[:-1], shape[-1] // width]
    along = _best_split(tuple(reversed(counts)), threads)[1]
    axes = []
    stride = 1
    for axis, count in enumerate(reversed(counts)):
        digits = [Digit(width, REGISTER, 1)] if axis == 0 and width > 1 else []
        if along[axis] > 1:
            digits.insert(0, Digit(along[axis], THREAD, stride))
        rest = -(-count // along[axis])
        if rest > 1:
            digits.insert(0, Digit(rest, REGISTER, 1))
        stride *= along[axis]
        axes.append(tuple(digits))
    return compact_registers(FragmentLayout(threads, tuple(reversed(axes))))


@lru_cache(maxsize=4096)
def _best_split(counts: tuple[int, ...], threads: int) -> tuple[int, tuple[int, ...]]:
    """The threads along each axis, the last axis first, and the registers that this leaves."""
    if not counts:
        return 1, ()
    best: tuple[int, tuple[int, ...]] | None = None
    for along in sorted((d for d in range(1, threads + 1) if threads % d == 0), reverse=True):
        if along > 1 and along >= 2 * counts[0]:
            continue  # half of the threads would have nothing
        registers, rest = _best_split(counts[1:], threads // along)
        registers *= -(-counts[0] // along)
        if best is None or registers < best[0]:
            best = registers, (along, *rest)
    assert best is not None
    return best
