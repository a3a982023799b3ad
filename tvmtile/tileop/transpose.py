"""`T.transpose`: exchange the last two axes of a tile."""

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
    """`dst[..., j, i] = src[..., i, j]`.

    Parameters
    ----------
    src : buffer or region
        [M, N], or several of them along leading axes.
    dst : buffer or region
        [N, M], with the leading axes of `src`; another tile than `src`. Its dtype may differ: each
        element is converted.
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
        *batch, rows, columns = _matrices(self.src)
        expected, extents = [*batch, columns, rows], _matrices(self.dst)
        if len(expected) != len(extents) or not all(map(same_extents, expected, extents)):
            shape = ", ".join(map(str, expected))
            raise ShapeMismatch(
                f"transpose: {describe(self.dst)} should be [{shape}], {describe(self.src)} "
                "with its axes exchanged",
                help=f"give dst the extents [{shape}]",
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


def _matrices(operand: Any) -> list[Any]:
    """The extents of an operand, without leading ones."""
    extents = list(extents_of(operand) or [])
    if len(extents) < 2:
        raise InvalidOperand(
            f"transpose: {describe(operand)} is not a matrix",
            help="the last two axes are exchanged",
        )
    while len(extents) > 2 and constant(extents[0]) == 1:
        del extents[0]
    return extents


@lowering(Transpose, target="llvm", variant="elements")
def transpose_elements(op: Transpose, context: LoweringContext) -> tirx.Stmt:
    """One element after the other, along the rows of `dst`."""
    del context

    def body(offsets: list[Any]) -> tirx.Stmt:
        *batch, row, column = offsets
        count = len(op.src.region) - 2
        source = element(op.src, [*([0] * count + batch)[len(batch) :], column, row])
        value = converted(tirx.BufferLoad(op.src.source, source), dtype_of(op.dst))
        return tirx.BufferStore(op.dst.source, value, element(op.dst, offsets))

    return over_region(op.dst, body)


def reference(src: np.ndarray) -> np.ndarray:
    """The tile with its last two axes exchanged."""
    return np.swapaxes(src, -1, -2)
