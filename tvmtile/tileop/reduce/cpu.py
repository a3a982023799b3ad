"""`T.reduce` on a CPU: vectors of partial results where elements are neighbours, else one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.combiners import accumulator_dtype
from tvmtile.ir.operands import constant, dtype_of
from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index
from tvmtile.target import cpu
from tvmtile.tileop.elementwise import converted, element, matching_offsets, over_region
from tvmtile.tileop.reduce import Reduce
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.vectors import (
    Total,
    check_columns,
    innermost,
    is_vectorizable,
    lies_inside,
    loop,
    over_columns,
    ramp,
    strips,
    widest,
)


class _CpuReduction:
    """The parts that all lowerings of a reduction share."""

    def __init__(self, op: Reduce) -> None:
        self.op = op
        self.combiner = op.combiner
        self.dtype = accumulator_dtype(dtype_of(op.src), dtype_of(op.dst))
        self.identity = self.combiner.identity(self.dtype)

    def elements(self, offsets: list[Index], along: Any, axis: int, lanes: int) -> ir.Expr:
        """The elements, `lanes` neighbours of an axis, at an index along the reduced one."""
        indices = element(
            self.op.src, [*offsets[: self.op.axis], along, *offsets[self.op.axis + 1 :]]
        )
        indices[axis] = ramp(indices[axis], lanes)
        load = tirx.BufferLoad(buffer_of(self.op.src), indices)
        return self.combiner.element(converted(load, self.dtype))

    def store(self, offsets: list[Any], total: Total) -> tirx.Stmt:
        """Put a total into the result, with what is there unless it is cleared."""
        dst = self.op.dst
        indices = element(dst, matching_offsets(self.op.src, dst, offsets, without=(self.op.axis,)))
        indices[-1] = ramp(indices[-1], total.lanes)
        value = total.value
        if not self.op.clear:
            value = self.combiner.combine(
                converted(tirx.BufferLoad(buffer_of(dst), indices), self.dtype), value
            )
        return tirx.BufferStore(buffer_of(dst), converted(value, dtype_of(dst)), indices)

    def step(self, total: Total, elements: ir.Expr) -> tirx.Stmt:
        """Combine more elements with a total."""
        return total.set(self.combiner.combine(elements, total.value))


def _has_rows(op: Reduce, context: LoweringContext) -> None:
    extent = constant(ranges_of(op.src)[op.axis].extent)
    if extent is None or extent < 2:
        raise Decline("the reduced axis has an extent that is not a constant above 1")
    if not is_vectorizable(op.src, op.axis):
        raise Decline("the elements along the reduced axis are not neighbours in memory")
    if not lies_inside(op.src, context.analyzer):
        raise Decline("the source may reach over the edge of a tensor")


@lowering(Reduce, target="llvm", variant="rows", priority=20, fits=_has_rows)
def reduce_rows(op: Reduce, context: LoweringContext) -> tirx.Stmt:
    """Along the innermost axis: vectors of partial results, folded in halves at the end of a row.

    What remains of a row after whole vectors is its binary digits: when the vector of results has been
    folded to 8 lanes, the 8 elements that remain, if they do, join it, and so on.
    """
    extent = constant(ranges_of(op.src)[op.axis].extent) or 1
    reduction = _CpuReduction(op)
    groups = strips(extent, widest(cpu(context.target), reduction.dtype))
    remainder = {lanes: start for start, _, lanes in groups[1:]}
    _, count, lanes = groups[0]

    def row(offsets: list[Index]) -> tirx.Stmt:
        total = Total(reduction.dtype, lanes)

        def combine(s: ir.Expr) -> tirx.Stmt:
            return reduction.step(total, reduction.elements(offsets, s * lanes, op.axis, lanes))

        statements = [total.starting_from(reduction.identity), loop("s", count, combine)]
        while total.lanes > 1:
            half = Total(reduction.dtype, total.lanes // 2)
            folded = reduction.combiner.combine(total.half(upper=True), total.half(upper=False))
            statements += [half.allocation, half.set(folded)]
            if half.lanes in remainder:
                rest = reduction.elements(offsets, remainder[half.lanes], op.axis, half.lanes)
                statements.append(reduction.step(half, rest))
            total = half
        return seq([*statements, reduction.store(offsets, total)])

    return _over_rows(op, row)


def _columns(op: Reduce, offsets: list[Index], lanes: int) -> tirx.Stmt:
    """Combine `lanes` neighbours, each with those along the axis."""
    reduction, axis = _CpuReduction(op), innermost(op.src)
    total = Total(reduction.dtype, lanes)

    def combine(d: Any) -> tirx.Stmt:
        return reduction.step(total, reduction.elements(offsets, d, axis, lanes))

    start = total.starting_from(reduction.identity)
    along = loop("d", ranges_of(op.src)[op.axis].extent, combine)
    return seq([start, along, reduction.store(offsets, total)])


def _has_columns(op: Reduce, context: LoweringContext) -> None:
    check_columns(op.src, op.dst, op.axis, "reduced", context)


@lowering(Reduce, target="llvm", variant="columns", priority=10, fits=_has_columns)
def reduce_columns(op: Reduce, context: LoweringContext) -> tirx.Stmt:
    """Along an outer axis: a vector of neighbouring results at a time."""
    lanes = widest(cpu(context.target), _CpuReduction(op).dtype)
    return over_columns(op.src, op.axis, lanes, partial(_columns, op))


@lowering(Reduce, target="llvm", variant="elements", priority=0)
def reduce_elements(op: Reduce, _: LoweringContext) -> tirx.Stmt:
    """One element after the other: any extents, any dtype, any place."""
    return _over_rows(op, lambda offsets: _columns(op, offsets, 1))


def _over_rows(op: Reduce, body: Callable[[list[Index]], tirx.Stmt]) -> tirx.Stmt:
    """Loops over all axes but the reduced one."""
    return over_region(op.src, body, without=(op.axis,), kind=tirx.ForKind.SERIAL)
