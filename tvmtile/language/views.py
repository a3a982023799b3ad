"""Views of memory: of a pointer as a tensor, and of a buffer under another shape or dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import (
    InvalidOperand,
    ShapeMismatch,
)
from tvmtile.frontend.dtypes import DTypeLike, Extent, Shape, as_dtype
from tvmtile.frontend.emit import require_program
from tvmtile.frontend.kernel import Tile
from tvmtile.frontend.values import as_expr
from tvmtile.ir.operands import constant, describe, dtype_of

__all__ = ["make_tensor", "make_tensor_from_addr", "reshape", "view"]


def make_tensor(
    ptr: ir.Expr, shape: Shape, dtype: DTypeLike = "float32", strides: Sequence[Any] | None = None
) -> Tile:
    """The tensor in global memory that a pointer points to.

    Parameters
    ----------
    ptr : Var or Expr
        A parameter annotated `T.ptr` or `T.handle`, or an address read from a tensor of `T.ptr`.
    shape : int, Expr or sequence of them
        Extents. Nothing can check them: the caller vouches for the memory.
    dtype : dtype
        Of the elements.
    strides : sequence of int or Expr, optional
        In elements; row-major where absent.

    Returns
    -------
    buffer
        A buffer over that memory; accesses outside `shape` are guarded as those of parameters.

    Raises
    ------
    InvalidOperand
        If `ptr` is neither a pointer nor a 64-bit integer.
    """
    extents = list(shape) if isinstance(shape, Sequence | ir.Array) else [shape]
    return T.decl_buffer(
        extents, str(as_dtype(dtype)), data=_as_pointer(ptr), strides=strides, scope="global"
    )


def make_tensor_from_addr(
    addr: ir.Expr,
    shape: Shape,
    dtype: DTypeLike = "float32",
    strides: Sequence[Any] | None = None,
    storage_scope: str = "global",
) -> Tile:
    """`make_tensor` of an address; its memory is that of the device.

    Parameters
    ----------
    addr, shape, dtype, strides
        As of `make_tensor`.
    storage_scope : str
        "global".

    Raises
    ------
    InvalidOperand
        For another scope.
    """
    if storage_scope != "global":
        raise InvalidOperand(
            f"T.make_tensor_from_addr: storage_scope={storage_scope!r} is not the device's memory",
            help="T.view and T.reshape give a tile's memory another shape and dtype",
        )
    return make_tensor(addr, shape, dtype, strides)


def _as_pointer(value: object) -> Any:
    if isinstance(value, ir.Expr) and not is_buffer_var(value):
        if not ir.is_prim_expr(value) or str(value.ty.dtype) == "handle":
            return value
        if str(as_expr(value).ty.dtype) in ("int64", "uint64"):
            return T.Bind(tirx.reinterpret("handle", value))
    raise InvalidOperand(
        f"T.make_tensor: {getattr(value, 'name', value)} is not a pointer",
        help="annotate the parameter `A: T.ptr`, or read the address from a tensor of dtype T.ptr",
    )


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
