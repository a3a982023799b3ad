"""`T.device_assert`, `T.assume`, barriers by hand, and `T.thread_return`."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidValue, NestingError
from tvmtile.frontend.emit import require_program
from tvmtile.frontend.kernel import current_kernel, kernel_of
from tvmtile.frontend.tracer import write_assertion
from tvmtile.frontend.values import as_condition
from tvmtile.ir.annotations import ARRIVE_COUNT, ARRIVES_ONLY, BARRIER_ID, CLUSTER_STEP
from tvmtile.ir.conditions import assume as assumption
from tvmtile.ir.spans import current_span
from tvmtile.ir.types import Index, Value

__all__ = [
    "assume",
    "cluster_arrive",
    "cluster_arrive_relaxed",
    "cluster_sync",
    "cluster_wait",
    "device_assert",
    "named_barrier_arrive",
    "sync_grid",
    "sync_threads",
    "thread_return",
]


def device_assert(condition: Value, msg: str = "", no_stack_info: bool = False) -> None:
    """Stop with an error when `condition` is false at run time.

    Parameters
    ----------
    condition : Expr or bool
        What must hold.
    msg : str
        Part of the error message.
    no_stack_info : bool
        Accepted for TileLang's kernels.
    """
    del no_stack_info
    require_program("device_assert")
    test = as_condition(condition)
    if not isinstance(test, ir.Expr):
        test = tirx.const(bool(test), "bool")
    write_assertion(test, msg or "device_assert failed")


def assume(condition: Value) -> None:
    """Let the compiler take a condition for granted from here on, in the body that it stands in.

    Parameters
    ----------
    condition : Expr or bool
        What holds, as `n % 8 == 0` of a dynamic extent: rows of a tensor of (1024, n) elements of
        float16 then begin at multiples of 16 bytes, which tensor maps and wide copies need.

    Notes
    -----
    What the host can decide, of extents, strides and numbers that the kernel is called with, is checked
    at each call, with an error that names the condition and its line. What only the kernel knows, as
    the index of a loop or what is loaded, is a promise: nothing checks it.

    Raises
    ------
    NestingError
        Outside of a program.
    InvalidValue
        If it is known to be false.
    """
    require_program("assume")
    test = as_condition(condition)
    if isinstance(test, ir.Expr):
        T.evaluate(assumption(test, current_span()).value)
    elif not test:
        raise InvalidValue(
            "T.assume: the condition is false", help="assume what holds of each call of the kernel"
        )


def sync_threads(barrier_id: Index | None = None, arrive_count: Index | None = None) -> None:
    """Wait until all threads of the block, or some of them, have come here.

    Parameters
    ----------
    barrier_id : int or Expr, optional
        Which of a GPU's barriers to use, for barriers that are waited for at the same time.
    arrive_count : int or Expr, optional
        How many threads come, whole warps of them, where not all do. Those of a branch that lets in a
        range of warps wait for each other where it is absent; groups of threads that run at the same
        time come to one barrier by its number and the count of them all.

    Notes
    -----
    Tile operators and `T.Parallel` need no barrier of the user's: the compiler puts in those that
    are needed. This is for code written by thread index, and for groups of threads that run at the
    same time. A CPU, which runs these one after the other, can't let one wait for another.

    Raises
    ------
    NestingError
        If it stands outside `T.Kernel` or in `T.Parallel`.
    """
    given = {BARRIER_ID: barrier_id, ARRIVE_COUNT: arrive_count}
    attrs = {key: value for key, value in given.items() if value is not None}
    _barrier("sync_threads", "shared", attrs)


def named_barrier_arrive(barrier_id: Index, thread_count: Index) -> None:
    """Arrive at a barrier without waiting: `T.sync_threads(barrier_id, thread_count)` waits for it.

    Parameters
    ----------
    barrier_id : int or Expr
        Which of an NVIDIA GPU's barriers.
    thread_count : int or Expr
        How many threads come, those that wait and those that only arrive.

    Raises
    ------
    NestingError
        If it stands outside `T.Kernel` or in `T.Parallel`; when the kernel is compiled, on other
        targets.
    """
    attrs = {BARRIER_ID: barrier_id, ARRIVE_COUNT: thread_count, ARRIVES_ONLY: True}
    _barrier("named_barrier_arrive", "shared", attrs)


def sync_grid() -> None:
    """Wait until all threads of all blocks have come here; what they wrote to tensors can be read then.

    Notes
    -----
    All blocks of the grid run at once for that. An NVIDIA GPU launches such a kernel cooperatively,
    which fails where it has no room for all blocks: let each do more of the work. A CPU runs what is
    before the barrier for all blocks, then what follows, and keeps the tiles that live across it for
    each block. Apple's GPUs make no such promise: there it is an error.

    Raises
    ------
    NestingError
        If it stands outside `T.Kernel` or in `T.Parallel`; when the kernel is compiled, if some blocks
        or threads do not come to it.
    """
    _barrier("sync_grid", "grid")


def cluster_sync() -> None:
    """Wait until all threads of the cluster's blocks have come here; what they wrote can be read then.

    Notes
    -----
    `T.Kernel(cluster_dims=)` makes clusters, of NVIDIA's GPUs from Hopper on. Other targets have no
    barrier that blocks could meet at: there it is an error.

    Raises
    ------
    NestingError
        If it stands outside `T.Kernel` or in `T.Parallel`; when the kernel is compiled, if some threads
        of a block do not come to it.
    """
    _barrier("cluster_sync", "cluster")


def cluster_arrive() -> None:
    """Arrive at the cluster's barrier: who waits at it sees what was written before.

    Each arrival is followed by a `T.cluster_wait` before the next one.
    """
    _barrier("cluster_arrive", "cluster", {CLUSTER_STEP: "arrive"})


def cluster_arrive_relaxed() -> None:
    """Arrive at the cluster's barrier, and promise nothing about what was written."""
    _barrier("cluster_arrive_relaxed", "cluster", {CLUSTER_STEP: "arrive_relaxed"})


def cluster_wait() -> None:
    """Wait until all threads of the cluster have arrived at its barrier, or returned."""
    _barrier("cluster_wait", "cluster", {CLUSTER_STEP: "wait"})


def thread_return() -> None:
    """End the thread: it leaves out the rest of the kernel.

    Notes
    -----
    The other threads go on. A tile operator that follows is the work of all threads of the block, so
    either all of them return or none.
    """
    _statement("thread_return", T.thread_return())


def _barrier(name: str, scope: str, attrs: Mapping[str, object] | None = None) -> None:
    kernel = current_kernel()
    if kernel is not None and kernel.parallel_depth:
        raise NestingError(
            f"T.{name} stands inside T.Parallel, whose iterations the threads share out",
            help="end the loop there, and do what follows in another T.Parallel",
        )
    _statement(name, T.tvm_storage_sync(scope), attrs)


def _statement(name: str, call: ir.Call, attrs: Mapping[str, object] | None = None) -> None:
    """Write a call down as a statement of a kernel, at the user's line."""
    kernel_of(f"T.{name}", "move it into `with T.Kernel(...)`")
    T.evaluate(ir.Call(call.op, call.args, attrs or None, span=current_span(), ret_ty=call.ty))
