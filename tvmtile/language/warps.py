"""Threads of a block among each other: places in a warp, shuffles, reductions over a warp.

A warp is 32 threads that follow each other in the block, `threadIdx.x` counting fastest. Everything
here is made of TVM's shuffles and reductions over threads, so it has a meaning on every target; a CPU
lets the threads exchange values through an array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import require_program
from tvmtile.frontend.values import as_expr
from tvmtile.ir.spans import current_span
from tvmtile.ir.threads import ALL_LANES, WARP_SIZE, WARPGROUP
from tvmtile.ir.types import Index, Value
from tvmtile.language.launches import thread_index

__all__ = [
    "get_lane_idx",
    "get_warp_group_idx",
    "get_warp_idx",
    "get_warp_idx_sync",
    "shfl_down",
    "shfl_sync",
    "shfl_up",
    "shfl_xor",
    "shuffle_elect",
    "sync_warp",
    "warp_reduce_bitand",
    "warp_reduce_bitor",
    "warp_reduce_max",
    "warp_reduce_min",
    "warp_reduce_sum",
]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def of_threads(function: _Function) -> _Function:
    """A function whose work is statements: an error outside of a program, before they are made."""

    @functools.wraps(function)
    def checked(*args: object, **kwargs: object) -> object:
        require_program(function.__name__)
        return function(*args, **kwargs)

    return cast(_Function, checked)


def located(call: ir.Call) -> ir.Call:
    """The call, with the line of the kernel."""
    return ir.Call(call.op, call.args, call.attrs, span=current_span(), ret_ty=call.ty)


def lanes_of(mask: Any) -> Any:
    """The lanes of a mask, as the bits of a `uint32`."""
    is_known = isinstance(mask, int)  # -1 for all lanes is a habit of CUDA
    return tirx.const(mask & ALL_LANES, "uint32") if is_known else tirx.Cast("uint32", mask)


# Places ------------------------------------------------------------------------------------------


def get_lane_idx(warp_size: int | None = None) -> ir.Expr:
    """The place of a thread in its warp, from 0.

    Parameters
    ----------
    warp_size : int, optional
        Threads of a warp, 32 where absent.
    """
    return tirx.floormod(thread_index(), warp_size or WARP_SIZE)


def get_warp_idx(warp_size: int | None = None) -> ir.Expr:
    """The number of a thread's warp in its block.

    Parameters
    ----------
    warp_size : int, optional
        Threads of a warp, 32 where absent.
    """
    return tirx.floordiv(thread_index(), warp_size or WARP_SIZE)


def get_warp_idx_sync(warp_size: int | None = None) -> ir.Expr:
    """The number of a thread's warp in its block; the same as `get_warp_idx`."""
    return get_warp_idx(warp_size)


def get_warp_group_idx(warp_size: int | None = None, warps_per_group: int | None = None) -> ir.Expr:
    """The number of a thread's group of warps in its block.

    Parameters
    ----------
    warp_size : int, optional
        Threads of a warp, 32 where absent.
    warps_per_group : int, optional
        Warps of a group, 4 where absent.
    """
    threads = (warp_size or WARP_SIZE) * (warps_per_group or WARPGROUP // WARP_SIZE)
    return tirx.floordiv(thread_index(), threads)


def shuffle_elect(thread_extent: int) -> ir.Expr:
    """True in the first thread of each group of `thread_extent`; 0 makes the block one group."""
    index = thread_index()
    return (tirx.floormod(index, thread_extent) if thread_extent else index) == 0


@of_threads
def sync_warp(mask: Index | None = None) -> None:
    """Wait until all threads of the warp have come here.

    Parameters
    ----------
    mask : int, optional
        Accepted for TileLang's kernels.
    """
    is_full = isinstance(mask, int) and mask & ALL_LANES == ALL_LANES
    warn_ignored("T.sync_warp", mask=None if is_full else mask)
    T.evaluate(located(T.tvm_storage_sync("warp")))


# Shuffles ----------------------------------------------------------------------------------------


def shfl_sync(
    value: Value, srcLane: Index, width: int = WARP_SIZE, mask: Index = ALL_LANES
) -> ir.Expr:
    """The value of another thread of the same group, by its place in the group.

    Parameters
    ----------
    value : Expr
        What each thread gives.
    srcLane : int or Expr
        Place of the thread whose value is taken, modulo `width`.
    width : int
        Threads of a group, a power of two up to 32.
    mask : int or Expr
        The lanes that come, where a branch lets in some of a warp. It is what CUDA is told; Metal's
        shuffles want all lanes to come.
    """
    _check_width(width)
    lane = tirx.floormod(as_expr(srcLane), width)
    return _shuffled(T.tvm_warp_shuffle, value, lane, width, mask, lambda _: lane)


def shfl_up(value: Value, delta: Index, width: int = WARP_SIZE, mask: Index = ALL_LANES) -> ir.Expr:
    """The value of the thread `delta` places before; the first ones of a group keep their own."""
    return _shuffled(
        T.tvm_warp_shuffle_up,
        value,
        delta,
        width,
        mask,
        lambda place: _kept(place - delta, place, width),
    )


def shfl_down(
    value: Value, delta: Index, width: int = WARP_SIZE, mask: Index = ALL_LANES
) -> ir.Expr:
    """The value of the thread `delta` places behind; the last ones of a group keep their own."""
    return _shuffled(
        T.tvm_warp_shuffle_down,
        value,
        delta,
        width,
        mask,
        lambda place: _kept(place + delta, place, width),
    )


def shfl_xor(
    value: Value, delta: Index, width: int = WARP_SIZE, mask: Index = ALL_LANES
) -> ir.Expr:
    """The value of the thread whose place differs in the bits of `delta`."""
    return _shuffled(T.tvm_warp_shuffle_xor, value, delta, width, mask, lambda place: place ^ delta)


def _check_width(width: int) -> None:
    if width not in (1, 2, 4, 8, 16, 32):
        raise InvalidOperand(
            f"a shuffle over groups of {width} threads", help="width is a power of two up to 32"
        )


def _kept(other: ir.Expr, place: ir.Expr, width: int) -> ir.Expr:
    """Another place in the group, or the own one where there is no such."""
    return tirx.Select(tirx.all(other >= 0, other < width), other, place)


def _shuffled(
    shuffle: Callable[..., Any],
    value: Any,
    operand: Value,
    width: int,
    mask: Value,
    source: Callable[[Any], Any],
) -> ir.Call:
    """A shuffle over a whole warp; `source` makes the place of the source from that of a thread."""
    _check_width(width)
    lanes = lanes_of(mask)
    if width == WARP_SIZE:
        return located(shuffle(lanes, as_expr(value), operand, width, WARP_SIZE))
    # Metal shuffles whole warps only: the place in the warp is computed from that in the group.
    lane = get_lane_idx()
    place = tirx.floormod(lane, width)
    other = lane - place + tirx.bitwise_and(source(place), width - 1)  # width is a power of two
    return located(T.tvm_warp_shuffle(lanes, as_expr(value), other, WARP_SIZE, WARP_SIZE))


# Reductions over a warp --------------------------------------------------------------------------


@of_threads
def warp_reduce_sum(value: Value) -> ir.Expr:
    """The sum of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, lambda a, b: a + b)


@of_threads
def warp_reduce_max(value: Value) -> ir.Expr:
    """The largest of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, tirx.max)


@of_threads
def warp_reduce_min(value: Value) -> ir.Expr:
    """The smallest of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, tirx.min)


@of_threads
def warp_reduce_bitand(value: Value) -> ir.Expr:
    """The bitwise and of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, tirx.bitwise_and)


@of_threads
def warp_reduce_bitor(value: Value) -> ir.Expr:
    """The bitwise or of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, tirx.bitwise_or)


def _warp_reduced(value: Value, combine: Callable[[Any, Any], Any]) -> ir.Expr:
    """A butterfly: after each step, groups of twice as many threads have the same value."""
    result = T.Bind(as_expr(value))
    distance = WARP_SIZE // 2
    while distance:
        result = T.Bind(combine(result, shfl_xor(result, distance)))
        distance //= 2
    return result
