"""Random numbers in a kernel: `T.rng_init`, `T.rng_rand`, `T.rng_rand_float`.

A number is a function of seed, sequence and position, the same on every target: cuRAND's Philox.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidValue, NestingError
from tvmtile.frontend.kernel import kernel_of
from tvmtile.frontend.values import as_expr
from tvmtile.ir.types import Index, Value
from tvmtile.language.launches import get_block_binding, get_thread_binding, get_thread_extent

if TYPE_CHECKING:
    from tvmtile.frontend.kernel import Kernel

__all__ = ["rng_init", "rng_rand", "rng_rand_float"]


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


_PHILOX = "curandStatePhilox4_32_10_t"


def rng_init(
    seed: Value, seq: Value | None = None, off: Value = 0, generator: str = _PHILOX
) -> None:
    """Begin a sequence of random numbers in each thread.

    Parameters
    ----------
    seed : int or Expr
        Which sequences there are.
    seq : int or Expr, optional
        Which of them; where absent, that of the thread: `threadIdx.x + blockIdx.x * blockDim.x`.
    off : int or Expr
        How many of its numbers to leave out.
    generator : str
        cuRAND's name of the generator: `curandStatePhilox4_32_10_t`.

    Raises
    ------
    InvalidValue
        For another generator.
    """
    if generator != _PHILOX:
        raise InvalidValue(
            f"T.rng_init: the generator {generator!r} is not there",
            help=f"leave it out: the numbers are those of cuRAND's {_PHILOX!r} on every target",
        )
    if seq is None:
        seq = get_thread_binding() + get_block_binding() * get_thread_extent()
    _kernel("rng_init").random_state = Philox(_word(seed), _word(seq), _word(off))


def _word(value: Any) -> ir.Expr:
    if isinstance(value, int):
        return tirx.const(value % 2**64, "uint64")
    return tirx.Cast("uint64", as_expr(value))


def rng_rand() -> ir.Expr:
    """The next number of the thread's sequence, a `uint32` of which every value is as likely.

    In `T.Parallel` the iterations that a thread does take its numbers one after the other. Which thread
    does an iteration is the compiler's choice, so that a CPU refuses it where the sequence depends on
    the thread.

    Raises
    ------
    NestingError
        Before `T.rng_init`.
    """
    return _state("rng_rand").next()


def rng_rand_float(bit: int = 32, dist: str = "uniform") -> ir.Expr:
    """A random float, of the next numbers of the thread's sequence.

    Parameters
    ----------
    bit : {32, 64}
        Of float32 or float64.
    dist : {"uniform", "normal"}
        Uniform in (0, 1], of one number; normal with mean 0 and deviation 1, of two.

    Raises
    ------
    InvalidValue
        For another width or distribution.
    """
    if bit not in (32, 64) or dist not in ("uniform", "normal"):
        raise InvalidValue(
            f"T.rng_rand_float: bit={bit!r}, dist={dist!r}",
            help='bit is 32 or 64, dist is "uniform" or "normal"',
        )
    kind = f"float{bit}"
    if dist == "uniform":
        return _uniform(kind)
    # Box and Muller: a radius and an angle of two uniform numbers.
    radius = tirx.sqrt(tirx.const(-2.0, kind) * tirx.log(_uniform(kind)))
    return T.Bind(radius * tirx.cos(tirx.const(2 * math.pi, kind) * _uniform(kind)))


def _uniform(kind: str) -> ir.Expr:
    step = tirx.const(2.0**-32, kind)
    return T.Bind(tirx.Cast(kind, rng_rand()) * step + step / tirx.const(2.0, kind))


def _kernel(name: str) -> Kernel:
    return kernel_of(f"T.{name}", "use it inside `with T.Kernel(...)`")


def _state(name: str) -> Philox:
    state: Philox | None = _kernel(name).random_state
    if state is None:
        raise NestingError(
            f"T.{name}: the kernel has no T.rng_init", help="call T.rng_init(seed) before"
        )
    return state
