"""Operators that set the elements of a tile, or move those of another one: a declaration each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmtile.errors import InvalidOperand, UnsupportedDtype
from tvmtile.ir.types import Index
from tvmtile.tileop.elementwise_operator import Ignored, In, Meaning, Out, Scalar, elementwise

__all__ = ["c2d_im2col", "clear", "fill", "im2col", "roll", "transpose"]


@elementwise(role="fill")
def fill(buffer: Out, value: Scalar, annotations: Ignored = None) -> Meaning:
    """Set every element of a tile to `value`.

    Parameters
    ----------
    buffer : buffer, region or element
        The tile.
    value : number or Expr
        Converted to the tile's dtype.
    annotations : dict, optional
        Accepted with a warning.
    """
    return lambda *at: value


def clear(buffer: Any, annotations: Mapping[str, object] | None = None) -> None:
    """Set every element of a tile to zero.

    Parameters
    ----------
    buffer : buffer, region or element
        The tile.
    annotations : dict, optional
        Accepted with a warning.
    """
    fill(buffer, 0, annotations)


@elementwise(apart="transposed")
def transpose(src: In, dst: Out, annotations: Ignored = None) -> Meaning:
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
    for tile in (src, dst):
        if len(tile.extents) < 2:
            raise InvalidOperand(
                f"transpose: {tile} is not a matrix", help="the last two axes are exchanged"
            )
    *batch, rows, columns = src.extents
    dst.expect([*batch, columns, rows], f"{src} with its axes exchanged")
    return lambda *at: src[[*at[:-2], at[-1], at[-2]]]


@elementwise(apart="rolled")
def roll(src: In, dst: Out, shift: Index, dim: int = -1) -> Meaning:
    """Shift a tile along an axis: what leaves it at one end comes in at the other.

    Parameters
    ----------
    src : buffer or region
        The tile.
    dst : buffer or region
        Another one of the same extents. Its dtype may differ: each element is converted.
    shift : int or Expr
        How far: `dst[..., (j + shift) % N] = src[..., j]`. May be negative, or known at run time only.
    dim : int
        The axis; negative ones count from the last.
    """
    dst.expect(src.extents, f"the extents of {src}")
    axis = src.axis(dim)

    def element(*at: Any) -> Any:
        index, extent = list(at), src.extents[axis]
        index[axis] = (at[axis] - shift % extent) % extent
        return src[index]

    return element


@elementwise()
def im2col(
    img: In,
    col: Out,
    nhw_step: Index,
    c_step: Index,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
    eviction_policy: Ignored = None,
    annotations: Ignored = None,
) -> Meaning:
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
    shapes = "img is [N, H, W, C] and col is [M, K]"
    (batch, height, width, channels), (rows, columns) = img.axes(4, shapes), col.axes(2, shapes)
    sizes: dict[str, Any] = {"kernel": kernel, "stride": stride, "dilation": dilation, "pad": pad}
    for name, value in sizes.items():
        least = 0 if name == "pad" else 1
        if not isinstance(value, int) or value < least:
            raise InvalidOperand(
                f"im2col: {name}={value!r}", help=f"{name} is an integer, at least {least}"
            )
    if img.dtype != col.dtype:
        raise UnsupportedDtype(
            f"im2col: {img} and {col} differ in dtype", help="give col the image's dtype"
        )
    down, across = (
        (extent + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for extent in (height, width)
    )

    def element(*at: Any) -> Any:
        row, position = at[-2:]
        pixel, column = nhw_step * rows + row, c_step * columns + position
        window, image = column // channels, pixel // (down * across)
        y = pixel // across % down * stride + window // kernel * dilation - pad
        x = pixel % across * stride + window % kernel * dilation - pad
        inside = [image < batch, window < kernel * kernel, y >= 0, y < height, x >= 0, x < width]
        return img.where(inside, [image, y, x, column % channels])

    return element


c2d_im2col = im2col
