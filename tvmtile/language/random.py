"""Random numbers in a kernel: `T.rng_init`, `T.rng_rand`, `T.rng_rand_float`.

A number is a function of seed, sequence and position, the same on every target: cuRAND's Philox.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidValue, NestingError
from tvmtile.frontend.kernel import (
    get_block_binding,
    get_thread_binding,
    get_thread_extent,
    kernel_of,
)
from tvmtile.frontend.math import as_expr
from tvmtile.ir.types import Value
from tvmtile.language.philox import Philox

if TYPE_CHECKING:
    from tvmtile.frontend.kernel import Kernel

__all__ = ["rng_init", "rng_rand", "rng_rand_float"]

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
