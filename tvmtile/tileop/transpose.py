"""`T.transpose`: exchange the last two axes of a tile."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand, ShapeMismatch
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.ir.operands import check_bounds, constant, describe, dtype_of, extents_of, same_extents
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.types import Index, TileOperand
from tvmtile.tileop.copy import between_fragments, between_threads, by_shared_tile
from tvmtile.tileop.elementwise import converted, element, over_region
from tvmtile.tileop.registry import LoweringContext, as_loops, lowering


def transpose(
    src: TileOperand, dst: TileOperand, annotations: Mapping[str, object] | None = None
) -> None:
    """`dst[..., j, i] = src[..., i, j]`.

    Parameters
    ----------
    src : buffer or region
        [M, N], or several of them along leading axes.
    dst : buffer or region
        [N, M], with the leading axes of `src`; another tile than `src`. Its dtype may differ: each
        element is converted.
    annotations : dict, optional
        Accepted with a warning.

    Raises
    ------
    InvalidOperand
        If an operand is not a matrix, or both are one buffer.
    ShapeMismatch
        If the extents of `dst` are not those of `src` exchanged.
    """
    warn_ignored("T.transpose", annotations=annotations)
    emit(Transpose(check_operand("transpose", "src", src), check_operand("transpose", "dst", dst)))


@tile_operator
class Transpose(TileOp):
    """Exchange the last two axes of a tile."""

    name = "transpose"
    inputs = ("src",)
    outputs = ("dst",)

    src: ir.TensorRegion
    dst: ir.TensorRegion

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

    def as_loops(self) -> tirx.Stmt:
        def body(offsets: list[Index]) -> tirx.Stmt:
            *batch, row, column = offsets
            count = len(ranges_of(self.src)) - 2
            source = element(self.src, [*([0] * count + batch)[len(batch) :], column, row])
            value = converted(tirx.BufferLoad(buffer_of(self.src), source), dtype_of(self.dst))
            return tirx.BufferStore(buffer_of(self.dst), value, element(self.dst, offsets))

        return over_region(self.dst, body)


def _matrices(operand: TileOperand) -> list[ir.Expr]:
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


lowering(Transpose, target=("llvm", "metal", "cuda"), variant="elements")(as_loops)


@lowering(
    Transpose,
    target=("metal", "cuda"),
    variant="staged",
    priority=10,
    fits=between_fragments,
    fits_layouts=between_threads,
    stages=True,
)
def transpose_staged(op: Transpose, _: LoweringContext) -> tirx.Stmt:
    """Between fragments whose elements lie in different threads: by way of shared memory."""
    return by_shared_tile(
        op.src, dtype_of(op.src), "transposed", lambda tile: Transpose(tile, op.dst).as_loops()
    )


def reference(src: np.ndarray) -> np.ndarray:
    """The tile with its last two axes exchanged."""
    return np.swapaxes(src, -1, -2)
