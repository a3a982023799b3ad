"""The generators of `T.rng_init` as statements of a kernel: cuRAND's numbers, bit for bit.

Each thread keeps the state of one sequence. XORWOW and MRG32k3a are linear: n steps are the n-th power
of one, by which sequences are set apart and numbers left out. Powers come by repeated squaring: of
two matrices, and of a polynomial over GF(2) modulo the characteristic one of a step (Haramoto et al.,
"Efficient jump ahead for F2-linear random number generators", 2008).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tvm import ir

from tvmtile.language.generators.mrg32k3a import Mrg32k3a
from tvmtile.language.generators.philox import Philox
from tvmtile.language.generators.xorwow import Xorwow


class Generator(Protocol):
    """The state of a thread's sequence."""

    def next(self) -> ir.Expr:
        """Write down a step; the number that it gives, a `uint32`."""
        ...


GENERATORS: dict[str, Callable[[ir.Expr, ir.Expr, ir.Expr], Generator]] = {
    "curandStatePhilox4_32_10_t": Philox,
    "curandStateXORWOW_t": Xorwow,
    "curandStateMRG32k3a_t": Mrg32k3a,
}
"""By the names of cuRAND's states: what takes seed, sequence and numbers to leave out, as `uint64`."""
