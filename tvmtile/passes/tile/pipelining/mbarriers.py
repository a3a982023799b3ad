"""mbarriers of a loop's iterations: iteration `k` makes phase `k // n` of number `k % n`, of `n`.

So who waits for an iteration knows by `k` alone which mbarrier and which phase. Where the loop is run
several times, `k` counts on from one time to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile.ir.operators import operator_for
from tvmtile.ir.scopes import MBARRIER_SCOPE


@dataclass(frozen=True, eq=False)
class Mbarriers:
    """One mbarrier for each iteration that may be under way."""

    buffer: ir.Var
    """The buffer of the mbarriers, one element each."""
    arrivals: int
    """How many threads arrive in a phase."""

    @classmethod
    def named(cls, name: str, count: int, arrivals: int = 1) -> Mbarriers:
        """So many mbarriers."""
        return cls(tirx.decl_buffer((count,), "uint64", name=name, scope=MBARRIER_SCOPE), arrivals)

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.buffer.ty.shape[0])

    def declared(self) -> list[tirx.Stmt]:
        """Their allocation and initialisation."""
        init = operator_for("mbarriers")(self.buffer, [self.arrivals] * self.count)
        return [tirx.AllocBuffer(self.buffer), tirx.Evaluate(init.to_call())]

    def number(self, iteration: ir.Expr) -> ir.Expr:
        """Which of them an iteration has."""
        return tirx.floormod(iteration, _like(iteration, self.count))

    def of(self, iteration: ir.Expr) -> ir.TensorLoad:
        """The mbarrier that an iteration uses, as an element of the buffer."""
        number = self.number(iteration)
        is_int32 = str(number.ty.dtype) == "int32"
        return tirx.BufferLoad(self.buffer, [number if is_int32 else tirx.Cast("int32", number)])

    def parity(self, iteration: ir.Expr) -> ir.Expr:
        """The parity, 0 or 1, of the phase that ends with an iteration: what a thread waits for."""
        phase = tirx.floordiv(iteration, _like(iteration, self.count))
        return tirx.Cast("int32", tirx.floormod(phase, _like(iteration, 2)))


def _like(iteration: ir.Expr, value: int) -> ir.Expr:
    return tirx.const(value, str(iteration.ty.dtype))
