"""MRG32k3a: numbers by two recurrences, and their steps as matrices."""

from __future__ import annotations

from functools import cache

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.types import Index
from tvmtile.language.generators.state import array, at, copy, halves, steps_ahead, store, u32, u64

Matrix = tuple[tuple[int, ...], ...]


class Mrg32k3a:
    """MRG32k3a (L'Ecuyer, "Good parameters ... for combined multiple recursive generators", 1999).

    Two recurrences of three terms, modulo two primes; sequences are 2^76 numbers apart.
    """

    _MODULI = (4294967087, 4294944443)
    _FIRST = 12345
    _APART = 76
    _STEPS: tuple[Matrix, Matrix] = (
        ((0, 1, 0), (0, 0, 1), (_MODULI[0] - 810728, 1403580, 0)),
        ((0, 1, 0), (0, 0, 1), (_MODULI[1] - 1370589, 0, 527612)),
    )
    _TO_WORDS = 1.000000048662
    """What takes a difference, of 1 to the first modulus, to a word; cuRAND multiplies as float64."""

    def __init__(self, seed: ir.Expr, sequence: ir.Expr, offset: ir.Expr) -> None:
        self._state = array("uint64", 6)  # the last three terms of each, oldest first
        self._number = array("uint64", 3)
        low, high = halves(seed)
        is_given = seed != u64(0)
        factors = [
            T.Bind(tirx.Select(is_given, tirx.Cast("uint64", word), u64(1)))
            for word in (low ^ u32(0x55555555), high ^ u32(0xAAAAAAAA))
        ]
        for place in range(6):
            which = place % 2  # the factors take turns through both
            term = factors[which] * u64(self._FIRST)
            store(self._state, place, tirx.truncmod(term, u64(self._MODULI[place // 3])))
        self._skip(sequence, offset)

    def next(self) -> ir.Expr:
        """As of `Generator`."""
        state = self._state
        first, second = map(u64, self._MODULI)
        one = u64(1403580) * at(state, 1) + u64(810728) * (first - at(state, 0))
        two = u64(527612) * at(state, 5) + u64(1370589) * (second - at(state, 3))
        for start, term, modulus in ((0, one, first), (3, two, second)):
            store(self._number, 0, tirx.truncmod(term, modulus))
            for place in (start, start + 1):
                store(state, place, at(state, place + 1))
            store(state, start + 2, at(self._number, 0))
        one, two = at(state, 2), at(state, 5)
        difference = tirx.Select(one > two, one - two, one + first - two)
        return times_factor(difference, self._TO_WORDS, self._number)

    def _skip(self, sequence: ir.Expr, offset: ir.Expr) -> None:
        """Multiply the terms by powers of the matrices of a step."""
        power, product, terms = array("uint64", 18), array("uint64", 18), array("uint64", 6)

        def begin(is_sequence: ir.Expr) -> None:
            far, near = ([n for m in each for row in m for n in row] for each in self._powers())
            for place in range(18):
                value = tirx.Select(is_sequence, u64(far[place]), u64(near[place]))
                store(power, place, value)

        def inner(which: int, row: ir.Expr, vector: ir.Var, start: Index, stride: int) -> ir.Expr:
            modulus = u64(self._MODULI[which])
            total = u64(0)
            for place in range(3):
                factor = at(power, 9 * which + 3 * row + place)
                total += tirx.truncmod(factor * at(vector, start + stride * place), modulus)
            return tirx.truncmod(total, modulus)

        def apply() -> None:
            for which in range(2):
                with T.serial(0, 3) as row:
                    value = inner(which, row, self._state, 3 * which, 1)
                    store(terms, 3 * which + row, value)
            copy(terms, self._state, 6)

        def square() -> None:
            for which in range(2):
                with T.serial(0, 3) as row, T.serial(0, 3) as column:
                    value = inner(which, row, power, 9 * which + column, 3)
                    store(product, 9 * which + 3 * row + column, value)
            copy(product, power, 18)

        steps_ahead(sequence, offset, begin, apply, square)

    @staticmethod
    @cache
    def _powers() -> tuple[tuple[Matrix, ...], tuple[Matrix, Matrix]]:
        """The matrices of the steps to the next sequence, and to the next number."""
        far = list(Mrg32k3a._STEPS)
        for _ in range(Mrg32k3a._APART):
            far = [_squared(m, n) for m, n in zip(far, Mrg32k3a._MODULI, strict=True)]
        return tuple(far), Mrg32k3a._STEPS


def _squared(matrix: Matrix, modulus: int) -> Matrix:
    columns = list(zip(*matrix, strict=True))
    return tuple(
        tuple(sum(a * b for a, b in zip(row, c, strict=True)) % modulus for c in columns)
        for row in matrix
    )


def times_factor(number: ir.Expr, factor: float, scratch: ir.Var) -> ir.Expr:
    """The integer part of a `uint64` below 2^32, times a float64 just above 1, as a GPU computes it.

    In integers, as not every GPU has float64: the product has 52 binary places, and is rounded up to
    an integer where the missing part is at most half of the last place of a float64 of its size.
    `scratch` are three `uint64`, as names would be written out where they are used.
    """
    places = 52
    whole, fraction, ones = (at(scratch, place) for place in range(3))
    store(scratch, 0, number)
    store(scratch, 1, whole * u64(int((factor - 1) * 2**places)))
    store(scratch, 0, whole + (fraction >> u64(places)))
    store(scratch, 1, tirx.bitwise_and(fraction, u64(2**places - 1)))
    store(scratch, 2, whole)
    for shift in (1, 2, 4, 8, 16):
        store(scratch, 2, tirx.bitwise_or(ones, ones >> u64(shift)))
    half_place = (ones + u64(1)) >> u64(2)
    rounds_up = fraction + half_place >= u64(2**places)
    rounded = whole + tirx.Cast("uint64", rounds_up)
    # 2^32 becomes the largest word, as CUDA converts it.
    return T.Bind(tirx.Cast("uint32", tirx.min(rounded, u64(0xFFFFFFFF))))
