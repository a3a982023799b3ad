"""Bits of an integer that are set: CUDA's functions by these names."""

from __future__ import annotations

import functools
import operator
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import UnsupportedDtype
from tvmtile.frontend.math import as_expr
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import Index, Value
from tvmtile.language.of_threads import of_threads

__all__ = ["__ffs", "__fns"]


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
