"""`T.im2col`: gather the windows of an image as the rows of a matrix, for a convolution as a gemm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand, UnsupportedDtype
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.ir.operands import check_bounds, describe, dtype_of, extents_of
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.types import Index, TileOperand
from tvmtile.tileop.elementwise import element, over_region
from tvmtile.tileop.registry import as_loops, lowering


def im2col(
    img: TileOperand,
    col: TileOperand,
    nhw_step: Index,
    c_step: Index,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
    eviction_policy: str | None = None,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Gather one tile of the matrix whose rows are the windows of a 2-D convolution.

    Row `m` of the matrix is the window of output pixel `m`, counted through batch, height and width;
    column `k` is an element of the window, counted through the kernel's height, its width and the
    channels. Elements outside the image, and rows beyond the last pixel, are zero.

    Parameters
    ----------
    img : buffer
        [N, H, W, C], the whole image.
    col : buffer or region
        [M, K], the tile, of the image's dtype.
    nhw_step, c_step : int or Expr
        Which tile of the matrix: its first row is `nhw_step * M`, its first column `c_step * K`.
    kernel, stride, dilation, pad : int
        Of the convolution, in both directions alike.
    eviction_policy, annotations
        Accepted with a warning.

    Raises
    ------
    InvalidOperand
        If `img` has not four axes, `col` not two, or a parameter of the convolution is not a sensible
        integer.
    UnsupportedDtype
        If the dtypes differ.
    """
    from tvmtile.frontend.values import as_expr

    warn_ignored("T.im2col", eviction_policy=eviction_policy, annotations=annotations)
    emit(
        Im2col(
            check_operand("im2col", "img", img),
            check_operand("im2col", "col", col),
            as_expr(nhw_step),
            as_expr(c_step),
            kernel,
            stride,
            dilation,
            pad,
        )
    )


c2d_im2col = im2col


@tile_operator
class Im2col(TileOp):
    """Gather windows of an image as rows of a tile."""

    name = "im2col"
    inputs = ("img",)
    outputs = ("col",)

    img: ir.TensorRegion
    col: ir.TensorRegion
    nhw_step: Any
    c_step: Any
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    def check(self) -> None:
        for operand, rank in ((self.img, 4), (self.col, 2)):
            if len(extents_of(operand) or []) != rank:
                raise InvalidOperand(
                    f"im2col: {describe(operand)} should have {rank} axes",
                    help="img is [N, H, W, C] and col is [M, K]",
                )
        for name, least in (("kernel", 1), ("stride", 1), ("dilation", 1), ("pad", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidOperand(
                    f"im2col: {name}={value!r}", help=f"{name} is an integer, at least {least}"
                )
        if dtype_of(self.img) != dtype_of(self.col):
            raise UnsupportedDtype(
                f"im2col: {describe(self.img)} and {describe(self.col)} differ in dtype",
                help="give col the image's dtype",
            )
        check_bounds(self.name, self.col)

    def output_extent(self, extent: ir.Expr) -> ir.Expr:
        """Output pixels along a direction of the image."""
        return (extent + 2 * self.pad - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    def as_loops(self) -> tirx.Stmt:
        batch, height, width, channels = (r.extent for r in ranges_of(self.img))
        rows, columns = (r.extent for r in ranges_of(self.col)[-2:])
        out_height, out_width = self.output_extent(height), self.output_extent(width)

        def body(offsets: list[Index]) -> tirx.Stmt:
            row, position = offsets[-2:]
            pixel = self.nhw_step * rows + row
            column = self.c_step * columns + position
            y, x = (
                tirx.floormod(tirx.floordiv(pixel, out_width), out_height),
                tirx.floormod(pixel, out_width),
            )
            window = tirx.floordiv(column, channels)
            image = tirx.floordiv(pixel, out_height * out_width)
            at_y = y * self.stride + tirx.floordiv(window, self.kernel) * self.dilation - self.pad
            at_x = x * self.stride + tirx.floormod(window, self.kernel) * self.dilation - self.pad
            inside = tirx.all(
                image < batch,
                window < self.kernel * self.kernel,
                at_y >= 0,
                at_y < height,
                at_x >= 0,
                at_x < width,
            )
            source = element(self.img, [image, at_y, at_x, tirx.floormod(column, channels)])
            value = tirx.if_then_else(
                inside,
                tirx.BufferLoad(buffer_of(self.img), source),
                tirx.const(0, dtype_of(self.col)),
            )
            return tirx.BufferStore(buffer_of(self.col), value, element(self.col, offsets))

        return over_region(self.col, body)


# Padding and rows beyond the last pixel are zero.
lowering(Im2col, target=("llvm", "metal", "cuda"), variant="elements")(as_loops)


def reference(img: np.ndarray, kernel: int, stride: int, dilation: int, pad: int) -> np.ndarray:
    """The whole matrix, [N * OH * OW, kernel * kernel * C], of an image [N, H, W, C]."""
    padded = np.pad(img, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = dilation * (kernel - 1)
    taps = [
        padded[
            :,
            dilation * i : padded.shape[1] - reach + dilation * i : stride,
            dilation * j : padded.shape[2] - reach + dilation * j : stride,
        ]
        for i in range(kernel)
        for j in range(kernel)
    ]
    return np.concatenate(taps, axis=-1).reshape(-1, kernel * kernel * img.shape[-1])
