"""FindGroups: which work may not stand in a branch."""

from __future__ import annotations

import linecache

import pytest
from tvm import ir

import tvmtile.language as T
from tvmtile.errors import NestingError
from tvmtile.passes import FindGroups, LowerExits


def found(program):
    """The program after the pass."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    return FindGroups(LowerExits(mod))["main"]


def refused(program):
    with pytest.raises(NestingError) as error:
        found(program)
    location = error.value.location
    assert "# here" in linecache.getline(location.file, location.line)
    return str(error.value)


PARTIAL = {
    "some_of_a_warp": (lambda tx: tx < 3, "threads 0 to 2 of 256"),
    "one": (lambda tx: tx == 5, "threads 5 of 256"),
    "a_warp_and_a_half": (lambda tx: tx < 48, "threads 0 to 47 of 256"),
    "warps_apart": (
        lambda tx: tx // 32 % 2 == 0,
        "threads 0 to 31, 64 to 95, 128 to 159, ... of 256",
    ),
}


@pytest.mark.parametrize("case", PARTIAL)
def test_work_of_what_is_no_range_of_warps(case):
    condition, listed = PARTIAL[case]

    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=256):
            if condition(T.get_thread_binding()):
                T.clear(A)  # here

    message = refused(program)
    assert f"T.fill stands where {listed} come, which are no whole warps" in message
    assert "help: the work is shared out over warps of 32 threads" in message


def test_work_under_a_condition_on_what_a_thread_reads():
    @T.prim_func
    def program(A: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            if A[tx] > 0:
                for i in T.Parallel(256):
                    A[i] = 1  # here

    message = refused(program)
    assert "T.Parallel stands where some threads of the block come and others don't" in message
    assert "make it a condition on T.get_thread_binding()" in message


def test_work_in_a_loop_that_some_threads_leave():
    @T.prim_func
    def program(A: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            for _ in T.serial(T.get_thread_binding()):
                T.clear(A)  # here

    assert "T.fill stands where some threads of the block come" in refused(program)


def test_the_other_case_of_a_condition_on_more_than_the_thread():
    @T.prim_func
    def program(A: T.Tensor((256,), "float32"), n: T.int32):
        with T.Kernel(1, threads=256):
            if T.And(T.get_thread_binding() < 128, n > 3):
                A[0] = 1
            else:
                T.clear(A)  # here

    assert "T.fill stands where some threads of the block come" in refused(program)


@pytest.mark.parametrize("name", ["sync_grid", "syncthreads_count"])
def test_what_all_threads_of_a_block_do(name):
    @T.prim_func
    def program(A: T.Tensor((256,), "int32")):
        with T.Kernel(1, threads=256):
            with T.ws(0):
                if name == "sync_grid":
                    T.sync_grid()  # here
                else:
                    A[0] = T.syncthreads_count(A[T.get_thread_binding()] > 0)  # here

    assert f"T.{name}" in (message := refused(program))
    assert "stands where some threads of the block come and others don't" in message
    assert "all threads of the block have to come" in message
