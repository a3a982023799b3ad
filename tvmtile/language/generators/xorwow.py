"""XORWOW: numbers by shifts, and their steps as polynomials over GF(2)."""

from __future__ import annotations

from functools import cache

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.types import Index
from tvmtile.language.generators.state import array, at, halves, steps_ahead, store, u32


class Xorwow:
    """XORWOW (Marsaglia, "Xorshift RNGs", 2003): 160 bits by xorshift, and a sum added to them.

    Sequences are 2^67 numbers apart, over which the sum comes back to where it was.
    """

    _WORDS, _BITS = 5, 160
    _SUM_STEP = 362437
    _APART = 67
    CHARACTERISTIC = (1 << 160) | 0xF0E0F3C0035000621210861003000060001
    """The characteristic polynomial of a step, the coefficient of x^i in bit i."""

    def __init__(self, seed: ir.Expr, sequence: ir.Expr, offset: ir.Expr) -> None:
        self._state, self._sum = array("uint32", self._WORDS), array("uint32", 1)
        low, high = halves(seed)
        first = T.Bind((low ^ u32(0xAAD26B49)) * u32(1099087573))
        second = T.Bind((high ^ u32(0xF7DCEFDD)) * u32(2591861531))
        words = (
            u32(123456789) + first,
            u32(362436069) ^ first,
            u32(521288629) + second,
            u32(88675123) ^ second,
            u32(5783321) + first,
        )
        for place, word in enumerate(words):
            store(self._state, place, word)
        passed = tirx.Cast("uint32", offset) * u32(self._SUM_STEP)
        store(self._sum, 0, u32(6615241) + first + second + passed)
        self._skip(sequence, offset)

    def next(self) -> ir.Expr:
        """As of `Generator`."""
        self._step()
        store(self._sum, 0, at(self._sum, 0) + u32(self._SUM_STEP))
        return T.Bind(at(self._state, 4) + at(self._sum, 0))

    def _step(self) -> None:
        state = self._state
        mixed = T.Bind(at(state, 0) ^ (at(state, 0) >> u32(2)))
        for place in range(self._WORDS - 1):
            store(state, place, at(state, place + 1))
        last = at(state, 4)
        store(state, 4, last ^ (last << u32(4)) ^ mixed ^ (mixed << u32(1)))

    def _skip(self, sequence: ir.Expr, offset: ir.Expr) -> None:
        """Replace the state by a polynomial of the step, applied to it."""
        jump, power, product = (array("uint32", self._WORDS) for _ in range(3))
        words = range(self._WORDS)
        for place in words:
            store(jump, place, u32(1 if place == 0 else 0))

        def begin(is_sequence: ir.Expr) -> None:
            for place, (far, near) in enumerate(zip(*map(_words, self._powers()), strict=True)):
                store(power, place, tirx.Select(is_sequence, u32(far), u32(near)))

        steps_ahead(
            sequence,
            offset,
            begin,
            lambda: self._multiply(jump, power, product),
            lambda: self._multiply(power, power, product),
        )
        for place in words:
            store(product, place, u32(0))
        with T.serial(0, self._BITS) as degree:
            is_taken = T.Bind(_bit(jump, degree))
            for place in words:
                taken = at(self._state, place) * is_taken
                store(product, place, at(product, place) ^ taken)
            self._step()
        for place in words:
            store(self._state, place, at(product, place))

    def _multiply(self, left: ir.Var, right: ir.Var, product: ir.Var) -> None:
        """`left = left * right` modulo the characteristic polynomial, from left's highest power on."""
        words = range(self._WORDS)
        modulus = _words(self.CHARACTERISTIC - (1 << self._BITS))
        for place in words:
            store(product, place, u32(0))
        with T.serial(0, self._BITS) as count:
            overflows = T.Bind(at(product, self._WORDS - 1) >> u32(31))
            is_added = T.Bind(_bit(left, self._BITS - 1 - count))
            for place in reversed(words):
                shifted = at(product, place) << u32(1)
                if place:
                    shifted = shifted ^ (at(product, place - 1) >> u32(31))
                reduced = shifted ^ (u32(modulus[place]) * overflows)
                store(product, place, reduced ^ (at(right, place) * is_added))
        for place in words:
            store(left, place, at(product, place))

    @staticmethod
    @cache
    def _powers() -> tuple[int, int]:
        """The polynomials of the steps to the next sequence, and to the next number."""
        power = x = 2
        for _ in range(Xorwow._APART):
            power = Xorwow.product(power, power)
        return power, x

    @staticmethod
    def product(left: int, right: int) -> int:
        """The product of two polynomials modulo the characteristic one."""
        result = 0
        for degree in reversed(range(Xorwow._BITS)):
            result <<= 1
            if result >> Xorwow._BITS:
                result ^= Xorwow.CHARACTERISTIC
            if left >> degree & 1:
                result ^= right
        return result


def _words(polynomial: int) -> list[int]:
    return [polynomial >> 32 * place & 0xFFFFFFFF for place in range(5)]


def _bit(words: ir.Var, place: Index) -> ir.Expr:
    """A bit of a number of several words, 0 or 1."""
    shift = tirx.Cast("uint32", tirx.floormod(place, 32))
    return tirx.bitwise_and(at(words, tirx.floordiv(place, 32)) >> shift, u32(1))
