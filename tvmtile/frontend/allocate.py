"""Memory of a kernel: shared tiles, fragments, local arrays, scalar variables."""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.dtypes import DType, DTypeLike, Shape, as_dtype
from tvmtile.frontend.emit import require_program
from tvmtile.frontend.kernel import kernel_of
from tvmtile.frontend.tile import Tile
from tvmtile.frontend.tracer import current_tracer
from tvmtile.frontend.values import converted
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SHARED_SCOPE
from tvmtile.ir.spans import current_span
from tvmtile.ir.types import Value

__all__ = [
    "FRAGMENT_SCOPE",
    "SHARED_SCOPE",
    "alloc_fragment",
    "alloc_global",
    "alloc_local",
    "alloc_shared",
    "alloc_var",
]


def alloc_shared(shape: Shape, dtype: DTypeLike, scope: str = SHARED_SCOPE) -> Tile:
    """Allocate a tile that the threads of a block share.

    Parameters
    ----------
    shape : sequence of int
        Extents.
    dtype : dtype
        Element dtype.
    scope : str
        `shared.dyn`, or `shared` for memory of a size fixed at compile time.
    """
    return allocate("T.alloc_shared", shape, dtype, scope)


def alloc_fragment(shape: Shape, dtype: DTypeLike, scope: str = FRAGMENT_SCOPE) -> Tile:
    """Allocate a tile in the registers of a block's threads, laid out by the compiler.

    Parameters
    ----------
    shape : sequence of int
        Extents of the whole tile.
    dtype : dtype
        Element dtype.
    scope : str
        `local.fragment`.
    """
    return allocate("T.alloc_fragment", shape, dtype, scope)


def alloc_local(shape: Shape, dtype: DTypeLike, scope: str = "local") -> Tile:
    """Allocate an array that every thread has for itself.

    Parameters
    ----------
    shape : sequence of int
        Extents.
    dtype : dtype
        Element dtype.
    scope : str
        `local`.
    """
    return allocate("T.alloc_local", shape, dtype, scope)


def alloc_global(shape: Shape, dtype: DTypeLike) -> Tile:
    """Allocate a scratch tensor in global memory, for one call of the kernel.

    Parameters
    ----------
    shape : sequence of int
        Extents.
    dtype : dtype
        Element dtype.
    """
    require_program("alloc_global")
    return T.alloc_buffer(_shape("T.alloc_global", shape), str(as_dtype(dtype)), scope="global")


def alloc_var(
    dtype: DTypeLike, *args: object, init: Value | None = None, scope: str | None = None
) -> Any:
    """Allocate a scalar variable: assignments to its name store into it, also inside loops.

    Parameters
    ----------
    dtype : dtype
        Its dtype.
    *args
        The initial value may be given by position; a string is TileLang's scope and has no effect.
    init : number or Expr, optional
        Initial value, 0 where absent.
    scope : str, optional
        Accepted for TileLang's kernels.

    Examples
    --------
    ```
    total = T.alloc_var("float32", init=0)
    for i in T.serial(n):
        total += A[i]
    ```
    """
    del scope
    values = [arg for arg in args if not isinstance(arg, str)]
    if init is not None:
        values.append(init)
    if len(values) > 1:
        raise InvalidOperand("T.alloc_var: the initial value is given twice")
    kernel_of("T.alloc_var", _OF_BLOCKS)
    name = as_dtype(dtype)
    variable = T.local_scalar(str(name))
    T.buffer_store(buffer_of(variable.scalar), converted(values[0] if values else 0, name), [0])
    return variable


def allocate(function: str, shape: Shape, dtype: DTypeLike, scope: str) -> Tile:
    """Allocate memory of a kernel.

    Parameters
    ----------
    function : str
        What a user has called, as messages show it.
    shape, dtype, scope
        As of `alloc_shared`.

    Raises
    ------
    NestingError
        Outside `T.Kernel`.
    InvalidOperand
        If the shape is text.
    """
    kernel_of(function, _OF_BLOCKS)
    if isinstance(shape, str):
        raise InvalidOperand(
            f"{function}: the shape is {shape!r}", help=f"the order is {function}(shape, dtype)"
        )
    name: DType = as_dtype(dtype)
    tile = T.alloc_buffer(_shape(function, shape), str(name), scope=scope)
    tracer = current_tracer()
    if tracer is not None:
        tracer.name_spans[tile] = current_span()
    return tile


_OF_BLOCKS = "tiles belong to a block: allocate them inside `with T.Kernel(...)`"


def _shape(function: str, shape: Shape) -> list[Any]:
    extents = list(shape) if isinstance(shape, list | tuple | ir.Array) else [shape]
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int | ir.Expr):
            raise InvalidOperand(
                f"{function}: the extent {extent!r} is not an integer",
                help="use //; in Python, `/` makes a float",
            )
        if isinstance(extent, int) and extent < 0:
            raise InvalidOperand(f"{function}: the extent {extent} is negative")
    return extents
