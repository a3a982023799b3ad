"""`T.cumsum` and `T.cummax` on a GPU: rows beside each other, each of them by a group of threads.

A row is the elements along the scanned axis. Its threads take pieces of it that follow each other:
each puts its piece together, takes from the others what lies before the piece, and goes through it
once more. A row that is longer than shared memory, or of an extent that is known at run time only, is
done in strips of one element a thread instead, where each strip begins with the total of those before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import buffer_of, indices_of, ranges_of
from tvmtile.ir.combiners import COMBINERS, accumulator_dtype
from tvmtile.ir.extents import is_power_of_two
from tvmtile.ir.operands import as_region, constant, dtype_of
from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.ir.scopes import SHARED_SCOPE, is_fragment, is_shared
from tvmtile.ir.types import Index
from tvmtile.tileop.across_threads import Prefix
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.elementwise import converted, element, matching_offsets, moving_axes
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.scan import Scan


def _fits_in_memory(op: Scan, context: LoweringContext) -> None:
    extents = [constant(r.extent) for r in ranges_of(op.src)]
    if None in extents:
        raise Decline("the extents are not constants")
    dtype = _dtype_of_totals(op)
    size = math.prod(e or 1 for e in extents) * int(DataType(dtype).bits) // 8
    if not _is_in_place(op, dtype) and size > context.gpu.shared_memory // 2:
        raise Decline(f"a copy of the tile needs {size} bytes of shared memory")


def _dtype_of_totals(op: Scan) -> str:
    return accumulator_dtype(dtype_of(op.src), dtype_of(op.dst))


def _is_in_place(op: Scan, dtype: str) -> bool:
    """Tell whether the result can hold the intermediate totals."""
    return is_shared(buffer_of(op.dst)) and dtype_of(op.dst) == dtype


@lowering(Scan, target=("metal", "cuda"), variant="pieces", priority=10, fits=_fits_in_memory)
def scan_pieces(op: Scan, context: LoweringContext) -> tirx.Stmt:
    """Scan a tile in shared memory, in place; what lies elsewhere is copied there and back."""
    dtype = _dtype_of_totals(op)
    statements: list[tirx.Stmt] = []
    tile = op.dst
    if not _is_in_place(op, dtype):
        extents = [r.extent for r in ranges_of(op.src)]
        scratch = tirx.decl_buffer(extents, dtype, name="scanned", scope=SHARED_SCOPE)
        statements.append(tirx.AllocBuffer(scratch))
        tile = as_region(scratch)
    if not _is_same(tile, op.src):
        statements.append(Copy(op.src, tile).as_loops())
    statements.append(_Pieces(op, tile, dtype, context).statement())
    if tile is not op.dst:
        statements.append(Copy(tile, op.dst).as_loops())
    return seq(statements)


def _is_same(a: ir.TensorRegion, b: ir.TensorRegion) -> bool:
    if not buffer_of(a).same_as(buffer_of(b)):
        return False
    return all(
        constant(x.min - y.min) == 0 for x, y in zip(ranges_of(a), ranges_of(b), strict=True)
    )


class _Scan:
    """The common parts of both ways."""

    def __init__(self, op: Scan, dtype: str, context: LoweringContext) -> None:
        self._op = op
        self._dtype = dtype
        self._combiner = COMBINERS[op.kind]
        self._identity = self._combiner.identity(dtype)
        self._thread = context.thread_index
        self._threads = context.threads

    def _array(self, name: str) -> ir.Var:
        return tirx.decl_buffer((1,), self._dtype, name=name, scope="local")

    def _combined(self, array: ir.Var, value: ir.Expr) -> tirx.Stmt:
        return _set(array, self._combiner.combine(value, _value(array)))

    def _position(self, number: ir.Expr) -> ir.Expr:
        """The offset along the axis of the element that is scanned as the `number`th."""
        extent = ranges_of(self._op.src)[self._op.dim].extent
        return extent - 1 - number if self._op.reverse else number


def _value(array: ir.Var) -> ir.TensorLoad:
    return tirx.BufferLoad(array, [0])


def _set(array: ir.Var, value: ir.Expr) -> tirx.Stmt:
    return tirx.BufferStore(array, value, [0])


class _Pieces(_Scan):
    """The scan of a tile in shared memory, in place."""

    def __init__(
        self, op: Scan, tile: ir.TensorRegion, dtype: str, context: LoweringContext
    ) -> None:
        super().__init__(op, dtype, context)
        self._tile = tile
        self._length = constant(ranges_of(op.src)[op.dim].extent) or 1
        self._outer = [axis for axis in moving_axes(op.src) if axis != op.dim]
        extents = [constant(ranges_of(op.src)[axis].extent) or 1 for axis in self._outer]
        self._rows = math.prod(extents)
        self._group = _group_of(self._threads, self._rows, self._length)

    def statement(self) -> tirx.Stmt:
        if self._group == 1:
            return self._over_rows(self._row_by_one_thread)
        row = tirx.floordiv(self._thread, self._group)
        return self._row_by_group(row)

    def _offsets(self, row: ir.Expr, number: ir.Expr) -> list[ir.Expr]:
        offsets: list[Any] = [0] * len(ranges_of(self._op.src))
        rest = row
        for axis in reversed(self._outer):
            extent = ranges_of(self._op.src)[axis].extent
            is_first = axis == self._outer[0]
            offsets[axis] = rest if is_first else tirx.floormod(rest, extent)
            rest = tirx.floordiv(rest, extent)
        offsets[self._op.dim] = self._position(number)
        return offsets

    def _element(self, row: Any, number: Any) -> ir.TensorLoad:
        tile = self._tile
        offsets = matching_offsets(self._op.src, tile, self._offsets(row, number))
        return tirx.BufferLoad(buffer_of(tile), element(tile, offsets))

    def _over_rows(self, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Each thread takes every n-th row."""
        passes = -(-self._rows // self._threads)
        number = tirx.Var("s", "int32")
        row = number * self._threads + self._thread if passes > 1 else self._thread
        stmt = body(row)
        if self._rows % self._threads:
            stmt = tirx.IfThenElse(row < self._rows, stmt, None)
        return for_loop(number, passes, stmt) if passes > 1 else stmt

    def _row_by_one_thread(self, row: ir.Expr) -> tirx.Stmt:
        total = self._array("total")
        loop = tirx.Var("d", "int32")
        return seq(
            [
                tirx.AllocBuffer(total),
                _set(total, self._identity),
                for_loop(loop, self._length, self._step(total, row, loop)),
            ]
        )

    def _step(self, total: ir.Var, row: ir.Expr, number: ir.Expr) -> tirx.Stmt:
        """Put an element and the total together, and leave the total in the element's place."""
        place = self._element(row, number)
        store = tirx.BufferStore(buffer_of(place), _value(total), indices_of(place))
        return seq([self._combined(total, place), store])

    def _row_by_group(self, row: ir.Expr) -> tirx.Stmt:
        piece = -(-self._length // self._group)
        first = tirx.floormod(self._thread, self._group) * piece
        total, before = self._array("total"), self._array("before")

        def through(body: Callable[[ir.Var], tirx.Stmt]) -> tirx.Stmt:
            loop = tirx.Var("d", "int32")
            number = first + loop
            conditions = []
            if self._rows * self._group < self._threads:
                conditions.append(row < self._rows)
            if piece * self._group > self._length:
                conditions.append(number < self._length)
            stmt = body(number)
            if conditions:
                stmt = tirx.IfThenElse(tirx.all(*conditions), stmt, None)
            return for_loop(loop, piece, stmt)

        prefix = Prefix(self._combiner, self._dtype, self._thread, self._threads, self._group)
        return seq(
            [
                tirx.AllocBuffer(total),
                tirx.AllocBuffer(before),
                _set(total, self._identity),
                through(lambda number: self._combined(total, self._element(row, number))),
                prefix.exclusive(total, before, None),
                through(lambda number: self._step(before, row, number)),
            ]
        )


def _group_of(threads: int, rows: int, length: int) -> int:
    """The number of threads that share a row: a power of two that divides the threads."""
    group = 1
    while threads % (2 * group) == 0 and 2 * group * rows <= threads and group < length:
        group *= 2
    return group


def _fits_threads(op: Scan, context: LoweringContext) -> None:
    if any(is_fragment(buffer_of(operand)) for operand in (op.src, op.dst)):
        raise Decline("an operand is a fragment")
    if not is_power_of_two(context.threads):
        raise Decline(f"{context.threads} threads are not a power of two")


@lowering(Scan, target=("metal", "cuda"), variant="strips", priority=0, fits=_fits_threads)
def scan_strips(op: Scan, context: LoweringContext) -> tirx.Stmt:
    """All threads scan one row after the other, where it lies."""
    return _Strips(op, _dtype_of_totals(op), context).statement()


class _Strips(_Scan):
    """The scan of one row after the other by all threads, which take neighbouring elements."""

    def statement(self) -> tirx.Stmt:
        op = self._op
        outer = [axis for axis in moving_axes(op.src) if axis != op.dim]
        variables = {axis: tirx.Var("r", "int32") for axis in outer}
        offsets: list[Index] = [variables.get(axis, 0) for axis in range(len(ranges_of(op.src)))]
        stmt = self._row(offsets)
        for axis in reversed(outer):
            stmt = for_loop(variables[axis], ranges_of(op.src)[axis].extent, stmt)
        return stmt

    def _row(self, offsets: list[Index]) -> tirx.Stmt:
        op, combine = self._op, self._combiner.combine
        names = ("carry", "own", "total", "before", "strip")
        carry, own, total, before, whole = arrays = [self._array(name) for name in names]
        extent = ranges_of(op.src)[op.dim].extent
        strip = tirx.Var("s", "int32")
        number = strip * self._threads + self._thread
        at = [*offsets]
        at[op.dim] = self._position(number)
        load = converted(tirx.BufferLoad(buffer_of(op.src), element(op.src, at)), self._dtype)
        result = combine(_value(own), combine(_value(before), _value(carry)))
        place = element(op.dst, matching_offsets(op.src, op.dst, at))
        store = tirx.BufferStore(buffer_of(op.dst), converted(result, dtype_of(op.dst)), place)
        prefix = Prefix(self._combiner, self._dtype, self._thread, self._threads, self._threads)
        body = seq(
            [
                _set(own, self._identity),
                tirx.IfThenElse(number < extent, _set(own, load), None),
                _set(total, _value(own)),
                prefix.exclusive(total, before, whole),
                tirx.IfThenElse(number < extent, store, None),
                self._combined(carry, _value(whole)),
            ]
        )
        return seq(
            [
                *map(tirx.AllocBuffer, arrays),
                _set(carry, self._identity),
                for_loop(strip, tirx.ceildiv(extent, self._threads), body),
            ]
        )
