"""DropIdleTokens: remove signals and waits of tokens without work."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import nodes_in
from tvmtile.ir.asynchronous import issued, kind_of, signalled, waited
from tvmtile.ir.kernels import with_kernels, without
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass


@prim_func_pass("DropIdleTokens", requires=(Property.NO_PARALLEL,))
def DropIdleTokens(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove the signals of tokens on which nothing is issued, and the waits for them.

    InjectPipeline gives a token to all copies that run ahead; whether their elements can be copied
    asynchronously is known after they have been shared out over the threads.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((4, 64), "int8"), C: T.Buffer((4, 64), "int8")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                tile = T.alloc_buffer((2, 64), "int8", scope="shared.dyn")
                tile[0, tx] = A[0, tx]
                T.tile.async_signal("cp.async/1")
                for k in range(4):
                    T.tile.async_wait("cp.async/1", 0)
                    if k + 1 < 4:
                        tile[(k + 1) % 2, tx] = A[k + 1, tx]
                    T.tile.async_signal("cp.async/1")
                    C[k, tx] = tile[k % 2, tx]
    ```

    After
    -----
    ```
                tile = T.alloc_buffer((2, 64), "int8", scope="shared.dyn")
                tile[0, tx] = A[0, tx]
                for k in range(4):
                    if k + 1 < 4:
                        tile[(k + 1) % 2, tx] = A[k + 1, tx]
                    C[k, tx] = tile[k % 2, tx]
    ```
    """
    return with_kernels(func, _without_idle_tokens)


def _without_idle_tokens(kernel: tirx.For) -> tirx.For:
    used: set[str] = set()
    for call in nodes_in(kernel, ir.Call):
        work, op = issued(call), operator_of(call)
        token = work.token if work is not None else op.token() if op is not None else None
        if token is not None:
            used.update((token, kind_of(token).name))

    def is_idle(stmt: tirx.Stmt) -> bool:
        awaited = waited(stmt)
        token = signalled(stmt) if awaited is None else awaited.token
        return token is not None and token not in used

    return without(kernel, is_idle)
