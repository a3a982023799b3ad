"""`T.cumsum` and `T.cummax`: running totals along an axis of a tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir

from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import ShapeMismatch
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.ir.operands import (
    check_bounds,
    checked_axis,
    describe,
    extents_of,
    same_extents,
)
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.types import TileOperand


def cumsum(
    src: TileOperand,
    dst: TileOperand | None = None,
    dim: int = 0,
    reverse: bool = False,
    annotations: Mapping[str, object] | None = None,
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
        Accepted with a warning.

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
    warn_ignored("T.cumsum", annotations=annotations)
    _emit_scan("cumsum", "sum", src, dst, dim, reverse)


def cummax(
    src: TileOperand,
    dst: TileOperand | None = None,
    dim: int = 0,
    reverse: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Maxima of all elements up to each one, along an axis. NaNs are left out.

    Before the first number they are minus infinity.

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
    warn_ignored("T.cummax", annotations=annotations)
    _emit_scan("cummax", "max", src, dst, dim, reverse)


def _emit_scan(name: str, kind: str, src: Any, dst: Any, dim: int, reverse: bool) -> None:
    source = check_operand(name, "src", src)
    target = source if dst is None else check_operand(name, "dst", dst)
    axis = checked_axis(name, "src", source, dim)
    emit(Scan(source, target, kind, axis, bool(reverse)), name)


@tile_operator
class Scan(TileOp):
    """Running totals along one axis; `dim` is not negative."""

    name = "scan"
    inputs = ("src",)
    outputs = ("dst",)

    src: ir.TensorRegion
    dst: ir.TensorRegion
    kind: str = "sum"
    dim: int = 0
    reverse: bool = False

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

    def with_buffer_copies(self, operands: Sequence[ir.Expr]) -> Scan:
        grown = any(self.src is operand for operand in operands)
        return replace(self, dim=self.dim + 1) if grown else self
