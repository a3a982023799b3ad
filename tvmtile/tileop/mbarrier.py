"""mbarriers: `T.alloc_barrier`, `T.mbarrier_arrive`, `T.mbarrier_wait_parity` and the like.

An mbarrier counts the threads that arrive at it, and the bytes that asynchronous copies bring. When all
have come that it expects, its phase is over and the next one begins; who waits names the parity of the
phase, 0 for the first. Threads that wait know what those did before that arrived. The compiler takes
that into account: what an mbarrier orders gets no other barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import emit
from tvmtile.frontend.kernel import allocate
from tvmtile.frontend.values import as_expr
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import OperatorEffects, ValueOp, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import (
    CLUSTER_BARRIER_SCOPE,
    MBARRIER_SCOPE,
    is_cluster_mbarrier,
    is_mbarrier,
)
from tvmtile.ir.types import Index, TileOperand
from tvmtile.tileop.cluster import JoinCluster, RemoteArrival, check_rank
from tvmtile.tileop.registry import LoweringContext, lowering, needs, no_code

_MOST_ARRIVALS = (1 << 20) - 1
"""PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"."""


def alloc_barrier(arrive_count: int | Sequence[int]) -> ir.Var:
    """Allocate mbarriers, which are ready when the block begins.

    Parameters
    ----------
    arrive_count : int or sequence of int
        How many threads arrive in a phase; a list makes as many mbarriers, `bars[i]`.

    Returns
    -------
    Var
        A buffer of mbarriers. By itself it names the first one.

    Raises
    ------
    InvalidOperand
        If a count is not a number from 1 to 1048575.
    """
    return _allocated("T.alloc_barrier", arrive_count, MBARRIER_SCOPE)


def alloc_cluster_barrier(arrive_count: int | Sequence[int]) -> ir.Var:
    """Allocate mbarriers at which the other blocks of the cluster may arrive, too.

    All blocks of the cluster come to it: there they wait for each other, and once more where the kernel
    ends, so that no block arrives in memory that is not there yet or any more.

    Parameters
    ----------
    arrive_count : int or sequence of int
        As of `T.alloc_barrier`; threads of any block of the cluster.

    Returns
    -------
    Var
        A buffer of mbarriers.

    Raises
    ------
    InvalidOperand
        If a count is not a number from 1 to 1048575.
    """
    barriers = _allocated("T.alloc_cluster_barrier", arrive_count, CLUSTER_BARRIER_SCOPE)
    emit(JoinCluster())
    return barriers


def _allocated(operator: str, arrive_count: Any, scope: str) -> ir.Var:
    counts = list(arrive_count) if isinstance(arrive_count, list | tuple) else [arrive_count]
    for count in counts:
        if type(count) is not int or not 1 <= count <= _MOST_ARRIVALS:
            raise InvalidOperand(
                f"{operator}: {count!r} is no number of threads that arrive",
                help=f"give a constant from 1 to {_MOST_ARRIVALS}, or a list with one for each barrier",
            )
    if not counts:
        raise InvalidOperand(
            f"{operator}: there is no barrier in the list",
            help="give a count for each barrier",
        )
    barriers = allocate(operator, [len(counts)], "uint64", scope)
    emit(InitMbarriers(barriers, counts))
    return barriers


def mbarrier_arrive(mbarrier: TileOperand, cta_id: Index | None = None) -> None:
    """Arrive at an mbarrier: each thread that comes here counts as one.

    Parameters
    ----------
    mbarrier : buffer or element
        What `T.alloc_barrier` gave, or one of several, `bars[i]`.
    cta_id : int or Expr, optional
        At that of another block of the cluster, by its number there; `mbarrier` is then one of
        `T.alloc_cluster_barrier`.

    Raises
    ------
    InvalidOperand
        If it is no mbarrier, or the cluster has no such block.
    """
    element = as_mbarrier("mbarrier_arrive", mbarrier)
    if cta_id is None:
        emit(Mbarrier(element, tirx.const(1, "int32"), "arrive"))
        return
    if not is_cluster_mbarrier(buffer_of(element)):
        raise InvalidOperand(
            f"T.mbarrier_arrive: {describe(buffer_of(element))} is no barrier of a cluster",
            help="allocate it by T.alloc_cluster_barrier, or leave out cta_id",
        )
    if isinstance(cta_id, int):
        check_rank("mbarrier_arrive", cta_id)
    emit(RemoteArrival(element, tirx.Cast("int32", as_expr(cta_id))))


def mbarrier_wait_parity(mbarrier: TileOperand, parity: Index) -> None:
    """Wait until a phase of an mbarrier is over.

    Parameters
    ----------
    mbarrier : buffer or element
        As of `mbarrier_arrive`.
    parity : int or Expr
        Of the phase: 0 for the first, 1 for the second, 0 for the third. The parity of the phase before
        the first one, 1, is over from the beginning.

    Raises
    ------
    InvalidOperand
        If it is no mbarrier.
    """
    element = as_mbarrier("mbarrier_wait_parity", mbarrier)
    of_cluster = is_cluster_mbarrier(buffer_of(element))
    emit(Mbarrier(element, tirx.Cast("int32", as_expr(parity)), "wait", of_cluster=of_cluster))


def mbarrier_expect_tx(mbarrier: TileOperand, tx: Index) -> None:
    """Let the phase of an mbarrier last until so many more bytes have been copied.

    Parameters
    ----------
    mbarrier : buffer or element
        As of `mbarrier_arrive`.
    tx : int or Expr
        Bytes. Each thread that comes here adds them.

    Raises
    ------
    InvalidOperand
        If it is no mbarrier.
    """
    element = as_mbarrier("mbarrier_expect_tx", mbarrier)
    emit(Mbarrier(element, tirx.Cast("int32", as_expr(tx)), "expect_tx"))


def mbarrier_arrive_expect_tx(mbarrier: TileOperand, tx: Index) -> None:
    """`T.mbarrier_expect_tx` and `T.mbarrier_arrive` in one.

    Parameters
    ----------
    mbarrier : buffer or element
        As of `mbarrier_arrive`.
    tx : int or Expr
        Bytes. Each thread that comes here adds them, and counts as one that has arrived.

    Raises
    ------
    InvalidOperand
        If it is no mbarrier.
    """
    element = as_mbarrier("mbarrier_arrive_expect_tx", mbarrier)
    emit(Mbarrier(element, tirx.Cast("int32", as_expr(tx)), "arrive_expect_tx"))


def barrier_arrive(mbarrier: TileOperand) -> None:
    """The same as `T.mbarrier_arrive`."""
    mbarrier_arrive(mbarrier)


def barrier_wait(mbarrier: TileOperand, parity: Index) -> None:
    """The same as `T.mbarrier_wait_parity`."""
    mbarrier_wait_parity(mbarrier, parity)


def cp_async_barrier_noinc(barrier: TileOperand) -> None:
    """Arrive at an mbarrier when the thread's `cp.async` copies so far have arrived.

    Parameters
    ----------
    barrier : buffer or element
        As of `mbarrier_arrive`. The thread is one of those that it expects.

    Raises
    ------
    InvalidOperand
        If it is no mbarrier.
    """
    element = as_mbarrier("cp_async_barrier_noinc", barrier)
    emit(Mbarrier(element, tirx.const(1, "int32"), "arrive_when_copied"))


def fence_proxy_async() -> None:
    """Let asynchronous copies from shared memory see what the thread has written there.

    A fence stands behind the writes and in front of the barrier that separates them from the copy.
    Where there are no such copies it does nothing.
    """
    emit(ProxyFence())


def as_mbarrier(operator: str, value: Any) -> ir.TensorLoad:
    """One mbarrier: a buffer of them stands for its first one.

    Raises
    ------
    InvalidOperand
        If it is something else.
    """
    is_whole = is_buffer_var(value) and is_mbarrier(value)
    element = tirx.BufferLoad(value, [0]) if is_whole else value
    if not isinstance(element, ir.TensorLoad) or not is_mbarrier(buffer_of(element)):
        named = isinstance(element, ir.TensorLoad | ir.TensorRegion) or is_buffer_var(element)
        what = describe(element) if named else repr(value)
        raise InvalidOperand(
            f"T.{operator}: {what} is no mbarrier",
            help="give what T.alloc_barrier returns, or one of several, `bars[i]`",
        )
    return element


@tile_operator
class InitMbarriers(ValueOp):
    """Make mbarriers ready, once a block."""

    name = "init_mbarriers"
    outputs = ("barriers",)
    role = "mbarriers"
    by = "block"

    barriers: ir.Expr
    counts: Any = ()

    def effects(self) -> OperatorEffects:
        counts = buffer_of(self.barriers), tuple(map(int, self.counts))
        return super().effects()._replace(counts=counts)


@tile_operator
class Mbarrier(ValueOp):
    """An action of a thread at an mbarrier.

    `arrive`; `expect_tx` and `arrive_expect_tx`, where `value` is a number of bytes; `wait`, where it
    is a parity; `arrive_when_copied`, by `cp.async`. Who waits `of_cluster` sees what other blocks did.
    """

    name = "mbarrier"
    outputs = ("barrier",)
    role = "mbarrier"

    barrier: ir.TensorLoad
    value: ir.Expr
    action: str = "arrive"
    of_cluster: bool = False

    def effects(self) -> OperatorEffects:
        element, action = self.barrier, self.action
        return OperatorEffects(
            writes=[element],
            is_atomic=True,
            completes_on=element if action.endswith("expect_tx") else None,
            arrives_at=element if action.startswith("arrive") else None,
            with_copies=action == "arrive_when_copied",
            waits_at=element if action == "wait" else None,
            parity=self.value if action == "wait" else None,
        )


@tile_operator
class EndPhase(ValueOp):
    """Arrive at an mbarrier, one thread for the block: copies that were begun end its phase.

    It writes what AwaitPhase reads: no thread is two phases behind, as no wait would tell them apart.
    """

    name = "end_phase"
    outputs = ("barrier",)
    role = "end of phase"
    by = "block"

    barrier: ir.TensorLoad

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(completes_on=self.barrier)


@tile_operator
class AwaitPhase(ValueOp):
    """Wait until a phase of an mbarrier is over that EndPhase ends."""

    name = "await_phase"
    inputs = ("barrier",)
    role = "wait for phase"

    barrier: ir.TensorLoad
    parity: ir.Expr

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(waits_at=self.barrier, parity=self.parity)


@tile_operator
class ProxyFence(ValueOp):
    """Order what the thread wrote to shared memory before asynchronous copies of it."""

    name = "fence_proxy"
    role = "proxy fence"


# Code ----------------------------------------------------------------------------------------------


_has_mbarriers = needs(
    lambda gpu: gpu.has_bulk_copies,
    "NVIDIA's GPUs from compute capability 9.0 on have mbarriers that count bytes",
)


@lowering(InitMbarriers, target="cuda", variant="mbarrier", fits=_has_mbarriers)
def _(op: InitMbarriers, _: LoweringContext) -> tirx.Stmt:
    """Each, and a fence that lets other threads and asynchronous copies see them, behind a barrier."""
    initialised = [
        ptx("mbarrier.init.shared.b64")(
            T.address_of(tirx.BufferLoad(buffer_of(op.barriers), [index])),
            tirx.const(int(count), "uint32"),
        )
        for index, count in enumerate(op.counts)
    ]
    fence = ptx("fence.mbarrier_init.release.cluster")()
    return seq([tirx.Evaluate(call) for call in (*initialised, fence)])


_INSTRUCTIONS = {
    "arrive": "mbarrier.arrive.shared.b64",
    "expect_tx": "mbarrier.expect_tx.relaxed.cta.shared::cta.b64",
    "arrive_expect_tx": "mbarrier.arrive.expect_tx.shared.b64",
    "arrive_when_copied": "cp.async.mbarrier.arrive.noinc.shared.b64",
}


@lowering(EndPhase, target="cuda", variant="mbarrier", fits=_has_mbarriers)
def _(op: EndPhase, _: LoweringContext) -> tirx.Stmt:
    """One instruction."""
    return tirx.Evaluate(ptx("mbarrier.arrive.shared.b64")(T.address_of(op.barrier)))


@lowering(AwaitPhase, target="cuda", variant="mbarrier", fits=_has_mbarriers)
def _(op: AwaitPhase, _: LoweringContext) -> tirx.Stmt:
    """A loop that tries."""
    return tirx.Evaluate(T.cuda.mbarrier_wait(T.address_of(op.barrier), op.parity))


@lowering(Mbarrier, target="cuda", variant="mbarrier", fits=_has_mbarriers)
def _(op: Mbarrier, _: LoweringContext) -> tirx.Stmt:
    """One instruction; a wait is a loop that tries."""
    address = T.address_of(op.barrier)
    if op.action == "wait":
        wait = T.cuda.mbarrier_wait_acquire_cluster if op.of_cluster else T.cuda.mbarrier_wait
        return tirx.Evaluate(wait(address, op.value))
    bytes_ = [tirx.Cast("uint32", op.value)] if op.action.endswith("expect_tx") else []
    return tirx.Evaluate(ptx(_INSTRUCTIONS[op.action])(address, *bytes_))


# There are no asynchronous copies from shared memory.
lowering(ProxyFence, target=("llvm", "metal", "cuda"), variant="none")(no_code)


@lowering(ProxyFence, target="cuda", variant="fence", priority=10, fits=_has_mbarriers)
def _(_op: ProxyFence, _context: LoweringContext) -> tirx.Stmt:
    """One instruction."""
    return tirx.Evaluate(ptx("fence.proxy.async.shared::cta")())
