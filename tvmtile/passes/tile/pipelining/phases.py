"""Copies of a stage that complete on mbarriers (see `mbarriers`).

The copies of an iteration make its phase last until they have come; the thread that begins them
ends it.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile.ir.operators import operator_for, operator_of
from tvmtile.ir.types import Index
from tvmtile.passes.tile.pipelining.mbarriers import Mbarriers


class Phases:
    """The mbarriers of a stage's copies.

    So many iterations may be under way at once; `is_repeated`: the loop may be run several times.

    Attributes
    ----------
    setup : list of Stmt
        What a block does first.
    """

    def __init__(self, count: int, *, is_repeated: bool) -> None:
        self._arrived = Mbarriers.named("arrived", count)
        self._former: Any = None
        self.setup = self._arrived.declared()
        if is_repeated:
            self._former = tirx.decl_buffer((1,), "uint32", name="iterations", scope="local")
            zero = tirx.const(0, "uint32")
            self.setup += [
                tirx.AllocBuffer(self._former),
                tirx.BufferStore(self._former, zero, [0]),
            ]

    def begun(self, copy: Any, iteration: Index) -> tirx.Stmt:
        """A copy of an iteration, begun by one thread."""
        op = operator_of(copy)
        begun = None if op is None else op.begun_on(self._barrier(iteration))
        assert begun is not None, "only such copies complete on mbarriers"
        return tirx.Evaluate(begun.to_call(copy.value.span), copy.span)

    def ended(self, iteration: Index) -> tirx.Stmt:
        """Behind the copies of an iteration, if there are any: nothing else is waited for."""
        end = operator_for("end of phase")(self._barrier(iteration))
        return tirx.Evaluate(end.to_call())

    def awaited(self, iteration: Index) -> tirx.Stmt:
        """Wait for the copies of an iteration."""
        parity = self._arrived.parity(self._position(iteration))
        wait = operator_for("wait for phase")(self._barrier(iteration), parity)
        return tirx.Evaluate(wait.to_call())

    def after(self, iterations: ir.Expr) -> list[tirx.Stmt]:
        """Behind the loop: what is done of another one's iterations."""
        if self._former is None:
            return []
        return [tirx.BufferStore(self._former, self._position(iterations), [0])]

    def _position(self, iteration: Index) -> Any:
        if self._former is None:
            return iteration
        return tirx.BufferLoad(self._former, [0]) + tirx.Cast("uint32", iteration)

    def _barrier(self, iteration: Index) -> ir.TensorLoad:
        return self._arrived.of(self._position(iteration))
