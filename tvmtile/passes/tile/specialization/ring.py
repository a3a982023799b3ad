"""The mbarriers of the tiles that a producer fills and consumers use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.operators import operator_for
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.passes.tile.pipelining import Mbarriers


@dataclass(frozen=True)
class Ring:
    """The buffer copies of some tiles, which are filled and used together."""

    iteration: Any
    """The number of the iteration, of all that the kernel does."""
    units: tuple[int, ...]
    """The statements of the loop that fill the tiles."""
    first: int
    last: int
    """The first and the last statement that uses one of them."""
    in_flight: bool
    """A statement that uses them goes on until the next iteration has issued its own."""
    full: Mbarriers
    empty: Mbarriers
    """The tiles of an iteration have come; the warps that use them need them no more."""

    @property
    def stages(self) -> int:
        """How many copies there are."""
        return self.full.count

    @property
    def index(self) -> ir.Expr:
        """The copy that the iteration works on."""
        return self.full.number(self.iteration)

    def declared(self) -> list[tirx.Stmt]:
        """The mbarriers, ready for use."""
        return [*self.full.declared(), *self.empty.declared()]

    # What a thread does in an iteration ----------------------------------------------------------

    def wait_until_empty(self) -> tirx.Stmt:
        """Wait for the consumers of the iteration that has used the copy before, if there is one."""
        parity = self.empty.parity(self.iteration)
        return _act(self.empty.of(self.iteration), tirx.const(1, "int32") - parity, "wait")

    def wait_until_full(self, iteration: ir.Expr | None = None) -> tirx.Stmt:
        """Wait for the tiles of an iteration, of all that the kernel does, or of this one."""
        number = self.iteration if iteration is None else iteration
        return _act(self.full.of(number), self.full.parity(number), "wait")

    @property
    def arrives_on(self) -> ir.TensorLoad:
        """The mbarrier on which the tiles of the iteration arrive."""
        return self.full.of(self.iteration)

    def fill(
        self,
        by_threads: Sequence[tirx.Stmt],
        copies: Sequence[tirx.Stmt],
        thread: ir.Expr,
        threads: int,
        computed: Sequence[tirx.Stmt] = (),
    ) -> list[tirx.Stmt]:
        """Begin copies that arrive on the mbarrier, and say that there are no more.

        One thread says so where it begins them all. Where all threads copy, each arrives as soon as its
        asynchronous copies have, and a thread of each warp for what the warp has stored. What they
        have `computed` they store while the copies are under way, and each thread orders its stores
        before asynchronous reads, as those of `wgmma` are.

        `thread` is a number among the producer's, which has so many `threads`. A condition may leave
        out any of the copies by threads. Warps without a copy do not wait for an empty tile: nothing
        keeps consumers from getting two phases ahead of them, and a wait by parity would then not end.
        """
        one = tirx.const(1, "int32")
        arrive = _act(self.arrives_on, one, "arrive")
        if not by_threads and not computed:
            wait = self.wait_until_empty()
            if threads > WARP_SIZE:
                wait = tirx.IfThenElse(thread < WARP_SIZE, wait, None)
            return [wait, *copies, tirx.IfThenElse(thread == 0, arrive, None)]
        moved = [*by_threads, _act(self.arrives_on, one, "arrive_when_copied")]
        fence = tirx.Evaluate(operator_for("proxy fence")().to_call())
        return [
            self.wait_until_empty(),
            *(moved if by_threads else ()),
            *copies,
            *((*computed, fence) if computed else ()),
            *_of_warps(thread, arrive),
        ]

    def release(
        self, thread: ir.Expr, iteration: ir.Expr | None = None, condition: ir.Expr | None = None
    ) -> list[tirx.Stmt]:
        """Let the producer have the copy again: a thread of each warp says so.

        `thread` is a number among the consumers'. The copy is that of an iteration, of all that the
        kernel does, or of this one; `condition` says whether there was one. FenceLoads sees to it that
        loads of the threads are over by then.
        """
        copy = self.empty.of(self.iteration if iteration is None else iteration)
        return _of_warps(thread, _act(copy, tirx.const(1, "int32"), "arrive"), condition)


def _of_warps(
    thread: ir.Expr, stmt: tirx.Stmt, condition: ir.Expr | None = None
) -> list[tirx.Stmt]:
    """What the first thread of each warp does for all of them."""
    leads = tirx.floormod(thread, WARP_SIZE) == 0
    if condition is not None:
        leads = tirx.all(condition, leads)
    return [tirx.Evaluate(T.tvm_storage_sync("warp")), tirx.IfThenElse(leads, stmt, None)]


def _act(mbarrier: ir.TensorLoad, value: ir.Expr, action: str) -> tirx.Stmt:
    return tirx.Evaluate(operator_for("mbarrier")(mbarrier, value, action).to_call())
