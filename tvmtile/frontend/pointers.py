"""Pointers: `T.ptr` parameters, tables of addresses, and the tensors behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.dtypes import DTypeLike, Shape, as_dtype
from tvmtile.frontend.math import as_expr
from tvmtile.frontend.tile import Tile

__all__ = ["make_tensor", "make_tensor_from_addr", "ptr"]


class _Pointer:
    """`T.ptr`: the annotation of a pointer parameter, and the dtype of a table of addresses.

    `T.ptr(dtype, scope)` is TVM's typed pointer.
    """

    name = "int64"
    """How an address is stored in a tensor, as of `T.Tensor((n,), T.ptr)`."""

    def __call__(self, dtype: DTypeLike | None = None, storage_scope: str = "global") -> ir.Var:
        """A pointer variable; what it points to is unknown where `dtype` is absent."""
        if dtype is None:
            return tirx.Var("", "handle")
        return T.ptr(str(as_dtype(dtype)), storage_scope)


ptr = _Pointer()


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
