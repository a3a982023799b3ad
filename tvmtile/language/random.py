"""Random numbers in a kernel: `T.rng_init`, `T.rng_rand`, `T.rng_rand_float`.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
with cuRAND's counters: the seed is its key, the sequence the upper half of its counter, and four
numbers come of each value of the lower half. A number is a function of seed, sequence and position, the
same on every target, and what a thread keeps is its position.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidValue, NestingError
from tvmtile.frontend.kernel import (
    current_kernel,
    get_block_binding,
    get_thread_binding,
    get_thread_extent,
)
from tvmtile.frontend.math import as_expr
from tvmtile.ir.types import Value

if TYPE_CHECKING:
    from tvmtile.frontend.kernel import Kernel

__all__ = ["rng_init", "rng_rand", "rng_rand_float"]

_PHILOX = "curandStatePhilox4_32_10_t"
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_SEED, _SEQUENCE, _POSITION = range(3)


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
        `curandStatePhilox4_32_10_t`. cuRAND's others are not there.

    Raises
    ------
    InvalidValue
        For another generator.
    """
    if generator != _PHILOX:
        raise InvalidValue(
            f"T.rng_init: the generator {generator!r} is not there", help=f"use {_PHILOX!r}"
        )
    if seq is None:
        seq = get_thread_binding() + get_block_binding() * get_thread_extent()
    state = T.alloc_buffer((3,), "uint64", scope="local")
    for place, value in ((_SEED, seed), (_SEQUENCE, seq), (_POSITION, off)):
        T.buffer_store(state, _word(value), [place])
    counter = T.alloc_buffer((4,), "uint32", scope="local")
    products = T.alloc_buffer((2,), "uint64", scope="local")
    _kernel("rng_init").random_state = (state, counter, products)


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
    state, counter, products = _state("rng_rand")
    position, sequence, seed = (
        tirx.BufferLoad(state, [place]) for place in (_POSITION, _SEQUENCE, _SEED)
    )
    start = (*_halves(position >> tirx.const(2, "uint64")), *_halves(sequence))
    for place, word in enumerate(start):
        T.buffer_store(counter, word, [place])
    _philox(counter, products, _halves(seed))
    lane = tirx.bitwise_and(tirx.Cast("int32", position), 3)
    T.buffer_store(counter, tirx.BufferLoad(counter, [lane]), [0])
    T.buffer_store(state, position + tirx.const(1, "uint64"), [_POSITION])
    return T.Bind(tirx.BufferLoad(counter, [0]))


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
    kernel = current_kernel()
    if kernel is None:
        raise NestingError(
            f"T.{name} stands outside T.Kernel", help="use it inside `with T.Kernel(...)`"
        )
    return kernel


def _state(name: str) -> tuple[ir.Var, ir.Var, ir.Var]:
    state: tuple[ir.Var, ir.Var, ir.Var] | None = _kernel(name).random_state
    if state is None:
        raise NestingError(
            f"T.{name}: the kernel has no T.rng_init", help="call T.rng_init(seed) before"
        )
    return state


def _halves(number: ir.Expr) -> tuple[Any, Any]:
    """The lower and the upper 32 bits."""
    upper = tirx.shift_right(number, tirx.const(32, "uint64"))
    return tirx.Cast("uint32", number), tirx.Cast("uint32", upper)


def _philox(counter: ir.Var, products: ir.Var, key: tuple[Any, Any]) -> None:
    """Replace the counter by its four numbers; stores, as names would be written out where used.

    The rounds are a loop, or a source would grow with each number of an unrolled loop.
    """
    word = [tirx.BufferLoad(counter, [place]) for place in range(4)]
    product = [tirx.BufferLoad(products, [place]) for place in range(2)]
    with T.serial(0, _ROUNDS) as round:
        keys = [
            part + tirx.const(step, "uint32") * tirx.Cast("uint32", round)
            for part, step in zip(key, _KEY_STEPS, strict=True)
        ]
        for place, multiplier in enumerate(_MULTIPLIERS):
            factor = tirx.Cast("uint64", word[2 * place])
            T.buffer_store(products, factor * tirx.const(multiplier, "uint64"), [place])
        (low0, high0), (low1, high1) = map(_halves, product)
        T.buffer_store(counter, high1 ^ word[1] ^ keys[0], [0])
        T.buffer_store(counter, high0 ^ word[3] ^ keys[1], [2])
        T.buffer_store(counter, low1, [1])
        T.buffer_store(counter, low0, [3])
