"""The meaning of tile operators to the interpreter: numpy on whole tiles.

A `Region` is an operand: a buffer, the origin of a tile in it and the tile's extents. What a tile has
outside a tensor reads as zero and is not written; outside another tile there is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.fuzz.memory import Buffer
from tests.fuzz.sums import is_coarse, order_error, sum_of, summed_in
from tests.fuzz.values import (
    EPSILON,
    Invalid,
    Value,
    binary,
    cast,
    is_float,
    literal,
    rounded,
    storage,
)
from tvmtile.tileop.elementwise_operator import ElementwiseOp

__all__ = ["OPERATORS", "Access", "Region", "declared", "neutral", "reduce", "scan", "updated"]

_TF32_BITS = 11


@dataclass(frozen=True)
class Region:
    """A tile in a buffer; `extents` is None where the buffer is indexed by an element alone."""

    buffer: Buffer
    origin: tuple[int, ...]
    extents: tuple[int, ...] | None
    limits: tuple[int, ...] | None = None
    """Extents behind which the tile has nothing of the buffer."""

    @staticmethod
    def whole(buffer: Buffer) -> Region:
        return Region(buffer, (0,) * len(buffer.shape), buffer.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, without those that are 1."""
        return tuple(e for e in self.extents or () if e != 1)

    def like(self, other: Region) -> Region:
        """The region with the other's extents, aligned at the last axes, where it has none."""
        if self.extents is not None:
            return self
        shape = (1,) * len(self.origin) + (other.extents or (1,))
        return Region(self.buffer, self.origin, shape[len(shape) - len(self.origin) :])

    def within(self, other: Region) -> Region:
        """The region with the other's extents, if it has none, or if the other is a tile of its own."""
        is_of_tensor = self.buffer.scope == "global" != other.buffer.scope
        if self.extents is None or not is_of_tensor or self.shape == other.shape:
            return self.like(other)
        whole = Region(self.buffer, self.origin, None).like(other)
        return replace(whole, limits=self.extents)

    def offsets(self) -> tuple[np.ndarray, np.ndarray]:
        """Flat offsets of the tile's elements, and which of them lie in the buffer."""
        axes = [
            np.arange(low, low + n) for low, n in zip(self.origin, self.extents or (), strict=True)
        ]
        grid = np.meshgrid(*axes, indexing="ij")
        inside = np.ones(self.extents or (), bool)
        offsets = np.zeros(self.extents or (), np.int64)
        ends = [
            low + n for low, n in zip(self.origin, self.limits or self.extents or (), strict=True)
        ]
        for index, size, end in zip(grid, self.buffer.shape, ends, strict=True):
            inside &= (index >= 0) & (index < size) & (index < end)
            offsets = offsets * size + index
        if self.buffer.scope != "global" and not inside.all():
            raise Invalid(f"a region lies outside of {self.buffer.name}")
        return offsets, inside


class Access:
    """Reads and writes regions for a block, whose number is kept beside the elements of tensors."""

    def __init__(self, block: int) -> None:
        self._block = block

    def read(self, region: Region) -> Value:
        """A tile's elements, zero outside a tensor, without axes of extent 1."""
        offsets, inside = region.offsets()
        found = region.buffer.load(offsets[inside])
        self._own(region.buffer, "read", offsets[inside])
        data = np.zeros(inside.shape, found.data.dtype)
        error = np.zeros(inside.shape)
        data[inside], error[inside] = found.data, found.error
        return Value(data.reshape(region.shape), error.reshape(region.shape), found.dtype)

    def write(self, region: Region, value: Value) -> None:
        """Write a tile, without what lies outside a tensor."""
        offsets, inside = region.offsets()
        shaped = Value(
            np.broadcast_to(value.data, region.shape).reshape(inside.shape)[inside],
            np.broadcast_to(value.error, region.shape).reshape(inside.shape)[inside],
            value.dtype,
        )
        self._own(region.buffer, "written", offsets[inside])
        region.buffer.store(offsets[inside], shaped, np.zeros(shaped.data.shape, bool))

    def update(self, region: Region, value: Value, kind: str) -> None:
        """Update a tile atomically."""
        offsets, inside = region.offsets()
        data = np.broadcast_to(value.data, region.shape).reshape(inside.shape)[inside]
        error = np.broadcast_to(value.error, region.shape).reshape(inside.shape)[inside]
        self._own(region.buffer, "updated", offsets[inside])
        updated(region.buffer, offsets[inside], Value(data, error, value.dtype), kind)

    def _own(self, buffer: Buffer, how: str, offsets: np.ndarray) -> None:
        if buffer.block_owners is not None:
            owner = np.full(offsets.shape, self._block)
            getattr(buffer.block_owners, how)(offsets, owner)


def updated(
    buffer: Buffer, offsets: np.ndarray, value: Value, kind: str, maybe: Any = None
) -> None:
    """An atomic update of elements."""
    maybe = np.zeros(offsets.shape, bool) if maybe is None else maybe
    if not buffer.defined[offsets].all():
        raise Invalid(f"an element of {buffer.name} is updated before it is written")
    if kind in ("add", "sum"):
        buffer.add(offsets, value, maybe)
    elif kind in ("max", "min"):
        buffer.extreme(offsets, value, maybe, largest=kind == "max")
    else:
        buffer.combine(offsets, value, maybe, _BITS[f"bit{kind.removeprefix('bit')}"])


def neutral(kind: str, dtype: str) -> Value:
    """The value that changes nothing when it is combined."""
    if kind in ("max", "min") and is_float(dtype):
        return literal(-np.inf if kind == "max" else np.inf, dtype)
    if kind in ("max", "min"):
        limits = np.iinfo(dtype)
        return literal(limits.min if kind == "max" else limits.max, dtype)
    return literal(-1 if kind == "bitand" else 0, dtype)


def copy(access: Access, src: Region, dst: Region) -> None:
    """The source is read before the target is written.

    A region of a tensor, whose extents the program may not know, is a part of a tile like the other's.
    """
    src, dst = src.within(dst), dst.within(src)
    if src.shape != dst.shape:
        raise Invalid("a copy between tiles of different shapes")
    access.write(dst, access.read(src))


def gather_rows(access: Access, src: Region, dst: Region, rows: Value, column: int) -> None:
    """A part of a row for each index; zeros where there is none."""
    parts = [access.read(_row(src.buffer, row, column, dst)) for row in _exact(rows)]
    data, error = (np.stack(part) for part in zip(*((p.data, p.error) for p in parts), strict=True))
    access.write(dst, Value(data, error, parts[0].dtype))


def scatter_rows(access: Access, src: Region, dst: Region, rows: Value, column: int) -> None:
    """A part of a row for each index: of several the last one, of none nothing."""
    value = access.read(src)
    for number, row in enumerate(_exact(rows)):
        part = Value(value.data[number], value.error[number], value.dtype)
        access.write(_row(dst.buffer, row, column, src), part)


def _exact(rows: Value) -> list[int]:
    if not rows.exact:
        raise Invalid("a row's number is not exact")
    return rows.data.tolist()


def _row(tensor: Buffer, row: int, column: int, tile: Region) -> Region:
    return Region(tensor, (row, column), (1, tile.shape[1]))


@dataclass(frozen=True)
class Operand:
    """A tile in the declaration of an operator, whose elements are found by arrays of indices."""

    access: Access
    region: Region

    @property
    def extents(self) -> list[int]:
        return list(self.region.extents or ())

    @property
    def dtype(self) -> str:
        return self.region.buffer.dtype

    def __getitem__(self, at: Sequence[Any]) -> Value:
        rank = len(self.extents)
        return self.where([True], [*[0] * rank, *at][-rank:])

    def where(self, conditions: Sequence[Any], at: Sequence[Any]) -> Value:
        value, inside = self.access.read(self.region), np.all(np.broadcast_arrays(*conditions), 0)
        places = tuple(np.where(inside, index, 0) for index in at)
        data, error = (
            np.where(inside, part.reshape(self.extents)[places], 0)
            for part in (value.data, value.error)
        )
        return Value(data, error, value.dtype)

    def axes(self, count: int, shapes: str) -> list[int]:
        return self.extents[-count:]

    def axis(self, dim: int) -> int:
        return dim % len(self.extents) - len(self.extents)

    def expect(self, extents: Sequence[int], reason: str) -> None:
        if [e for e in self.extents if e != 1] != [e for e in extents if e != 1]:
            raise Invalid(f"{self.region.buffer.name} should be {extents}, {reason}")


def declared(access: Access, operator: type[ElementwiseOp], given: dict[str, Any]) -> None:
    """An operator that is declared by the element that it writes at some indices."""
    tiles = {name: Operand(access, given[name]) for name in operator.inputs + operator.outputs}
    target = given[operator.outputs[0]]
    target = target.like(target)
    value = operator.function(**{**given, **tiles})(*np.indices(target.extents))
    value = cast(value, target.buffer.dtype)
    data, error = (
        np.broadcast_to(part, target.extents).reshape(target.shape)
        for part in (value.data, value.error)
    )
    access.write(target, Value(data, error, value.dtype))


def gemm(
    access: Access,
    a: Region,
    b: Region,
    c: Region,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: Any = None,
    clear_accum: bool = False,
    precision: str = "tf32",
) -> None:
    """`C += A @ B`: products are exact or rounded to the accumulator's dtype."""
    left, right = _matrix_of(access, a, transpose_A), _matrix_of(access, b, transpose_B)
    _multiply(access, left, right, c, clear_accum, precision)


def gemm_sp(
    access: Access,
    a: Region,
    e: Region,
    b: Region,
    c: Region,
    transpose_A: bool = False,
    transpose_E: bool = False,
    transpose_B: bool = False,
    policy: Any = None,
    clear_accum: bool = False,
) -> None:
    """`C += A @ B`: of four neighbours in A two are stored, of two float32 one; E says which."""
    stored, right = _matrix_of(access, a, transpose_A), _matrix_of(access, b, transpose_B)
    words = _matrix_of(access, e, transpose_E).data
    rows, count = stored.data.shape
    step = 4 if stored.dtype == "float32" else 2
    shifts = np.arange(0, 8 * storage(e.buffer.dtype).itemsize, step)
    codes = (words[:, :, None] >> shifts & 3).reshape(rows, count)
    among = codes >> 1 if step == 4 else codes
    place = np.arange(rows)[:, None], np.arange(count) // (4 // step) * (8 // step) + among
    data, error = np.zeros((2, rows, 2 * count), stored.data.dtype)
    data[place], error[place] = stored.data, stored.error
    _multiply(access, Value(data, error, stored.dtype), right, c, clear_accum)


def fp8_scaled_matmul(
    access: Access,
    a: Region,
    a_scale: Value,
    b: Region,
    b_scale: Value,
    c: Region,
    transpose_B: bool = False,
    clear_accum: bool = False,
    block_scale_layout: Any = None,
) -> None:
    """`C += (A * A_scale) @ (B * B_scale)`: scales of all, of rows, or of blocks along K."""
    left, right = _matrix_of(access, a, False), _matrix_of(access, b, not transpose_B)
    depth = left.data.shape[1]
    size = block_scale_layout[1] if block_scale_layout else depth
    left, right = (_scaled(m, s, size) for m, s in ((left, a_scale), (right, b_scale)))
    for first in range(0, depth, size):  # a block is added by itself
        span = slice(first, first + size)
        x, y = (Value(m.data[:, span], m.error[:, span], m.dtype) for m in (left, right))
        turned = Value(y.data.T, y.error.T, y.dtype)
        _multiply(access, x, turned, c, clear_accum and not first)


def _scaled(matrix: Value, scale: Value, size: int) -> Value:
    """A matrix whose rows lie along K, times its scales; those of uint8 are exponents."""
    rows, depth = matrix.data.shape
    factors = np.ldexp(1.0, scale.data - 127) if scale.dtype == "uint8" else scale.data
    wide = factors.reshape(-1, -(-depth // size)).repeat(size, axis=1)[:, :depth]
    wide = wide.repeat(-(-rows // len(wide)), axis=0)[:rows]
    return Value(matrix.data * wide, matrix.error * abs(wide), matrix.dtype)


def _multiply(
    access: Access,
    left: Value,
    right: Value,
    c: Region,
    clear_accum: bool,
    precision: str = "tf32",
) -> None:
    (x, ex), (y, ey) = (left.data, left.error), (right.data, right.error)
    if x.shape[1] != y.shape[0]:
        raise Invalid("a product of tiles that do not fit")
    dtype = c.buffer.dtype
    via = summed_in(dtype)
    terms = x[:, :, None] * y[None, :, :]
    if is_float(via) and not is_float(left.dtype):
        terms = terms.astype(np.float64)
    error = abs(x)[:, :, None] * ey[None] + ex[:, :, None] * (abs(y) + ey)[None]
    if left.dtype == "float32" and is_float(via) and precision == "tf32":
        error = error + _narrowed(x, y, terms)
    product = sum_of(Value(terms, error, via), 1, via)
    before = literal(0, via) if clear_accum else cast(access.read(_matrix(c)), via)
    before = Value(
        before.data.reshape(product.data.shape) if not clear_accum else before.data,
        before.error.reshape(product.data.shape) if not clear_accum else before.error,
        via,
    )
    result = cast(binary("+", before, product), dtype)
    error = _in_any_order(before, terms, product, via)
    if dtype == "float16":
        error = error + _rounded_between(before, terms)
    result = Value(result.data, result.error + error, result.dtype)
    shape = _matrix(c).shape
    access.write(_matrix(c), Value(result.data.reshape(shape), result.error.reshape(shape), dtype))


def _in_any_order(before: Value, terms: np.ndarray, product: Value, via: str) -> Any:
    """The accumulator may be rounded after each product that is added to it."""
    if not is_float(via):
        return 0.0
    absolute = np.abs(terms).sum(axis=1) + np.abs(before.data)
    coarse = is_coarse(terms).all(axis=1) & is_coarse(before.data)
    return order_error(absolute, product.error + before.error, coarse, terms.shape[1] + 1, via)


def _rounded_between(before: Value, terms: np.ndarray) -> Any:
    """Matrix units round a float16 accumulator after each instruction, of eight products or more."""
    absolute = np.abs(terms).sum(axis=1) + np.abs(before.data)
    coarse = is_coarse(terms).all(axis=1) & is_coarse(before.data)
    count = terms.shape[1] // 8 + 1
    return order_error(absolute, before.error, coarse, count, "float16")


def _narrowed(x: np.ndarray, y: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """The error of products of float32: tensor cores multiply them as tf32, of eleven bits."""
    fit_x, fit_y = (np.ldexp(np.frexp(m)[0], _TF32_BITS) % 1 == 0 for m in (x, y))
    exact = fit_x[:, :, None] & fit_y[None, :, :]
    return np.where(exact, 0.0, 4 * EPSILON["float16"] * np.abs(terms))


def _matrix(region: Region) -> Region:
    return region if region.extents is not None else Region.whole(region.buffer)


def _matrix_of(access: Access, region: Region, is_transposed: bool) -> Value:
    """An operand as [M, K] or [K, N]."""
    value, extents = access.read(_matrix(region)), _matrix(region).extents or ()
    data, error = (part.reshape(extents[-2:]) for part in (value.data, value.error))
    return Value(data.T, error.T, value.dtype) if is_transposed else Value(data, error, value.dtype)


_BITS = {"bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor}


_EXTREMES = {"max": np.maximum, "min": np.minimum}


def reduce(
    access: Access,
    src: Region,
    dst: Region,
    kind: str,
    dim: int = -1,
    clear: bool = True,
    nan_propagate: bool = False,
) -> None:
    """The elements along an axis combined, with what the result holds where `clear` is false."""
    value = access.read(src)
    value = cast(value, _combined_in(value.dtype, dst.buffer.dtype))
    extents = src.extents or ()
    data, error = value.data.reshape(extents), value.error.reshape(extents)
    least = neutral("sum", value.dtype) if kind.startswith("abs") else None
    if kind.startswith("abs"):
        data, kind = np.abs(data), kind[3:]
        data = data if nan_propagate else np.nan_to_num(data, nan=0.0, posinf=np.inf)
    result = _combined(Value(data, error, value.dtype), kind, dim, nan_propagate, least)
    if not clear:
        before = access.read(dst)
        before = cast(
            Value(
                before.data.reshape(result.data.shape),
                before.error.reshape(result.data.shape),
                before.dtype,
            ),
            result.dtype,
        )
        stacked = Value(
            np.stack([result.data, before.data]),
            np.stack([result.error, before.error]),
            result.dtype,
        )
        result = _combined(stacked, kind, 0, nan_propagate)
    result = cast(result, dst.buffer.dtype)
    shape = dst.shape
    access.write(dst, Value(result.data.reshape(shape), result.error.reshape(shape), result.dtype))


def _combined_in(src: str, dst: str) -> str:
    """Integers are combined in the wider of the two dtypes, or in the result's floats."""
    if is_float(src):
        return src
    if is_float(dst):
        return summed_in(dst)
    wider = storage(dst).itemsize >= storage(src).itemsize
    return dst if wider and dst != "bool" else src


def _combined(
    value: Value, kind: str, axis: int, nan_propagate: bool = False, least: Value | None = None
) -> Value:
    """The elements along an axis combined; of none it is `least`."""
    least = least or neutral(kind, value.dtype)
    data, error = value.data, value.error
    if kind == "sum":
        return sum_of(value, axis, summed_in(value.dtype))
    if kind in _BITS:
        # Of numbers that are not known exactly, any bit may be another one, up to the largest one's.
        unsure = (error > 0).any(axis=axis)
        most = np.exp2(np.ceil(np.log2((np.abs(data) + error).max(axis=axis) + 1)) + 1)
        return Value(_BITS[kind].reduce(data, axis=axis), np.where(unsure, most, 0.0), value.dtype)
    data = data if nan_propagate else _without_nan(data, kind, value.dtype)
    extreme = _EXTREMES[kind].reduce(data, axis=axis, initial=least.data)
    return Value(extreme, error.max(axis=axis, initial=0.0), value.dtype)


def _without_nan(data: np.ndarray, kind: str, dtype: str) -> np.ndarray:
    return np.where(np.isnan(data), neutral(kind, dtype).data, data) if is_float(dtype) else data


def scan(
    access: Access,
    src: Region,
    dst: Region | None,
    kind: str,
    dim: int = 0,
    reverse: bool = False,
) -> None:
    """Running totals along an axis."""
    dst = src if dst is None else dst
    value = access.read(src)
    extents = src.extents or ()
    data, error = value.data.reshape(extents), value.error.reshape(extents)
    if reverse:
        data, error = np.flip(data, dim), np.flip(error, dim)
    if kind == "max":
        data = _without_nan(data, kind, value.dtype)
        totals, errors = np.maximum.accumulate(data, dim), np.maximum.accumulate(error, dim)
        result = Value(totals, errors, value.dtype)
    else:
        result = _running_sum(Value(data, error, value.dtype), dim)
    result = cast(result, dst.buffer.dtype)
    parts = [np.flip(part, dim) if reverse else part for part in (result.data, result.error)]
    access.write(dst, Value(*(part.reshape(dst.shape) for part in parts), result.dtype))


def _running_sum(value: Value, dim: int) -> Value:
    via = summed_in(value.dtype)
    totals, errors = np.cumsum(value.data, dim), np.cumsum(value.error, dim)
    if is_float(via):
        absolute = np.cumsum(np.abs(value.data), dim)
        coarse = np.logical_and.accumulate(is_coarse(value.data), dim)
        errors = errors + order_error(absolute, errors, coarse, value.data.shape[dim], via)
        return Value(totals, errors, via)
    return rounded(totals, errors, via)


OPERATORS = {
    "copy": copy,
    "tma_copy": copy,
    "async_copy": copy,
    "gather_rows": gather_rows,
    "gather4": gather_rows,
    "scatter_rows": scatter_rows,
    "scatter4": scatter_rows,
    "gemm": gemm,
    "gemm_sp": gemm_sp,
    "fp8_scaled_matmul": fp8_scaled_matmul,
    "wgmma_gemm": gemm,
    "reduce": reduce,
    **{f"reduce_{kind}": kind for kind in ("sum", "max", "min", "abssum", "absmax", *_BITS)},
    "cumsum": "sum",
    "cummax": "max",
}
"""Tile operators that are not declared, by their name: what they do, or how they combine."""
