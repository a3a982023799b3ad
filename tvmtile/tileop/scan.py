"""`T.cumsum` and `T.cummax`: running totals along an axis of a tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import tirx

from tvmtile.errors import ShapeMismatch
from tvmtile.rewriting import seq
from tvmtile.target import cpu
from tvmtile.tileop.combine import COMBINERS, accumulator_dtype
from tvmtile.tileop.elementwise import (
    converted,
    element,
    matching_offsets,
    moving_axes,
    over_region,
)
from tvmtile.tileop.operands import (
    as_region,
    check_bounds,
    check_operand,
    checked_axis,
    constant,
    describe,
    dtype_of,
    extents_of,
    same_extents,
)
from tvmtile.tileop.registry import Decline, LoweringContext, TileOp, emit, lowering, tile_operator
from tvmtile.tileop.vectors import (
    Total,
    is_vectorizable,
    lies_inside,
    ramp,
    repeat,
    strips,
    widest,
)

__all__ = ["Scan", "cummax", "cumsum", "reference"]


def cumsum(
    src: Any,
    dst: Any = None,
    dim: int = 0,
    reverse: bool = False,
    annotations: dict[str, Any] | None = None,
) -> None:
    """Sums of all elements up to each one, along an axis: `dst[i] = src[0] + ... + src[i]`.

    Parameters
    ----------
    src : buffer or region
        The tile, of any rank and dtype, in any scope.
    dst : buffer or region, optional
        Of the same extents; `src` itself where absent. Its dtype may differ.
    dim : int
        The axis; negative ones count from the last.
    reverse : bool
        Sum from the end: `dst[i] = src[i] + ... + src[-1]`.
    annotations : dict, optional
        Accepted for TileLang's kernels.

    Raises
    ------
    ShapeMismatch
        If the two tiles differ in their extents.
    InvalidOperand
        If there is no such axis.

    Notes
    -----
    Floats narrower than 32 bits are summed in float32; each result is rounded once.
    """
    del annotations
    _emit_scan("cumsum", "sum", src, dst, dim, reverse)


def cummax(
    src: Any,
    dst: Any = None,
    dim: int = 0,
    reverse: bool = False,
    annotations: dict[str, Any] | None = None,
) -> None:
    """Maxima of all elements up to each one, along an axis. NaNs are ignored.

    Parameters
    ----------
    src, dst, dim, reverse, annotations
        As of `cumsum`.

    Raises
    ------
    ShapeMismatch
        If the two tiles differ in their extents.
    InvalidOperand
        If there is no such axis.
    """
    del annotations
    _emit_scan("cummax", "max", src, dst, dim, reverse)


def _emit_scan(name: str, kind: str, src: Any, dst: Any, dim: Any, reverse: bool) -> None:
    source = check_operand(name, "src", src)
    target = source if dst is None else check_operand(name, "dst", dst)
    axis = checked_axis(name, "src", source, dim)
    emit(Scan(source, target, kind, axis, bool(reverse)))


@tile_operator
@dataclass(frozen=True, eq=False)
class Scan(TileOp):
    """Running totals along one axis; `dim` is not negative."""

    name = "scan"
    options = ("kind", "dim", "reverse")

    src: Any
    dst: Any
    kind: str = "sum"
    dim: int = 0
    reverse: bool = False

    def reads(self) -> list[Any]:
        return [self.src]

    def writes(self) -> list[Any]:
        return [self.dst]

    def check(self) -> None:
        source, target = extents_of(self.src) or [], extents_of(self.dst) or []
        if len(source) != len(target) or not all(map(same_extents, source, target)):
            raise ShapeMismatch(
                f"cum{self.kind}: {describe(self.src)} and {describe(self.dst)} are tiles of different "
                "shapes",
                help="give dst the shape of src, or leave it out to work in place",
            )
        for operand in (self.src, self.dst):
            check_bounds(f"cum{self.kind}", operand)

    def with_versions(self, operands: Sequence[Any]) -> Scan:
        grown = any(self.src is operand for operand in operands)
        return replace(self, dim=self.dim + 1) if grown else self

    def normalized(self) -> Scan:
        return Scan(as_region(self.src), as_region(self.dst), self.kind, self.dim, self.reverse)


class _Scanning:
    """One scan of `lanes` neighbours at a time."""

    def __init__(self, op: Scan) -> None:
        self.op = op
        self.combiner = COMBINERS[op.kind]
        self.dtype = accumulator_dtype(dtype_of(op.src), dtype_of(op.dst))

    def run(self, offsets: list[Any], lanes: int) -> tirx.Stmt:
        """Scan along the axis from given offsets along the others."""
        op, total = self.op, Total(self.dtype, lanes)
        extent = op.src.region[op.dim].extent

        def step(d: Any) -> tirx.Stmt:
            position = extent - 1 - d if op.reverse else d
            at = [*offsets[: op.dim], position, *offsets[op.dim + 1 :]]
            source = element(op.src, at)
            target = element(op.dst, matching_offsets(op.src, op.dst, at))
            source[-1], target[-1] = ramp(source[-1], lanes), ramp(target[-1], lanes)
            new = converted(tirx.BufferLoad(op.src.source, source), self.dtype)
            result = converted(total.value, dtype_of(op.dst))
            return seq(
                [
                    total.set(self.combiner.combine(new, total.value)),
                    tirx.BufferStore(op.dst.source, result, target),
                ]
            )

        start = total.starting_from(self.combiner.identity(self.dtype))
        return seq([start, repeat(extent, step, "d")])

    def outer(self, body: Callable[[list[Any]], tirx.Stmt], *more: int) -> tirx.Stmt:
        """Loops over all axes but the scanned one and some more."""
        return over_region(
            self.op.src, body, without=(self.op.dim, *more), kind=tirx.ForKind.SERIAL
        )


@lowering(Scan, target="llvm", variant="columns", priority=10)
def scan_columns(op: Scan, context: LoweringContext) -> tirx.Stmt:
    """Along an outer axis: a vector of neighbouring totals at a time."""
    axis = max(moving_axes(op.src), default=0)
    extent = constant(op.src.region[axis].extent)
    if extent is None or axis == op.dim:
        raise Decline("there is no axis of constant extent inside the scanned one")
    if not all(is_vectorizable(operand, axis) for operand in (op.src, op.dst)):
        raise Decline("the elements along the innermost axis are not neighbours in memory")
    if not all(lies_inside(operand, context.analyzer) for operand in (op.src, op.dst)):
        raise Decline("the tiles may reach over the edge of a tensor")
    scanning = _Scanning(op)
    groups = strips(extent, widest(cpu(context.target), scanning.dtype))

    def body(offsets: list[Any]) -> tirx.Stmt:
        def group(start: int, count: int, lanes: int) -> tirx.Stmt:
            def columns(s: Any) -> tirx.Stmt:
                first = start + s * lanes
                return scanning.run([*offsets[:axis], first, *offsets[axis + 1 :]], lanes)

            return repeat(count, columns)

        return seq([group(*strip) for strip in groups])

    return scanning.outer(body, axis)


@lowering(Scan, target="llvm", variant="elements", priority=0)
def scan_elements(op: Scan, context: LoweringContext) -> tirx.Stmt:
    """One element after the other: any extents, any dtype, any place."""
    del context
    scanning = _Scanning(op)
    return scanning.outer(lambda offsets: scanning.run(offsets, 1))


_REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "sum": np.cumsum,
    "max": np.maximum.accumulate,
}


def reference(src: np.ndarray, kind: str, dim: int, reverse: bool = False) -> np.ndarray:
    """What a scan computes, in float64 or int64, not rounded.

    Parameters
    ----------
    src : ndarray
        The tile.
    kind : {"sum", "max"}
        Which totals.
    dim : int
        The axis.
    reverse : bool
        From the end.
    """
    is_integer = np.issubdtype(src.dtype, np.integer) or src.dtype == np.bool_
    wide = src.astype(np.int64 if is_integer else np.float64)
    if not reverse:
        return _REFERENCES[kind](wide, axis=dim)
    return np.flip(_REFERENCES[kind](np.flip(wide, dim), axis=dim), dim)
