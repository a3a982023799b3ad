"""`T.tma_gather4`, `T.tma_scatter4`: copies of four rows of a tensor by one instruction of Blackwell's.

One thread does them, which the user chooses. The tile has plain rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import is_buffer_var
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand, ShapeMismatch
from tvmtile.frontend.dtypes import DTypeLike, as_dtype
from tvmtile.frontend.emit import emit
from tvmtile.frontend.values import as_expr
from tvmtile.ir.operands import bits_of, constant, describe
from tvmtile.ir.scopes import is_global, is_shared
from tvmtile.ir.types import Index, TileOperand
from tvmtile.tileop.mbarrier import as_mbarrier
from tvmtile.tileop.registry import Decline
from tvmtile.tileop.tma.boxes import MOST_ELEMENTS, PIECE, check_tensor, map_of
from tvmtile.tileop.tma.instructions import BulkLoad, BulkStore

_ROWS = 4


def tma_gather4(
    src: TileOperand,
    dst: Any,
    col: Index,
    rows: Sequence[Index],
    *,
    barrier: TileOperand,
    swizzle: object = None,
    eviction_policy: str | None = None,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Begin to copy parts of four rows of a tensor to a tile, by the thread that comes here.

    Parameters
    ----------
    src : buffer
        A tensor in global memory, (M, K).
    dst : buffer
        A tile of (4, n) in shared memory.
    col : int or Expr
        The first column.
    rows : sequence of int or Expr
        The four rows; those out of range, and columns beyond K, read zeros.
    barrier : buffer or element
        The mbarrier that counts the bytes; `T.mbarrier_expect_tx` of `T.tma_gather4_bytes` comes first.
    swizzle, eviction_policy, annotations
        Accepted with a warning; the rows of the tile are plain.

    Notes
    -----
    NVIDIA's GPUs of compute capability 10.0 have it. `T.gather4` runs everywhere, by all threads.

    Raises
    ------
    ShapeMismatch
        If the tile has not four rows, or there are not four indices.
    InvalidOperand
        If no tensor map describes the tensor, the memory or the dtypes are others, or a row of the
        tile is no multiple of 16 bytes or has more than 256 columns.
    """
    _warn("tma_gather4", swizzle, eviction_policy, annotations)
    element, address, places = _checked("tma_gather4", src, dst, col, rows)
    mbarrier = as_mbarrier("tma_gather4", barrier)
    emit(BulkLoad(address, element, mbarrier, places, _box_of(dst), gathers=True))


def tma_scatter4(
    src: Any,
    dst: TileOperand,
    col: Index,
    rows: Sequence[Index],
    *,
    swizzle: object = None,
    eviction_policy: str | None = None,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Begin to copy a tile of four rows to rows of a tensor; see `T.tma_gather4`.

    `T.tma_store_arrive()` ends a group of such copies, which `T.tma_store_wait()` waits for.

    Parameters
    ----------
    src : buffer
        A tile of (4, n) in shared memory.
    dst : buffer
        A tensor in global memory, (M, K).
    col, rows, swizzle, eviction_policy, annotations
        As of `T.tma_gather4`.
    """
    _warn("tma_scatter4", swizzle, eviction_policy, annotations)
    element, address, places = _checked("tma_scatter4", dst, src, col, rows)
    emit(BulkStore(address, element, places, _box_of(src), scatters=True))


def tma_gather4_bytes(K_box: int, dtype: DTypeLike) -> int:
    """The bytes that `T.tma_gather4` brings, of so many columns.

    Parameters
    ----------
    K_box : int
        Columns of the tile.
    dtype : dtype
        Of an element.
    """
    return _ROWS * K_box * int(DataType(str(as_dtype(dtype))).bits) // 8


def _warn(
    name: str, swizzle: object, eviction: Any, annotations: Mapping[str, object] | None
) -> None:
    named = None if swizzle in (None, "none", 0) else swizzle
    hints = {"swizzle": named, "eviction_policy": eviction, **(annotations or {})}
    warn_ignored(f"T.{name}", **hints)


def _checked(
    name: str, tensor: Any, tile: Any, col: Any, rows: Sequence[Any]
) -> tuple[ir.TensorLoad, Any, tuple[Any, ...]]:
    """The first element of the tile, the address of the tensor's map, and the coordinates."""
    for buffer, wanted in (
        (tensor, "a whole tensor of two axes"),
        (tile, "a whole tile of two axes"),
    ):
        if not is_buffer_var(buffer) or len(buffer.ty.shape) != 2:
            raise InvalidOperand(f"T.{name}: {buffer!r} is not {wanted}", help=f"give {wanted}")
    if not is_global(tensor) or not is_shared(tile):
        raise InvalidOperand(
            f"T.{name}: {describe(tensor)} and {describe(tile)}",
            help="the tensor is in global memory, the tile one of T.alloc_shared",
        )
    if str(tensor.ty.dtype) != str(tile.ty.dtype):
        raise InvalidOperand(
            f"T.{name}: {describe(tensor)} and {describe(tile)} differ in their dtypes",
            help="give both one dtype",
        )
    if constant(tile.ty.shape[0]) != _ROWS or len(rows) != _ROWS:
        raise ShapeMismatch(
            f"T.{name}: {describe(tile)} and {len(rows)} rows",
            help=f"the tile has {_ROWS} rows, and there are {_ROWS} indices",
        )
    try:
        check_tensor(tensor, Analyzer())
    except Decline as reason:
        raise InvalidOperand(
            f"T.{name}: no tensor map describes {describe(tensor)}: {reason}",
            help="use T.gather4 and T.scatter4, which copy by all threads",
        ) from None
    columns = _box_of(tile)[1]
    width = columns * bits_of(tile) // 8
    if columns > MOST_ELEMENTS or width % PIECE:
        raise InvalidOperand(
            f"T.{name}: a row of {describe(tile)} has {columns} columns, {width} bytes",
            help=f"a row has a multiple of {PIECE} bytes, and at most {MOST_ELEMENTS} columns",
        )
    element = tirx.BufferLoad(tile, [0, 0])
    places = tuple(tirx.Cast("int32", as_expr(place)) for place in (col, *rows))
    return element, map_of(tensor, (1, columns), 0), places


def _box_of(tile: ir.Var) -> list[int]:
    return [_ROWS, constant(tile.ty.shape[1]) or 0]
