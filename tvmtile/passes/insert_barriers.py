"""InsertBarriers: threads wait for each other where they share threadgroup memory."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx.script import builder as T

from tvmtile.passes.barriers.footprint import Meeting
from tvmtile.passes.barriers.placement import place
from tvmtile.passes.barriers.program import Barriers, Branch, Item, Iteration, Sequence
from tvmtile.passes.barriers.structure import Builder
from tvmtile.passes.kernels import Launch, is_kernel, prim_func_pass, with_statements
from tvmtile.rewriting import seq, with_children

__all__ = ["InsertBarriers"]


@prim_func_pass("InsertBarriers")
def InsertBarriers(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Insert the barriers that accesses of threadgroup memory need, and no more.

    Two accesses of an element by different threads, one of them a write, get a barrier between them on
    every path, the way from one iteration of a loop to the next included. Accesses by the same thread,
    of different elements, or atomic ones need none. Among the places where all threads of a block come
    together those are chosen that are executed least often; where only threads of the same simdgroup
    meet, it is a barrier of the simdgroup. The barriers of the user count.

    Global memory is not looked at: TVM's generator for Metal prints no barrier for it. An element that
    one statement writes in several threads is left to them.

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
        If a barrier is needed where not all threads of the block come.
    """
    del context

    def visit(loop: tirx.For, mutator: Any) -> tirx.For:
        return _with_barriers(loop) if is_kernel(loop) else mutator.default_mutate(loop)

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, visit)]))


def _with_barriers(kernel: tirx.For) -> tirx.For:
    launch = Launch(kernel)
    if launch.num_threads == 1:
        return kernel
    builder = Builder(launch)
    program = builder.sequence(launch.body)
    barriers = place(program, builder.checker)
    if not barriers:
        return kernel
    stmt = _emitted(program, barriers)
    loops: list[tirx.For] = []
    node: Any = kernel
    while (
        node is not launch.body and isinstance(node, tirx.For) and node.thread_binding is not None
    ):
        loops.append(node)
        node = node.body
    for loop in reversed(loops):
        stmt = with_children(loop, body=stmt)
    assert isinstance(stmt, tirx.For)
    return stmt


_SCOPES = {Meeting.IN_BLOCK: "shared", Meeting.IN_SIMDGROUP: "warp"}


def _emitted(sequence: Sequence, barriers: Barriers) -> tirx.Stmt:
    statements: list[tirx.Stmt] = []
    for number, slot in enumerate(sequence.slots):
        if slot is not None and slot in barriers:
            scope = _SCOPES[barriers[slot]]
            statements.append(tirx.Evaluate(T.tvm_storage_sync(scope)))
        if number < len(sequence.items):
            statements.append(_statement(sequence.items[number], barriers))
    return seq(statements)


def _statement(item: Item, barriers: Barriers) -> tirx.Stmt:
    if isinstance(item, Iteration):
        return with_statements(item.statement, [_emitted(item.body, barriers)])
    if isinstance(item, Branch):
        cases = item.cases
        if getattr(item.statement, "else_case", True) is None:
            cases = cases[:1]
        return with_statements(item.statement, [_emitted(case, barriers) for case in cases])
    return item.statement
