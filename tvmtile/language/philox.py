"""Philox4x32-10, as statements of a kernel: cuRAND's numbers, bit for bit."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.types import Index


class Philox:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

    With cuRAND's counters: the seed is its key, the sequence the upper half of its counter, and four
    numbers come of each value of the lower half. What a thread keeps is its position.
    """

    _ROUNDS = 10
    _MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
    _KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
    _SEED, _SEQUENCE, _POSITION = range(3)

    def __init__(self, seed: ir.Expr, sequence: ir.Expr, offset: ir.Expr) -> None:
        self._state = _array("uint64", 3)
        for place, value in enumerate((seed, sequence, offset)):
            _store(self._state, place, value)
        self._counter = _array("uint32", 4)
        self._products = _array("uint64", 2)

    def next(self) -> ir.Expr:
        """Write down a step; the number that it gives, a `uint32`."""
        state, counter = self._state, self._counter
        position = _at(state, self._POSITION)
        start = (*_halves(position >> _u64(2)), *_halves(_at(state, self._SEQUENCE)))
        for place, word in enumerate(start):
            _store(counter, place, word)
        self._rounds(_halves(_at(state, self._SEED)))
        lane = tirx.bitwise_and(tirx.Cast("int32", position), 3)
        _store(counter, 0, _at(counter, lane))
        _store(state, self._POSITION, position + _u64(1))
        return T.Bind(_at(counter, 0))

    def _rounds(self, key: tuple[ir.Expr, ir.Expr]) -> None:
        """Replace the counter by its four numbers; stores, as names would be written out where used.

        The rounds are a loop, or a source would grow with each number of an unrolled loop.
        """
        counter, products = self._counter, self._products
        word = [_at(counter, place) for place in range(4)]
        product = [_at(products, place) for place in range(2)]
        with T.serial(0, self._ROUNDS) as round:
            keys = [
                part + _u32(step) * tirx.Cast("uint32", round)
                for part, step in zip(key, self._KEY_STEPS, strict=True)
            ]
            for place, multiplier in enumerate(self._MULTIPLIERS):
                factor = tirx.Cast("uint64", word[2 * place])
                _store(products, place, factor * _u64(multiplier))
            (low0, high0), (low1, high1) = map(_halves, product)
            _store(counter, 0, high1 ^ word[1] ^ keys[0])
            _store(counter, 2, high0 ^ word[3] ^ keys[1])
            _store(counter, 1, low1)
            _store(counter, 3, low0)


def _array(dtype: str, size: int) -> ir.Var:
    """An array of each thread's own."""
    return T.alloc_buffer((size,), dtype, scope="local")


def _at(array: ir.Var, place: Index) -> ir.Expr:
    """An element of an array."""
    return tirx.BufferLoad(array, [place])


def _store(array: ir.Var, place: Index, value: ir.Expr) -> None:
    """Write an element of an array down."""
    T.buffer_store(array, value, [place])


def _u32(value: int) -> ir.Expr:
    """A constant of 32 bits."""
    return tirx.const(value, "uint32")


def _u64(value: int) -> ir.Expr:
    """A constant of 64 bits."""
    return tirx.const(value, "uint64")


def _halves(number: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The lower and the upper 32 bits."""
    upper = tirx.shift_right(number, _u64(32))
    return tirx.Cast("uint32", number), tirx.Cast("uint32", upper)
