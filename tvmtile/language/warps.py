"""Threads of a block among each other: places in a warp, shuffles, votes, reductions over threads.

A warp is 32 threads that follow each other in the block, `threadIdx.x` counting fastest. Everything
here is made of TVM's shuffles and reductions over threads, so it has a meaning on every target; a CPU
lets the threads exchange values through an array.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder
from tvmtile.errors import InvalidOperand, NestingError, UnsupportedDtype, warn_ignored
from tvmtile.frontend.kernel import get_thread_bindings, get_thread_extents, thread_index
from tvmtile.frontend.math import as_expr
from tvmtile.ir.spans import current_span
from tvmtile.ir.threads import ALL_LANES, WARP_SIZE, WARPGROUP
from tvmtile.ir.types import Index, Value

__all__ = [
    "__ffs",
    "__fns",
    "activemask",
    "all_sync",
    "any_sync",
    "ballot",
    "ballot_sync",
    "get_lane_idx",
    "get_warp_group_idx",
    "get_warp_idx",
    "get_warp_idx_sync",
    "match_all_sync",
    "match_any_sync",
    "shfl_down",
    "shfl_sync",
    "shfl_up",
    "shfl_xor",
    "shuffle_elect",
    "sync_warp",
    "syncthreads_and",
    "syncthreads_count",
    "syncthreads_or",
    "warp_reduce_bitand",
    "warp_reduce_bitor",
    "warp_reduce_max",
    "warp_reduce_min",
    "warp_reduce_sum",
]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _of_threads(function: _Function) -> _Function:
    """A function whose work is statements: an error outside of a program, before they are made."""

    @functools.wraps(function)
    def checked(*args: object, **kwargs: object) -> object:
        _require_program(function.__name__)
        return function(*args, **kwargs)

    return cast(_Function, checked)


def _require_program(name: str) -> None:
    if not IRBuilder.is_in_scope():
        raise NestingError(
            f"T.{name} stands outside T.Kernel",
            help="move it into the body of `with T.Kernel(...) as ...:`",
        )


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


@_of_threads
def sync_warp(mask: Index | None = None) -> None:
    """Wait until all threads of the warp have come here.

    Parameters
    ----------
    mask : int, optional
        Accepted for TileLang's kernels.
    """
    is_full = isinstance(mask, int) and mask & ALL_LANES == ALL_LANES
    warn_ignored("T.sync_warp", "all threads of a warp wait", mask=None if is_full else mask)
    T.evaluate(_located(T.tvm_storage_sync("warp")))


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
    lanes = _lanes(mask)
    if width == WARP_SIZE:
        return _located(shuffle(lanes, as_expr(value), operand, width, WARP_SIZE))
    # Metal shuffles whole warps only: the place in the warp is computed from that in the group.
    lane = get_lane_idx()
    place = tirx.floormod(lane, width)
    other = lane - place + tirx.bitwise_and(source(place), width - 1)  # width is a power of two
    return _located(T.tvm_warp_shuffle(lanes, as_expr(value), other, WARP_SIZE, WARP_SIZE))


def _located(call: ir.Call) -> ir.Call:
    return ir.Call(call.op, call.args, call.attrs, span=current_span(), ret_ty=call.ty)


# Reductions over a warp --------------------------------------------------------------------------


@_of_threads
def warp_reduce_sum(value: Value) -> ir.Expr:
    """The sum of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, lambda a, b: a + b)


@_of_threads
def warp_reduce_max(value: Value) -> ir.Expr:
    """The largest of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, tirx.max)


@_of_threads
def warp_reduce_min(value: Value) -> ir.Expr:
    """The smallest of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, tirx.min)


@_of_threads
def warp_reduce_bitand(value: Value) -> ir.Expr:
    """The bitwise and of the values of a warp's threads, in all of them."""
    return _warp_reduced(value, tirx.bitwise_and)


@_of_threads
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


# Votes -------------------------------------------------------------------------------------------


@_of_threads
def ballot_sync(predicate: Value, mask: Index = ALL_LANES) -> ir.Expr:
    """The lanes of the warp whose predicate holds, as the bits of a `uint64`.

    Parameters
    ----------
    predicate : Expr
        A boolean, or an integer that is not 0 where it holds.
    mask : int or Expr
        The lanes that take part.
    """
    holds = _predicate("ballot_sync", predicate)
    lane = tirx.Cast("uint32", get_lane_idx())
    bit = tirx.shift_left(tirx.const(1, "uint32"), lane)
    bits = warp_reduce_bitor(tirx.Select(holds, bit, tirx.const(0, "uint32")))
    return tirx.Cast("uint64", tirx.bitwise_and(bits, _lanes(mask)))


@_of_threads
def ballot(predicate: Value) -> ir.Expr:
    """The lanes of the warp whose predicate holds, as the bits of a `uint64`."""
    return ballot_sync(predicate)


@_of_threads
def any_sync(predicate: Value, mask: Index = ALL_LANES) -> ir.Expr:
    """1 if the predicate holds in some lane of `mask`, else 0, in all threads of the warp."""
    return tirx.Cast("int32", ballot_sync(predicate, mask) != tirx.const(0, "uint64"))


@_of_threads
def all_sync(predicate: Value, mask: Index = ALL_LANES) -> ir.Expr:
    """1 if the predicate holds in every lane of `mask`, else 0, in all threads of the warp."""
    wanted = tirx.Cast("uint64", _lanes(mask))
    return tirx.Cast("int32", ballot_sync(predicate, mask) == wanted)


@_of_threads
def activemask() -> ir.Expr:
    """The lanes that the warp has threads for, as the bits of a `uint64`.

    Threads that wait elsewhere, in a branch that others have not taken, count too.
    """
    x, y, z = get_thread_extents()
    present = x * y * z - WARP_SIZE * get_warp_idx()
    absent = tirx.Cast("uint32", tirx.max(WARP_SIZE - present, 0))
    return tirx.Cast("uint64", tirx.shift_right(tirx.const(ALL_LANES, "uint32"), absent))


@_of_threads
def match_any_sync(value: Value, mask: Index = ALL_LANES) -> ir.Expr:
    """The lanes of `mask` whose value has the same bits as that of the thread, as a `uint32`.

    Parameters
    ----------
    value : Expr
        What each thread gives.
    mask : int or Expr
        The lanes that take part.
    """
    own = T.Bind(_bits(value))
    peers = T.alloc_buffer((1,), "uint32", scope="local")
    found = tirx.BufferLoad(peers, [0])
    T.buffer_store(peers, tirx.const(0, "uint32"), [0])
    with T.serial(0, WARP_SIZE) as lane:
        bit = tirx.shift_left(tirx.const(1, "uint32"), tirx.Cast("uint32", lane))
        same = shfl_sync(own, lane) == own
        with_lane = tirx.bitwise_or(found, tirx.Select(same, bit, tirx.const(0, "uint32")))
        T.buffer_store(peers, with_lane, [0])
    present = tirx.bitwise_and(tirx.Cast("uint32", activemask()), _lanes(mask))
    return T.Bind(tirx.bitwise_and(found, present))


@_of_threads
def match_all_sync(value: Value, mask: Index = ALL_LANES) -> ir.Expr:
    """`mask` if all its lanes have the same bits, else 0, as a `uint32`; see `match_any_sync`."""
    present = tirx.bitwise_and(tirx.Cast("uint32", activemask()), _lanes(mask))
    agree = match_any_sync(value, mask) == present
    return T.Bind(tirx.Select(agree, _lanes(mask), tirx.const(0, "uint32")))


def _bits(value: Value) -> ir.Expr:
    """The bits of a value: NaN is equal to itself, and 0 differs from -0."""
    expression = as_expr(value)
    dtype = str(expression.ty.dtype)
    if "float" not in dtype:
        return tirx.Cast("int32", expression) if dtype == "bool" else expression
    return tirx.reinterpret(f"uint{expression.ty.dtype.bits}", expression)


# Bits --------------------------------------------------------------------------------------------


def __ffs(value: ir.Expr) -> Any:
    """The place of the lowest bit of an integer that is set, from 1, as an `int32`; 0 where none is."""
    expression = as_expr(value)
    dtype = str(expression.ty.dtype)
    if "int" not in dtype:
        raise UnsupportedDtype(
            f"T.__ffs takes an integer, not {dtype}", help="cast the value first"
        )
    word = "uint64" if expression.ty.dtype.bits == 64 else "uint32"
    bits = tirx.Cast(word, expression)
    one, zero = tirx.const(1, word), tirx.const(0, word)
    below = tirx.bitwise_and(
        tirx.bitwise_not(bits), bits - one
    )  # ones below the lowest bit that is set
    place = tirx.popcount(below) + one
    return tirx.Cast("int32", tirx.Select(bits == zero, zero, place))


@_of_threads
def __fns(mask: ir.Expr, base: Any, offset: Index) -> Any:
    """The place of a bit of a `uint32` that is set, counted from another place; 0xFFFFFFFF without one.

    Parameters
    ----------
    mask : Expr
        The bits.
    base : int or Expr
        The place, from 0, to count from.
    offset : int or Expr
        Which bit that is set: the first from `base` upwards is 1, downwards -1; 0 asks for the bit at
        `base` itself.
    """
    bits = T.Bind(tirx.Cast("uint32", as_expr(mask)))
    start, count = tirx.Cast("int32", as_expr(base)), tirx.Cast("int32", as_expr(offset))
    # Variables and products: of nested conditions TVM's simplifier makes more of them.
    place, left = _variable(-1), _variable(tirx.max(tirx.abs(count), 1))
    direction = _variable(tirx.Select(count < 0, -1, 1))
    steps, found = _variable(tirx.Select(count == 0, 1, WARP_SIZE)), _variable(0)
    with T.serial(0, WARP_SIZE) as step:
        here = start + step * direction[0]
        conditions = (here >= 0, here < WARP_SIZE, step < steps[0])
        shift = tirx.Cast("uint32", tirx.bitwise_and(here, WARP_SIZE - 1))
        bit = tirx.bitwise_and(tirx.shift_right(bits, shift), tirx.const(1, "uint32"))
        is_in_word = functools.reduce(operator.mul, (tirx.Cast("int32", c) for c in conditions))
        T.buffer_store(found, tirx.Cast("int32", bit) * is_in_word, [0])
        T.buffer_store(left, left[0] - found[0], [0])
        is_last = found[0] * tirx.Cast("int32", left[0] == 0)
        T.buffer_store(place, place[0] + is_last * (here - place[0]), [0])
    return T.Bind(tirx.Cast("uint32", place[0]))


def _variable(value: Value) -> ir.Var:
    """An `int32` that changes, of one thread."""
    variable = T.alloc_buffer((1,), "int32", scope="local")
    T.buffer_store(variable, value, [0])
    return variable


def syncthreads_count(predicate: Value) -> ir.Expr:
    """The number of the block's threads whose predicate holds, in all of them; a barrier."""
    return _counted("syncthreads_count", predicate)


def syncthreads_and(predicate: Value) -> ir.Expr:
    """1 if the predicate holds in all threads of the block, else 0; a barrier."""
    count = _counted("syncthreads_and", predicate)
    x, y, z = get_thread_extents()
    return tirx.Cast("int32", count == x * y * z)


def syncthreads_or(predicate: Value) -> ir.Expr:
    """1 if the predicate holds in some thread of the block, else 0; a barrier."""
    return tirx.Cast("int32", _counted("syncthreads_or", predicate) != 0)


def _counted(name: str, predicate: Any) -> Any:
    one = tirx.Cast("int32", _predicate(name, predicate))
    _require_program(name)
    count = T.alloc_buffer((1,), "int32", scope="local")
    reducer = T.comm_reducer(lambda a, b: a + b, [tirx.const(0, "int32")])
    with T.attr(reducer, "reduce_scope", tirx.reinterpret("handle", tirx.const(0, "uint64"))):
        axes = [axis for axis in get_thread_bindings() if isinstance(axis, ir.Var)]
        total = tirx.BufferLoad(count, [0])
        arguments = (tirx.const(1, "uint32"), one, tirx.const(True, "bool"), total, *axes)
        T.evaluate(_located(T.tvm_thread_allreduce(*arguments)))
    return T.Bind(tirx.BufferLoad(count, [0]))


def _predicate(name: str, predicate: Any) -> Any:
    expression = as_expr(predicate)
    dtype = str(expression.ty.dtype)
    if dtype == "bool":
        return expression
    if "int" not in dtype:
        raise UnsupportedDtype(
            f"T.{name} requires an integer or boolean predicate, not {dtype}",
            help="compare the value first",
        )
    return expression != tirx.const(0, dtype)


def _lanes(mask: Any) -> Any:
    is_known = isinstance(mask, int)  # -1 for all lanes is a habit of CUDA
    return tirx.const(mask & ALL_LANES, "uint32") if is_known else tirx.Cast("uint32", mask)
