"""The mbarriers of the tiles that a producer fills and consumers use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.operators import operator_for
from tvmtile.ir.scopes import MBARRIER_SCOPE
from tvmtile.ir.threads import WARP_SIZE

__all__ = ["Ring", "mbarriers"]


@dataclass(frozen=True)
class Ring:
    """The buffer copies of some tiles, which are filled and used together.

    Attributes
    ----------
    stages : int
        How many copies there are.
    consumers : int
        Threads that use them.
    iteration : Expr
        The number of the iteration, of all that the kernel does.
    units : tuple of int
        The statements of the loop that fill the tiles.
    first, last : int
        The first and the last statement that uses one of them.
    in_flight : bool
        A statement that uses them goes on until the next iteration has issued its own.
    full, empty : Var
        The mbarriers, one a copy (see `mbarriers`).
    """

    stages: int
    consumers: int
    iteration: Any
    units: tuple[int, ...]
    first: int
    last: int
    in_flight: bool
    full: ir.Var
    empty: ir.Var

    @property
    def index(self) -> Any:
        """The copy that the iteration works on."""
        return tirx.floormod(self.iteration, self._const(self.stages))

    @property
    def _parity(self) -> Any:
        """Of the phase of its mbarriers that the iteration completes."""
        round_ = tirx.floordiv(self.iteration, self._const(self.stages))
        return tirx.Cast("int32", tirx.floormod(round_, self._const(2)))

    def _const(self, value: int) -> Any:
        return tirx.const(value, str(self.iteration.ty.dtype))

    def declared(self) -> list[tirx.Stmt]:
        """The mbarriers, ready for use."""
        initialise = operator_for("mbarriers")
        counts = {self.full: 1, self.empty: self.consumers // WARP_SIZE}
        return [
            statement
            for barriers, count in counts.items()
            for statement in (
                tirx.AllocBuffer(barriers),
                _evaluated(initialise(barriers, [count] * self.stages)),
            )
        ]

    # What a thread does in an iteration ----------------------------------------------------------

    def wait_until_empty(self) -> tirx.Stmt:
        """Wait for the consumers of the iteration that has used the copy before, if there is one."""
        return _act(self.empty, self.index, tirx.const(1, "int32") - self._parity, "wait")

    def wait_until_full(self) -> tirx.Stmt:
        """Wait for the tiles of the iteration."""
        return _act(self.full, self.index, self._parity, "wait")

    @property
    def arrives_on(self) -> ir.TensorLoad:
        """The mbarrier on which the tiles of the iteration arrive."""
        return tirx.BufferLoad(self.full, [self.index])

    def fill(self, copies: Sequence[tirx.Stmt], thread: Any) -> list[tirx.Stmt]:
        """Begin copies that arrive on the mbarrier; one thread says that there are no more.

        Parameters
        ----------
        copies : sequence of Stmt
            The copies, which a condition may leave out.
        thread : Expr
            The number of the thread among the producer's.
        """
        arrive = _act(self.full, self.index, tirx.const(1, "int32"), "arrive")
        return [self.wait_until_empty(), *copies, tirx.IfThenElse(thread == 0, arrive, None)]

    def release(self, thread: Any, iteration: Any = None, condition: Any = None) -> list[tirx.Stmt]:
        """Let the producer have the copy again: a thread of each warp says so.

        Parameters
        ----------
        thread : Expr
            The number of the thread among the consumers'.
        iteration : Expr, optional
            Whose copy it is, of all that the kernel does; this one's where absent.
        condition : Expr, optional
            Whether there was one.
        """
        ring = self if iteration is None else replace(self, iteration=iteration)
        arrive = _act(self.empty, ring.index, tirx.const(1, "int32"), "arrive")
        leads = tirx.floormod(thread, WARP_SIZE) == 0
        if condition is not None:
            leads = tirx.all(condition, leads)
        together = tirx.Evaluate(T.tvm_storage_sync("warp"))
        return [together, tirx.IfThenElse(leads, arrive, None)]


def _act(barriers: ir.Var, index: Any, value: Any, action: str) -> tirx.Stmt:
    return _evaluated(operator_for("mbarrier")(tirx.BufferLoad(barriers, [index]), value, action))


def mbarriers(name: str, count: int) -> ir.Var:
    """Some mbarriers, which `Ring.declared` makes ready."""
    return tirx.decl_buffer([count], "uint64", name=name, scope=MBARRIER_SCOPE)


def _evaluated(op: Any) -> tirx.Stmt:
    return tirx.Evaluate(op.to_call())
