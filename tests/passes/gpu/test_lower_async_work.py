"""How many groups a wait leaves: those after the batch that it names, on every path."""

import pytest
from tvm import ir, tirx
from tvm.script import tirx as T
from tvm_ffi import structural_walk

from tvmtile.ir.asynchronous import waited
from tvmtile.passes import LowerAsyncWork


def left_by_waits(program):
    """The numbers of the `wait_group` instructions, in their order."""
    lowered = LowerAsyncWork(ir.IRModule({"main": program}))["main"]
    assert "async_" not in lowered.script().replace("cp_async", "")
    found = []
    structural_walk(lowered.body, (tirx.Evaluate, lambda s: found.append(waited(s))), order="pre")
    return [wait.behind for wait in found if wait is not None]


@T.prim_func
def two_tokens(A: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        T.tile.async_signal("cp.async/2")
        T.tile.async_signal("cp.async/2")
        T.tile.async_wait("cp.async/1", 0)
        A[0] = T.float32(0)
        T.tile.async_wait("cp.async/2", 1)
        A[1] = T.float32(0)
        T.tile.async_wait("cp.async", 2)


@T.prim_func
def neighbours(A: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        T.tile.async_signal("cp.async/2")
        T.tile.async_wait("cp.async/1", 0)
        T.tile.async_wait("cp.async/2", 0)
        A[0] = T.float32(0)


@T.prim_func
def a_branch(A: T.Buffer((8,), "float32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        if n > 0:
            T.tile.async_signal("cp.async/2")
        T.tile.async_wait("cp.async/1", 0)
        A[0] = T.float32(0)


@T.prim_func
def a_loop(A: T.Buffer((8,), "float32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        T.tile.async_signal("cp.async/1")
        for k in range(n):
            T.tile.async_wait("cp.async/1", 1)
            A[k] = T.float32(0)
            T.tile.async_signal("cp.async/1")
            T.tile.async_signal("cp.async/2")


@T.prim_func
def a_loop_that_skips(A: T.Buffer((8,), "float32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        T.tile.async_signal("cp.async/2")
        T.tile.async_signal("cp.async/2")
        for k in range(8):
            T.tile.async_wait("cp.async/1", 0)
            A[k] = T.float32(0)
            if A[k] > T.float32(n):
                T.tile.async_signal("cp.async/1")
                T.continue_loop()
            T.tile.async_signal("cp.async/2")


@T.prim_func
def nothing_signalled(A: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_wait("cp.async/1", 0)
        A[0] = T.float32(0)


@pytest.mark.parametrize(
    ("program", "left"),
    [
        (two_tokens, [2, 1, 2]),
        (neighbours, [0]),  # the strictest of both
        (a_branch, [0]),  # where the branch is not taken, nothing is committed after the batch
        (a_loop, [1]),  # at first; the next ones might leave two
        (a_loop_that_skips, [0]),  # after an iteration that ended early
        (nothing_signalled, [7]),  # the most that the instruction takes
    ],
)
def test_a_wait_leaves_what_was_committed_after_its_batch(program, left):
    assert left_by_waits(program) == left
