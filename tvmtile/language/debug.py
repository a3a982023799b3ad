"""`T.device_assert`, `T.sync_threads` and `T.thread_return`."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import NestingError
from tvmtile.language.frontend.tracer import as_condition
from tvmtile.language.kernel import current_kernel
from tvmtile.spans import current_span

__all__ = ["ARRIVE_COUNT", "BARRIER_ID", "device_assert", "sync_threads", "thread_return"]

BARRIER_ID = "tvmtile.barrier_id"
"""Attribute of a barrier: which of a GPU's barriers it is."""
ARRIVE_COUNT = "tvmtile.arrive_count"
"""Attribute of a barrier: how many threads come to it, where not all do."""


def device_assert(condition: Any, msg: str = "", no_stack_info: bool = False) -> None:
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
    test = as_condition(condition)
    if not isinstance(test, ir.Expr):
        test = tirx.const(bool(test), "bool")
    frame = T.Assert(test, msg or "device_assert failed")
    frame.add_callback(lambda: frame.__exit__(None, None, None))
    frame.__enter__()


def sync_threads(barrier_id: Any = None, arrive_count: Any = None) -> None:
    """Wait until all threads of the block, or some of them, have come here.

    Parameters
    ----------
    barrier_id : int or Expr, optional
        Which of a GPU's barriers to use, for barriers that are waited for at the same time.
    arrive_count : int or Expr, optional
        How many threads come, where not all do: such a barrier may stand in a branch that lets in
        just as many, by the index of the thread.

    Notes
    -----
    Tile operators and `T.Parallel` need no barrier of the user's: the compiler puts in those that
    are needed. This is for code written by thread index.
    """
    if current_kernel() is None:
        raise NestingError(
            "T.sync_threads stands outside T.Kernel", help="move it into `with T.Kernel(...)`"
        )
    barrier = T.tvm_storage_sync("shared")
    given = {BARRIER_ID: barrier_id, ARRIVE_COUNT: arrive_count}
    attrs = {key: value for key, value in given.items() if value is not None}
    T.evaluate(
        ir.Call(barrier.op, barrier.args, attrs or None, span=current_span(), ret_ty=barrier.ty)
    )


def thread_return() -> None:
    """End the thread: it leaves out the rest of the kernel.

    Notes
    -----
    The other threads go on. A tile operator that follows is the work of all threads of the block, so
    either all of them return or none.
    """
    if current_kernel() is None:
        raise NestingError(
            "T.thread_return stands outside T.Kernel", help="move it into `with T.Kernel(...)`"
        )
    leave = T.thread_return()
    T.evaluate(ir.Call(leave.op, leave.args, span=current_span(), ret_ty=leave.ty))
