"""`T.ptx_cp_async`: a thread copies some bytes from a tensor to a shared tile, asynchronously."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from tvm import DataType, ir, tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, nodes_in, ranges_of
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import emit
from tvmtile.frontend.values import as_expr
from tvmtile.ir.asynchronous import CP_ASYNC, issue, signal, wait
from tvmtile.ir.calls import op_name, takes_address
from tvmtile.ir.operands import bits_of, constant, describe
from tvmtile.ir.operators import VARARGS, ValueOp, tile_operator
from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.ir.scopes import is_global, is_shared
from tvmtile.ir.types import Index, Value
from tvmtile.target import gpu

_SIZES = (4, 8, 16)
"""Bytes that an instruction copies."""


def access_ptr(
    base: ir.Expr,
    access_type: str | int = "r",
    *extents: object,
    offset: Index = 0,
    extent: Any = None,
    ignore_last_ndim: int = 0,
) -> ir.Expr:
    """The address of an element, for a function that takes one.

    Parameters
    ----------
    base : buffer, region or element
        Whose first element it is, or which element.
    access_type : str or int
        `r`, `w` or `rw`. The compiler takes a function to read and write what it is given.
    *extents, extent
        How many elements are accessed; accepted for TileLang's kernels.
    offset : int or Expr
        Elements behind it, along the last axis.
    ignore_last_ndim : int
        So many of the last indices are taken for 0.

    Raises
    ------
    InvalidOperand
        If `base` is no buffer, or there is no such access.
    """
    del extents, extent
    if access_type not in ("r", "w", "rw", 1, 2, 3):
        raise InvalidOperand(
            f"T.access_ptr: access_type={access_type!r}", help='give "r", "w" or "rw"'
        )
    buffer, indices = _place(base)
    kept = len(indices) - ignore_last_ndim
    indices = [index if axis < kept else 0 for axis, index in enumerate(indices)]
    indices[-1] = indices[-1] + offset
    return T.address_of(tirx.BufferLoad(buffer, indices))


def _place(base: Any) -> tuple[ir.Var, list[Any]]:
    if is_buffer_var(base):
        return base, [tirx.const(0, "int32")] * len(base.ty.shape)
    if isinstance(base, ir.TensorRegion):
        return buffer_of(base), [r.min for r in ranges_of(base)]
    if isinstance(base, ir.TensorLoad):
        return buffer_of(base), list(indices_of(base))
    raise InvalidOperand(
        f"T.access_ptr: {base!r} is no buffer",
        help="give a buffer, a region or an element, `A[i, j]`",
    )


def ptx_cp_async(
    dst_access_ptr: ir.Expr, src_access_ptr: ir.Expr, num_elems: int, predicate: Value | None = None
) -> None:
    """Begin to copy some elements that lie side by side, by the thread that comes here.

    Parameters
    ----------
    dst_access_ptr, src_access_ptr : Expr
        What `T.access_ptr` gives, or TVM's `T.tvm_access_ptr`, of a shared tile and of a tensor of
        the same dtype.
    num_elems : int
        How many elements: 4, 8 or 16 bytes.
    predicate : Expr, optional
        Where it does not hold, zeros are written and nothing is read.

    Notes
    -----
    The thread waits for it by `T.ptx_commit_group` and `T.ptx_wait_group`, or others by
    `T.cp_async_barrier_noinc`. On targets without such copies the elements have arrived when the next
    statement begins.

    Raises
    ------
    InvalidOperand
        If the pointers are not of these kinds, or the elements are not 4, 8 or 16 bytes.
    """
    target = _element("dst", dst_access_ptr)
    source = _element("src", src_access_ptr)
    if not is_shared(buffer_of(target)) or not is_global(buffer_of(source)):
        raise InvalidOperand(
            f"T.ptx_cp_async: from {describe(source)} to {describe(target)}",
            help="it copies from a tensor in global memory to a tile of T.alloc_shared",
        )
    dtypes = [str(buffer_of(each).ty.dtype) for each in (target, source)]
    size = num_elems * int(DataType(dtypes[0]).bits) // 8
    if dtypes[0] != dtypes[1] or size not in _SIZES:
        raise InvalidOperand(
            f"T.ptx_cp_async: {num_elems} elements of {dtypes[1]} to {dtypes[0]}",
            help="both sides have one dtype, and the elements are 4, 8 or 16 bytes",
        )
    condition = () if predicate is None else (as_expr(predicate),)
    emit(CpAsync(target, source, condition, num_elems))


def _element(name: str, pointer: Any) -> ir.TensorLoad:
    if takes_address(pointer) and isinstance(pointer.args[0], ir.TensorLoad):
        return pointer.args[0]
    if isinstance(pointer, ir.Call) and op_name(pointer) == "tirx.tvm_access_ptr":
        found = _at_offset(pointer)
        if found is not None:
            return found
    raise InvalidOperand(
        f"T.ptx_cp_async: {name} is {pointer!r}",
        help="give what T.access_ptr(tile[i, j], ...) returns",
    )


def _at_offset(pointer: ir.Call) -> ir.TensorLoad | None:
    """The element that TVM's own pointer is at; None of another dtype's, or of rows with gaps."""
    kind, data, offset, *_ = pointer.args
    buffer = next(filter(is_buffer_var, nodes_in(data, ir.Var)), None)
    if buffer is None or buffer.ty.strides or str(kind.ty.dtype) != str(buffer.ty.dtype):
        return None
    indices: list[ir.Expr] = []
    for extent in reversed(buffer.ty.shape[1:]):
        indices.append(tirx.floormod(offset, extent))
        offset = tirx.floordiv(offset, extent)
    return tirx.BufferLoad(buffer, [offset, *reversed(indices)])


def ptx_commit_group() -> None:
    """End a group of the thread's asynchronous copies."""
    emit(CpAsyncGroup("end"))


def ptx_wait_group(num: int) -> None:
    """Wait until at most `num` groups of the thread's asynchronous copies are under way."""
    emit(CpAsyncGroup("wait", constant(num) or 0))


@tile_operator
class CpAsync(ValueOp):
    """Copy `count` elements from `source` on to those from `target` on; zeros without the predicate."""

    name = "cp_async"
    inputs = ("source",)
    outputs = ("target",)

    target: ir.TensorLoad
    source: ir.TensorLoad
    predicate: tuple[ir.Expr, ...] = field(default=(), metadata=VARARGS)
    count: int = 1

    def expanded(self, target: Target | None) -> tirx.Stmt:
        """The work of a token; elsewhere a loop."""
        capability = gpu(target)
        if capability is None or not capability.has_async_copies:
            return self._loop()
        size = self.count * bits_of(self.target) // 8
        none = tirx.const(0, "uint32")
        read = [tirx.Select(p, tirx.const(size, "uint32"), none) for p in self.predicate]
        places = (T.address_of(self.target), T.address_of(self.source))
        return issue(CP_ASYNC.name, *places, size, *read)

    def _loop(self) -> tirx.Stmt:
        lane = tirx.Var("lane", "int32")
        value = tirx.BufferLoad(buffer_of(self.source), _behind(indices_of(self.source), lane))
        for predicate in self.predicate:
            zero = tirx.const(0, str(value.ty.dtype))
            value = tirx.if_then_else(predicate, value, zero)
        place = _behind(indices_of(self.target), lane)
        return for_loop(lane, self.count, tirx.BufferStore(buffer_of(self.target), value, place))


def _behind(indices: Sequence[Index], lane: ir.Var) -> list[Any]:
    *outer, last = indices
    return [*outer, last + lane]


@tile_operator
class CpAsyncGroup(ValueOp):
    """`end` a group of the thread's copies, or `wait` for all of its groups but `behind`."""

    name = "cp_async_group"

    action: str = "wait"
    behind: int = 0

    def expanded(self, target: Target | None) -> tirx.Stmt:
        """Statements about a token; nothing where there are no such copies."""
        capability = gpu(target)
        if capability is None or not capability.has_async_copies:
            return seq([])
        token = CP_ASYNC.name
        return signal(token) if self.action == "end" else wait(token, self.behind)
