"""`T.transpose`: exchange the two axes of a tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvmtile.errors import InvalidOperand, ShapeMismatch
from tvmtile.tileop.elementwise import converted, element, over_region
from tvmtile.tileop.operands import (
    as_region,
    buffer_of,
    check_bounds,
    check_operand,
    constant,
    describe,
    dtype_of,
    extents_of,
    same_extents,
)
from tvmtile.tileop.registry import LoweringContext, TileOp, emit, lowering, tile_operator

__all__ = ["Transpose", "reference", "transpose"]


def transpose(src: Any, dst: Any, annotations: dict[str, Any] | None = None) -> None:
    """`dst[j, i] = src[i, j]`.

    Parameters
    ----------
    src : buffer or region
        [M, N]; leading axes have extent 1.
    dst : buffer or region
        [N, M], another tile than `src`. Its dtype may differ: each element is converted.
    annotations : dict, optional
        Accepted for TileLang's kernels.

    Raises
    ------
    InvalidOperand
        If an operand is not a matrix, or both are one buffer.
    ShapeMismatch
        If the extents of `dst` are not those of `src` exchanged.
    """
    del annotations
    emit(Transpose(check_operand("transpose", "src", src), check_operand("transpose", "dst", dst)))


@tile_operator
@dataclass(frozen=True, eq=False)
class Transpose(TileOp):
    """Exchange the last two axes of a tile."""

    name = "transpose"

    src: Any
    dst: Any

    def reads(self) -> list[Any]:
        return [self.src]

    def writes(self) -> list[Any]:
        return [self.dst]

    def check(self) -> None:
        (rows, columns), (dst_rows, dst_columns) = _matrix(self.src), _matrix(self.dst)
        if not (same_extents(rows, dst_columns) and same_extents(columns, dst_rows)):
            raise ShapeMismatch(
                f"transpose: {describe(self.dst)} should be [{columns}, {rows}], {describe(self.src)} "
                "with its axes exchanged",
                help=f"give dst the extents [{columns}, {rows}]",
            )
        if buffer_of(self.src).same_as(buffer_of(self.dst)):
            raise InvalidOperand(
                f"transpose: {describe(self.src)} can't be transposed in place",
                help="transpose into another tile",
            )
        for operand in (self.src, self.dst):
            check_bounds(self.name, operand)

    def normalized(self) -> Transpose:
        return Transpose(as_region(self.src), as_region(self.dst))


def _matrix(operand: Any) -> tuple[Any, Any]:
    extents = extents_of(operand) or []
    if len(extents) < 2 or any(constant(extent) != 1 for extent in extents[:-2]):
        raise InvalidOperand(
            f"transpose: {describe(operand)} is not a matrix",
            help="the last two axes are exchanged; others must have extent 1: slice a region of them",
        )
    return extents[-2], extents[-1]


@lowering(Transpose, target="llvm", variant="elements")
def transpose_elements(op: Transpose, context: LoweringContext) -> tirx.Stmt:
    """One element after the other, along the rows of `dst`."""
    del context

    def body(offsets: list[Any]) -> tirx.Stmt:
        row, column = offsets[-2:]
        source = element(op.src, [*[0] * (len(op.src.region) - 2), column, row])
        value = converted(tirx.BufferLoad(op.src.source, source), dtype_of(op.dst))
        return tirx.BufferStore(op.dst.source, value, element(op.dst, offsets))

    return over_region(op.dst, body)


def reference(src: np.ndarray) -> np.ndarray:
    """The matrix with its axes exchanged."""
    return src.T
