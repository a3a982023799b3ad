"""EliminateEmptyAsyncGroups: remove signals and waits of tokens without work."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import nodes_in
from tvmtile.ir.asynchronous import issued, kind_of, signalled, waited
from tvmtile.ir.kernels import with_kernels, without
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass


@prim_func_pass("EliminateEmptyAsyncGroups", requires=(Property.NO_PARALLEL,))
def EliminateEmptyAsyncGroups(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove the signals of tokens on which nothing is issued, and the waits for them.

    SchedulePipelines gives a token to all copies that run ahead; whether their elements can be copied
    asynchronously is known after they have been shared out over the threads.
    """
    return with_kernels(func, _without_idle_tokens)


def _without_idle_tokens(kernel: tirx.For) -> tirx.For:
    used: set[str] = set()
    for call in nodes_in(kernel, ir.Call):
        work, op = issued(call), operator_of(call)
        token = work.token if work is not None else op.effects().token if op is not None else None
        if token is not None:
            used.update((token, kind_of(token).name))

    def is_idle(stmt: tirx.Stmt) -> bool:
        awaited = waited(stmt)
        token = signalled(stmt) if awaited is None else awaited.token
        return token is not None and token not in used

    return without(kernel, is_idle)
