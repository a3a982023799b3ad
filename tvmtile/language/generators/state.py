"""Numbers and arrays of a thread's own, by which generators are written down."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.types import Index


def array(dtype: str, size: int) -> ir.Var:
    """An array of each thread's own."""
    return T.alloc_buffer((size,), dtype, scope="local")


def at(array: ir.Var, place: Index) -> ir.Expr:
    """An element of an array."""
    return tirx.BufferLoad(array, [place])


def store(array: ir.Var, place: Index, value: ir.Expr) -> None:
    """Write an element of an array down."""
    T.buffer_store(array, value, [place])


def u32(value: int) -> ir.Expr:
    """A constant of 32 bits."""
    return tirx.const(value, "uint32")


def u64(value: int) -> ir.Expr:
    """A constant of 64 bits."""
    return tirx.const(value, "uint64")


def halves(number: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The lower and the upper 32 bits."""
    upper = tirx.shift_right(number, u64(32))
    return tirx.Cast("uint32", number), tirx.Cast("uint32", upper)


def steps_ahead(
    sequence: ir.Expr, offset: ir.Expr, begin: Callable[[ir.Expr], None], apply: Callable[[], None],
    square: Callable[[], None],
) -> None:  # fmt: skip
    """Go `offset` numbers ahead, then to another sequence, both by the bits of how many.

    `begin` takes whether it is the sequence's turn and sets the step of one; `apply` goes on by the
    step; `square` doubles it.
    """
    left = array("uint64", 1)
    with T.serial(0, 2) as turn:
        is_sequence = tirx.EQ(turn, 1)
        begin(is_sequence)
        store(left, 0, tirx.Select(is_sequence, sequence, offset))
        with T.While(at(left, 0) != u64(0)):
            with T.If(tirx.bitwise_and(at(left, 0), u64(1)) == u64(1)), T.Then():
                apply()
            square()
            store(left, 0, tirx.shift_right(at(left, 0), u64(1)))


def copy(source: ir.Var, target: ir.Var, size: int) -> None:
    """Copy the first elements of an array to another."""
    with T.serial(0, size) as place:
        store(target, place, at(source, place))
