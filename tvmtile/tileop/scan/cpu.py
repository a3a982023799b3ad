"""`T.cumsum` and `T.cummax` on a CPU: element after element, or a vector of neighbours at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.combiners import COMBINERS, accumulator_dtype
from tvmtile.ir.operands import dtype_of
from tvmtile.ir.rewriting import seq
from tvmtile.target import cpu
from tvmtile.tileop.elementwise import converted, element, matching_offsets, over_region
from tvmtile.tileop.registry import LoweringContext, lowering
from tvmtile.tileop.scan import Scan
from tvmtile.tileop.vectors import Total, check_columns, loop, over_columns, ramp, widest


def _dtype(op: Scan) -> str:
    """The dtype of the running totals."""
    return accumulator_dtype(dtype_of(op.src), dtype_of(op.dst))


def _scanned(op: Scan, offsets: list[Any], lanes: int) -> tirx.Stmt:
    """Scan `lanes` neighbours, from given offsets along the other axes."""
    combiner, total = COMBINERS[op.kind], Total(_dtype(op), lanes)
    extent = ranges_of(op.src)[op.dim].extent

    def step(d: Any) -> tirx.Stmt:
        position = extent - 1 - d if op.reverse else d
        at = [*offsets[: op.dim], position, *offsets[op.dim + 1 :]]
        source = element(op.src, at)
        target = element(op.dst, matching_offsets(op.src, op.dst, at))
        source[-1], target[-1] = ramp(source[-1], lanes), ramp(target[-1], lanes)
        new = converted(tirx.BufferLoad(buffer_of(op.src), source), total.dtype)
        result = converted(total.value, dtype_of(op.dst))
        store = tirx.BufferStore(buffer_of(op.dst), result, target)
        return seq([total.set(combiner.combine(new, total.value)), store])

    start = total.starting_from(combiner.identity(total.dtype))
    return seq([start, loop("d", extent, step)])


def _has_columns(op: Scan, context: LoweringContext) -> None:
    check_columns(op.src, op.dst, op.dim, "scanned", context)


@lowering(Scan, target="llvm", variant="columns", priority=10, fits=_has_columns)
def scan_columns(op: Scan, context: LoweringContext) -> tirx.Stmt:
    """Along an outer axis: a vector of neighbouring totals at a time."""
    lanes = widest(cpu(context.target), _dtype(op))
    return over_columns(op.src, op.dim, lanes, partial(_scanned, op))


@lowering(Scan, target="llvm", variant="elements", priority=0)
def scan_elements(op: Scan, _: LoweringContext) -> tirx.Stmt:
    """One element after the other: any extents, any dtype, any place."""
    return over_region(
        op.src,
        lambda offsets: _scanned(op, offsets, 1),
        without=(op.dim,),
        kind=tirx.ForKind.SERIAL,
    )
