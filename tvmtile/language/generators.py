"""The generators of `T.rng_init` as statements of a kernel: cuRAND's numbers, bit for bit.

Each thread keeps the state of one sequence. XORWOW and MRG32k3a are linear: n steps are the n-th power
of one, by which sequences are set apart and numbers left out. Powers come by repeated squaring: of
two matrices, and of a polynomial over GF(2) modulo the characteristic one of a step (Haramoto et al.,
"Efficient jump ahead for F2-linear random number generators", 2008).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.types import Index

__all__ = ["GENERATORS", "Generator", "Mrg32k3a", "Philox", "Xorwow", "times_factor"]


class Generator(Protocol):
    """The state of a thread's sequence."""

    def next(self) -> ir.Expr:
        """Write down a step; the number that it gives, a `uint32`."""
        ...


def _array(dtype: str, size: int) -> ir.Var:
    """An array of each thread's own."""
    return T.alloc_buffer((size,), dtype, scope="local")


def _at(array: ir.Var, place: Index) -> ir.Expr:
    return tirx.BufferLoad(array, [place])


def _store(array: ir.Var, place: Index, value: ir.Expr) -> None:
    T.buffer_store(array, value, [place])


def _u32(value: int) -> ir.Expr:
    return tirx.const(value, "uint32")


def _u64(value: int) -> ir.Expr:
    return tirx.const(value, "uint64")


def _halves(number: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The lower and the upper 32 bits."""
    upper = tirx.shift_right(number, _u64(32))
    return tirx.Cast("uint32", number), tirx.Cast("uint32", upper)


def _steps_ahead(
    sequence: ir.Expr, offset: ir.Expr, begin: Callable[[ir.Expr], None], apply: Callable[[], None],
    square: Callable[[], None],
) -> None:  # fmt: skip
    """Go `offset` numbers ahead, then to another sequence, both by the bits of how many.

    `begin` takes whether it is the sequence's turn and sets the step of one; `apply` goes on by the
    step; `square` doubles it.
    """
    left = _array("uint64", 1)
    with T.serial(0, 2) as turn:
        is_sequence = tirx.EQ(turn, 1)
        begin(is_sequence)
        _store(left, 0, tirx.Select(is_sequence, sequence, offset))
        with T.While(_at(left, 0) != _u64(0)):
            with T.If(tirx.bitwise_and(_at(left, 0), _u64(1)) == _u64(1)), T.Then():
                apply()
            square()
            _store(left, 0, tirx.shift_right(_at(left, 0), _u64(1)))


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
        """As of `Generator`."""
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
        self._state, self._sum = _array("uint32", self._WORDS), _array("uint32", 1)
        low, high = _halves(seed)
        first = T.Bind((low ^ _u32(0xAAD26B49)) * _u32(1099087573))
        second = T.Bind((high ^ _u32(0xF7DCEFDD)) * _u32(2591861531))
        words = (
            _u32(123456789) + first,
            _u32(362436069) ^ first,
            _u32(521288629) + second,
            _u32(88675123) ^ second,
            _u32(5783321) + first,
        )
        for place, word in enumerate(words):
            _store(self._state, place, word)
        passed = tirx.Cast("uint32", offset) * _u32(self._SUM_STEP)
        _store(self._sum, 0, _u32(6615241) + first + second + passed)
        self._skip(sequence, offset)

    def next(self) -> ir.Expr:
        """As of `Generator`."""
        self._step()
        _store(self._sum, 0, _at(self._sum, 0) + _u32(self._SUM_STEP))
        return T.Bind(_at(self._state, 4) + _at(self._sum, 0))

    def _step(self) -> None:
        state = self._state
        mixed = T.Bind(_at(state, 0) ^ (_at(state, 0) >> _u32(2)))
        for place in range(self._WORDS - 1):
            _store(state, place, _at(state, place + 1))
        last = _at(state, 4)
        _store(state, 4, last ^ (last << _u32(4)) ^ mixed ^ (mixed << _u32(1)))

    def _skip(self, sequence: ir.Expr, offset: ir.Expr) -> None:
        """Replace the state by a polynomial of the step, applied to it."""
        jump, power, product = (_array("uint32", self._WORDS) for _ in range(3))
        words = range(self._WORDS)
        for place in words:
            _store(jump, place, _u32(1 if place == 0 else 0))

        def begin(is_sequence: ir.Expr) -> None:
            for place, (far, near) in enumerate(zip(*map(_words, self._powers()), strict=True)):
                _store(power, place, tirx.Select(is_sequence, _u32(far), _u32(near)))

        _steps_ahead(
            sequence,
            offset,
            begin,
            lambda: self._multiply(jump, power, product),
            lambda: self._multiply(power, power, product),
        )
        for place in words:
            _store(product, place, _u32(0))
        with T.serial(0, self._BITS) as degree:
            is_taken = T.Bind(_bit(jump, degree))
            for place in words:
                taken = _at(self._state, place) * is_taken
                _store(product, place, _at(product, place) ^ taken)
            self._step()
        for place in words:
            _store(self._state, place, _at(product, place))

    def _multiply(self, left: ir.Var, right: ir.Var, product: ir.Var) -> None:
        """`left = left * right` modulo the characteristic polynomial, from left's highest power on."""
        words = range(self._WORDS)
        modulus = _words(self.CHARACTERISTIC - (1 << self._BITS))
        for place in words:
            _store(product, place, _u32(0))
        with T.serial(0, self._BITS) as count:
            overflows = T.Bind(_at(product, self._WORDS - 1) >> _u32(31))
            is_added = T.Bind(_bit(left, self._BITS - 1 - count))
            for place in reversed(words):
                shifted = _at(product, place) << _u32(1)
                if place:
                    shifted = shifted ^ (_at(product, place - 1) >> _u32(31))
                reduced = shifted ^ (_u32(modulus[place]) * overflows)
                _store(product, place, reduced ^ (_at(right, place) * is_added))
        for place in words:
            _store(left, place, _at(product, place))

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
    return tirx.bitwise_and(_at(words, tirx.floordiv(place, 32)) >> shift, _u32(1))


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
        self._state = _array("uint64", 6)  # the last three terms of each, oldest first
        self._number = _array("uint64", 3)
        low, high = _halves(seed)
        is_given = seed != _u64(0)
        factors = [
            T.Bind(tirx.Select(is_given, tirx.Cast("uint64", word), _u64(1)))
            for word in (low ^ _u32(0x55555555), high ^ _u32(0xAAAAAAAA))
        ]
        for place in range(6):
            which = place % 2  # the factors take turns through both
            term = factors[which] * _u64(self._FIRST)
            _store(self._state, place, tirx.truncmod(term, _u64(self._MODULI[place // 3])))
        self._skip(sequence, offset)

    def next(self) -> ir.Expr:
        """As of `Generator`."""
        state = self._state
        first, second = map(_u64, self._MODULI)
        one = _u64(1403580) * _at(state, 1) + _u64(810728) * (first - _at(state, 0))
        two = _u64(527612) * _at(state, 5) + _u64(1370589) * (second - _at(state, 3))
        for start, term, modulus in ((0, one, first), (3, two, second)):
            _store(self._number, 0, tirx.truncmod(term, modulus))
            for place in (start, start + 1):
                _store(state, place, _at(state, place + 1))
            _store(state, start + 2, _at(self._number, 0))
        one, two = _at(state, 2), _at(state, 5)
        difference = tirx.Select(one > two, one - two, one + first - two)
        return times_factor(difference, self._TO_WORDS, self._number)

    def _skip(self, sequence: ir.Expr, offset: ir.Expr) -> None:
        """Multiply the terms by powers of the matrices of a step."""
        power, product, terms = _array("uint64", 18), _array("uint64", 18), _array("uint64", 6)

        def begin(is_sequence: ir.Expr) -> None:
            far, near = ([n for m in each for row in m for n in row] for each in self._powers())
            for place in range(18):
                value = tirx.Select(is_sequence, _u64(far[place]), _u64(near[place]))
                _store(power, place, value)

        def inner(which: int, row: ir.Expr, vector: ir.Var, start: Index, stride: int) -> ir.Expr:
            modulus = _u64(self._MODULI[which])
            total = _u64(0)
            for place in range(3):
                factor = _at(power, 9 * which + 3 * row + place)
                total += tirx.truncmod(factor * _at(vector, start + stride * place), modulus)
            return tirx.truncmod(total, modulus)

        def apply() -> None:
            for which in range(2):
                with T.serial(0, 3) as row:
                    value = inner(which, row, self._state, 3 * which, 1)
                    _store(terms, 3 * which + row, value)
            _copy(terms, self._state, 6)

        def square() -> None:
            for which in range(2):
                with T.serial(0, 3) as row, T.serial(0, 3) as column:
                    value = inner(which, row, power, 9 * which + column, 3)
                    _store(product, 9 * which + 3 * row + column, value)
            _copy(product, power, 18)

        _steps_ahead(sequence, offset, begin, apply, square)

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


def _copy(source: ir.Var, target: ir.Var, size: int) -> None:
    with T.serial(0, size) as place:
        _store(target, place, _at(source, place))


def times_factor(number: ir.Expr, factor: float, scratch: ir.Var) -> ir.Expr:
    """The integer part of a `uint64` below 2^32, times a float64 just above 1, as a GPU computes it.

    In integers, as not every GPU has float64: the product has 52 binary places, and is rounded up to
    an integer where the missing part is at most half of the last place of a float64 of its size.
    `scratch` are three `uint64`, as names would be written out where they are used.
    """
    places = 52
    whole, fraction, ones = (_at(scratch, place) for place in range(3))
    _store(scratch, 0, number)
    _store(scratch, 1, whole * _u64(int((factor - 1) * 2**places)))
    _store(scratch, 0, whole + (fraction >> _u64(places)))
    _store(scratch, 1, tirx.bitwise_and(fraction, _u64(2**places - 1)))
    _store(scratch, 2, whole)
    for shift in (1, 2, 4, 8, 16):
        _store(scratch, 2, tirx.bitwise_or(ones, ones >> _u64(shift)))
    half_place = (ones + _u64(1)) >> _u64(2)
    rounds_up = fraction + half_place >= _u64(2**places)
    rounded = whole + tirx.Cast("uint64", rounds_up)
    # 2^32 becomes the largest word, as CUDA converts it.
    return T.Bind(tirx.Cast("uint32", tirx.min(rounded, _u64(0xFFFFFFFF))))


GENERATORS: dict[str, Callable[[ir.Expr, ir.Expr, ir.Expr], Generator]] = {
    "curandStatePhilox4_32_10_t": Philox,
    "curandStateXORWOW_t": Xorwow,
    "curandStateMRG32k3a_t": Mrg32k3a,
}
"""By the names of cuRAND's states: what takes seed, sequence and numbers to leave out, as `uint64`."""
