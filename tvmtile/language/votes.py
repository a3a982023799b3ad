"""Votes of the threads of a warp, or of a block, and bits of a mask: CUDA's functions."""

from __future__ import annotations

import functools
import operator
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import UnsupportedDtype
from tvmtile.frontend.emit import require_program
from tvmtile.frontend.values import as_expr
from tvmtile.ir.threads import ALL_LANES, WARP_SIZE
from tvmtile.ir.types import Index, Value
from tvmtile.language.launches import get_thread_bindings, get_thread_extents
from tvmtile.language.warps import (
    get_lane_idx,
    get_warp_idx,
    lanes_of,
    located,
    of_threads,
    shfl_sync,
    warp_reduce_bitor,
)

__all__ = [
    "__ffs",
    "__fns",
    "activemask",
    "all_sync",
    "any_sync",
    "ballot",
    "ballot_sync",
    "match_all_sync",
    "match_any_sync",
    "syncthreads_and",
    "syncthreads_count",
    "syncthreads_or",
]


@of_threads
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
    return tirx.Cast("uint64", tirx.bitwise_and(bits, lanes_of(mask)))


@of_threads
def ballot(predicate: Value) -> ir.Expr:
    """The lanes of the warp whose predicate holds, as the bits of a `uint64`."""
    return ballot_sync(predicate)


@of_threads
def any_sync(predicate: Value, mask: Index = ALL_LANES) -> ir.Expr:
    """1 if the predicate holds in some lane of `mask`, else 0, in all threads of the warp."""
    return tirx.Cast("int32", ballot_sync(predicate, mask) != tirx.const(0, "uint64"))


@of_threads
def all_sync(predicate: Value, mask: Index = ALL_LANES) -> ir.Expr:
    """1 if the predicate holds in every lane of `mask`, else 0, in all threads of the warp."""
    wanted = tirx.Cast("uint64", lanes_of(mask))
    return tirx.Cast("int32", ballot_sync(predicate, mask) == wanted)


@of_threads
def activemask() -> ir.Expr:
    """The lanes of the warp that come to this statement together, as the bits of a `uint64`.

    In a branch they are those that took it. What a GPU lets come together is its own choice, as with
    CUDA's `__activemask`: a mask that other lanes rely on is voted for before the branch, by `ballot`.
    """
    return T.Bind(tirx.Cast("uint64", located(T.tvm_warp_activemask())))


def _lanes_there() -> ir.Expr:
    """The lanes that the warp has threads for, as the bits of a `uint32`."""
    x, y, z = get_thread_extents()
    present = x * y * z - WARP_SIZE * get_warp_idx()
    absent = tirx.Cast("uint32", tirx.max(WARP_SIZE - present, 0))
    return tirx.shift_right(tirx.const(ALL_LANES, "uint32"), absent)


@of_threads
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
    present = tirx.bitwise_and(_lanes_there(), lanes_of(mask))
    return T.Bind(tirx.bitwise_and(found, present))


@of_threads
def match_all_sync(value: Value, mask: Index = ALL_LANES) -> ir.Expr:
    """`mask` if all its lanes have the same bits, else 0, as a `uint32`; see `match_any_sync`."""
    present = tirx.bitwise_and(_lanes_there(), lanes_of(mask))
    agree = match_any_sync(value, mask) == present
    return T.Bind(tirx.Select(agree, lanes_of(mask), tirx.const(0, "uint32")))


def _bits(value: Value) -> ir.Expr:
    """The bits of a value: NaN is equal to itself, and 0 differs from -0."""
    expression = as_expr(value)
    dtype = str(expression.ty.dtype)
    if "float" not in dtype:
        return tirx.Cast("int32", expression) if dtype == "bool" else expression
    return tirx.reinterpret(f"uint{expression.ty.dtype.bits}", expression)


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
    require_program(name)
    count = T.alloc_buffer((1,), "int32", scope="local")
    reducer = T.comm_reducer(lambda a, b: a + b, [tirx.const(0, "int32")])
    with T.attr(reducer, "reduce_scope", tirx.reinterpret("handle", tirx.const(0, "uint64"))):
        axes = [axis for axis in get_thread_bindings() if isinstance(axis, ir.Var)]
        total = tirx.BufferLoad(count, [0])
        arguments = (tirx.const(1, "uint32"), one, tirx.const(True, "bool"), total, *axes)
        T.evaluate(located(T.tvm_thread_allreduce(*arguments)))
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


@of_threads
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
