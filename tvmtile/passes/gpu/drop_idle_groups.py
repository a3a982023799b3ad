"""DropIdleGroups: nobody waits for copies that a kernel does not have."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import mutated
from tvmtile.ir.async_copies import ISSUES, committed, waited
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import flattened, with_kernels
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, seq

__all__ = ["DropIdleGroups"]


@prim_func_pass("DropIdleGroups", requires=(Property.NO_PARALLEL,))
def DropIdleGroups(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Leave out the groups of asynchronous copies, and the waits, of kernels without such copies.

    InjectPipeline has made groups of all copies that run ahead; whether their elements can be copied
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
                T.ptx.cp("async", "commit_group", "")
                for k in range(4):
                    T.ptx.cp(0, "async", "wait_group", "")
                    if k + 1 < 4:
                        tile[(k + 1) % 2, tx] = A[k + 1, tx]
                    T.ptx.cp("async", "commit_group", "")
                    C[k, tx] = tile[k % 2, tx]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((4, 64), "int8"), C: T.Buffer((4, 64), "int8")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                tile = T.alloc_buffer((2, 64), "int8", scope="shared.dyn")
                tile[0, tx] = A[0, tx]
                for k in range(4):
                    if k + 1 < 4:
                        tile[(k + 1) % 2, tx] = A[k + 1, tx]
                    C[k, tx] = tile[k % 2, tx]
    ```
    """
    del context
    return with_kernels(func, _without_idle_groups)


def _without_idle_groups(kernel: tirx.For) -> tirx.For:
    if contains(kernel, ir.Call, _is_issue):
        return kernel

    def sequence(node: tirx.SeqStmt, mutator: Any) -> tirx.Stmt:
        return seq([mutator.mutate(child) for child in flattened(node) if not _is_of_groups(child)])

    return mutated(kernel, (tirx.SeqStmt, sequence))


def _is_issue(call: ir.Call) -> bool:
    return op_name(call) in ISSUES


def _is_of_groups(stmt: tirx.Stmt) -> bool:
    return committed(stmt) or waited(stmt) is not None
