"""InsertBarriers: threads wait for each other where they exchange elements through memory."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.codegen.metal_barriers import device_barrier
from tvmtile.ir.asynchronous import CP_ASYNC, signal, wait
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body, with_statements
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.passes.gpu.barriers.placement import place
from tvmtile.passes.gpu.barriers.program import (
    Barrier,
    Barriers,
    Branch,
    Item,
    Iteration,
    Sequence,
    Wait,
)
from tvmtile.passes.gpu.barriers.structure import Builder

__all__ = ["InsertBarriers"]


@prim_func_pass(
    "InsertBarriers",
    requires=(Property.NO_PARALLEL, Property.NO_FRAGMENTS, Property.SHARED_MEMORY_FITS),
    establishes=(Property.ORDERED,),
)
def InsertBarriers(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Insert the barriers that accesses of memory by the threads of a block need, and no more.

    Two accesses of an element by different threads, one of them a write, get a barrier between them on
    every path, the way from one iteration of a loop to the next included. Accesses by the same thread,
    of different elements, or atomic ones need none. Among the places where all threads of a block come
    together those are chosen that are executed least often; where only threads of the same simdgroup
    conflict, it is a barrier of the simdgroup. The barriers of the user count.

    What may touch elements of an asynchronous copy in flight, where indices or conditions do not tell,
    waits for the copy: in front of its barrier all copies of the thread arrive.

    That holds for threadgroup memory, and for a tensor that the kernel uses in two ways, of reads,
    writes and atomic updates, or writes in two places. Between accesses of a tensor a barrier is left
    out where not all threads of the block come: the user orders those, as he does what one block writes
    and another reads. Tensors that are different parameters are taken to be different memory. An
    element that one statement writes in several threads is left to them.

    On Metal, where a barrier orders threadgroup memory only unless it is told to do more, one that
    separates accesses of a tensor is a call of a function of ours.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((4, 64), "float32"), C: T.Buffer((4, 64), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                A_shared = T.alloc_buffer((64,), "float32", scope="shared")
                for k in range(4):
                    A_shared[tx] = A[k, tx]
                    C[k, tx] = A_shared[63 - tx]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((4, 64), "float32"), C: T.Buffer((4, 64), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                A_shared = T.alloc_buffer((64,), "float32", scope="shared")
                for k in range(4):
                    T.tvm_storage_sync("shared")
                    A_shared[tx] = A[k, tx]
                    T.tvm_storage_sync("shared")
                    C[k, tx] = A_shared[63 - tx]
    ```

    Raises
    ------
    DataRace
        If threadgroup memory needs a barrier where not all threads of the block come.
    """
    del context
    target = func.attrs.get("target") if func.attrs is not None else None
    is_for_metal = target is not None and target.kind.name == "metal"
    return with_kernels(func, lambda kernel: _with_barriers(kernel, is_for_metal=is_for_metal))


def _with_barriers(kernel: tirx.For, *, is_for_metal: bool) -> tirx.For:
    launch = Launch(kernel)
    builder = Builder(launch)
    program = builder.sequence(launch.body)
    barriers = place(program, builder.checker, of_device=builder.exchanges_through_device)
    fenced = is_for_metal and builder.exchanges_through_device
    if not barriers and not fenced:
        return kernel
    return with_launch_body(kernel, _Emitter(barriers, fenced=fenced).sequence(program))


_SCOPES = {ConflictScope.BLOCK: "shared", ConflictScope.WARP: "warp"}
_GROUPS = {ConflictScope.BLOCK: "threadgroup", ConflictScope.WARP: "simdgroup"}


class _Emitter:
    """Writes a program down with its barriers.

    Parameters
    ----------
    barriers : dict of Slot to Barrier
        Those to insert.
    fenced : bool
        A barrier has to say that it orders device memory; those of the user, who may rely on it, do.
    """

    def __init__(self, barriers: Barriers, *, fenced: bool) -> None:
        self._barriers = barriers
        self._fenced = fenced

    def sequence(self, sequence: Sequence) -> tirx.Stmt:
        statements: list[tirx.Stmt] = []
        for slot, item in itertools.zip_longest(sequence.slots, sequence.items):
            if slot in self._barriers:
                statements += self._awaited(self._barriers[slot])
            if item is not None:
                statements.append(self._statement(item))
        return seq(statements)

    def _awaited(self, barrier: Barrier) -> list[tirx.Stmt]:
        if not barrier.waits_for_copies:
            return [self._barrier(barrier)]
        return [signal(CP_ASYNC.name), wait(CP_ASYNC.name, 0), self._barrier(barrier)]

    def _barrier(self, barrier: Barrier) -> tirx.Stmt:
        if self._fenced and barrier.orders_device:
            return device_barrier(_GROUPS[barrier.scope])
        return tirx.Evaluate(T.tvm_storage_sync(_SCOPES[barrier.scope]))

    def _statement(self, item: Item) -> tirx.Stmt:
        if isinstance(item, Wait):
            return self._barrier(item.barrier) if self._fenced else item.statement
        if isinstance(item, Iteration):
            return with_statements(item.statement, [self.sequence(item.body)])
        if isinstance(item, Branch) and not item.diverges:
            cases = item.cases
            if getattr(item.statement, "else_case", True) is None:
                cases = cases[:1]
            return with_statements(item.statement, [self.sequence(case) for case in cases])
        return item.statement
