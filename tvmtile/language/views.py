"""Other views of a buffer's memory: `T.reshape` and `T.view`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import DataType, ir
from tvm.tirx.script import builder as T

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidOperand, ShapeMismatch
from tvmtile.frontend.dtypes import DTypeLike, Extent, Shape, as_dtype
from tvmtile.frontend.emit import require_program
from tvmtile.frontend.tile import Tile
from tvmtile.ir.operands import constant, describe, dtype_of

__all__ = ["reshape", "view"]


def reshape(src: ir.Var, shape: Shape) -> Tile:
    """The same elements, in row-major order, under another shape.

    Parameters
    ----------
    src : buffer
        Contiguous.
    shape : sequence of int
        As many elements as `src` has.
    """
    return view(src, shape, None)


def view(src: ir.Var, shape: Shape | None = None, dtype: DTypeLike | None = None) -> Tile:
    """The same bytes under another shape and dtype.

    Parameters
    ----------
    src : buffer
        Contiguous.
    shape : sequence of int, optional
        As many bytes as `src` has; its own shape where absent.
    dtype : dtype, optional
        Its own dtype where absent.

    Raises
    ------
    ShapeMismatch
        If the view would have another number of bytes.
    NestingError
        Outside of a program.
    """
    if not is_buffer_var(src):
        raise InvalidOperand("T.view: the source is not a buffer")
    extents = list(src.ty.shape) if shape is None else _as_list(shape)
    name = as_dtype(dtype) if dtype is not None else as_dtype(dtype_of(src))
    have, want = _bits(src.ty.shape, dtype_of(src)), _bits(extents, name)
    if have is not None and want is not None and have != want:
        raise ShapeMismatch(
            f"T.view: {describe(src)} has {have // 8} bytes, a view of shape {tuple(extents)} "
            f"{name} needs {want // 8}",
            help="a view covers the same bytes; T.copy converts values",
        )
    require_program("view")
    # TVM prints a view of the same dtype as `src.view(...)`, which keeps the layout of its source.
    layout = src.ty.layout if str(name) == dtype_of(src) else "default"
    return T.decl_buffer(
        extents, str(name), data=src.data, scope=src.ty.storage_scope, layout=layout
    )


def _as_list(shape: Shape) -> list[Any]:
    return list(shape) if isinstance(shape, tuple | list | ir.Array) else [shape]


def _bits(shape: Sequence[Extent], dtype: str) -> int | None:
    kind = DataType(dtype)
    total = int(kind.bits) * int(kind.lanes)
    for extent in shape:
        value = constant(extent)
        if value is None:
            return None
        total *= value
    return total
