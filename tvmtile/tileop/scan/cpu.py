"""`T.cumsum` and `T.cummax` on a CPU: element after element, or a vector of neighbours at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.combiners import COMBINERS, accumulator_dtype
from tvmtile.ir.operands import constant, dtype_of
from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index
from tvmtile.target import cpu
from tvmtile.tileop.elementwise import (
    converted,
    element,
    matching_offsets,
    moving_axes,
    over_region,
)
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.scan import Scan
from tvmtile.tileop.vectors import (
    Total,
    is_vectorizable,
    lies_inside,
    loop,
    ramp,
    strips,
    widest,
)


class _Scanning:
    """One scan of `lanes` neighbours at a time."""

    def __init__(self, op: Scan) -> None:
        self.op = op
        self.combiner = COMBINERS[op.kind]
        self.dtype = accumulator_dtype(dtype_of(op.src), dtype_of(op.dst))

    def run(self, offsets: list[Any], lanes: int) -> tirx.Stmt:
        """Scan along the axis from given offsets along the others."""
        op, total = self.op, Total(self.dtype, lanes)
        extent = ranges_of(op.src)[op.dim].extent

        def step(d: Any) -> tirx.Stmt:
            position = extent - 1 - d if op.reverse else d
            at = [*offsets[: op.dim], position, *offsets[op.dim + 1 :]]
            source = element(op.src, at)
            target = element(op.dst, matching_offsets(op.src, op.dst, at))
            source[-1], target[-1] = ramp(source[-1], lanes), ramp(target[-1], lanes)
            new = converted(tirx.BufferLoad(buffer_of(op.src), source), self.dtype)
            result = converted(total.value, dtype_of(op.dst))
            return seq(
                [
                    total.set(self.combiner.combine(new, total.value)),
                    tirx.BufferStore(buffer_of(op.dst), result, target),
                ]
            )

        start = total.starting_from(self.combiner.identity(self.dtype))
        return seq([start, loop("d", extent, step)])

    def outer(self, body: Callable[[list[Index]], tirx.Stmt], *more: int) -> tirx.Stmt:
        """Loops over all axes but the scanned one and some more."""
        return over_region(
            self.op.src, body, without=(self.op.dim, *more), kind=tirx.ForKind.SERIAL
        )


def _has_columns(op: Scan, context: LoweringContext) -> None:
    axis = max(moving_axes(op.src), default=0)
    if constant(ranges_of(op.src)[axis].extent) is None or axis == op.dim:
        raise Decline("there is no axis of constant extent inside the scanned one")
    if not all(is_vectorizable(operand, axis) for operand in (op.src, op.dst)):
        raise Decline("the elements along the innermost axis are not neighbours in memory")
    if not all(lies_inside(operand, context.analyzer) for operand in (op.src, op.dst)):
        raise Decline("the tiles may reach over the edge of a tensor")


@lowering(Scan, target="llvm", variant="columns", priority=10, fits=_has_columns)
def scan_columns(op: Scan, context: LoweringContext) -> tirx.Stmt:
    """Along an outer axis: a vector of neighbouring totals at a time."""
    axis = max(moving_axes(op.src), default=0)
    extent = constant(ranges_of(op.src)[axis].extent) or 1
    scanning = _Scanning(op)
    groups = strips(extent, widest(cpu(context.target), scanning.dtype))

    def body(offsets: list[Index]) -> tirx.Stmt:
        def group(start: int, count: int, lanes: int) -> tirx.Stmt:
            def columns(s: Any) -> tirx.Stmt:
                first = start + s * lanes
                return scanning.run([*offsets[:axis], first, *offsets[axis + 1 :]], lanes)

            return loop("s", count, columns)

        return seq([group(*strip) for strip in groups])

    return scanning.outer(body, axis)


@lowering(Scan, target="llvm", variant="elements", priority=0)
def scan_elements(op: Scan, _: LoweringContext) -> tirx.Stmt:
    """One element after the other: any extents, any dtype, any place."""
    scanning = _Scanning(op)
    return scanning.outer(lambda offsets: scanning.run(offsets, 1))
