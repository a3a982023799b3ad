"""Reducers that are used out of order, and those that are not."""

from __future__ import annotations

import pytest

import tvmtile.language as T
from tvmtile.errors import InvalidOperand
from tvmtile.pipeline import check


def program(body):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer((1,), "float32")
            result = T.alloc_fragment((1,), "float32")
            T.clear(result)
            body(total, result, A)
            B[0] = result[0]

    return main


@T.macro
def contribute(total, A):
    for i in T.Parallel(8):
        T.reducer_update(total[0], A[i])


@T.macro
def without_a_beginning(total, result, A):
    contribute(total, A)
    T.finalize_reducer(total, result)


@T.macro
def without_an_end(total, result, A):
    T.reducer_init(total)
    contribute(total, A)


@T.macro
def begun_twice(total, result, A):
    T.reducer_init(total)
    T.reducer_init(total)
    contribute(total, A)
    T.finalize_reducer(total, result)


@T.macro
def stored_to(total, result, A):
    T.reducer_init(total)
    for i in T.Parallel(8):
        total[0] = A[i]
    T.finalize_reducer(total, result)


@T.macro
def read_before_the_end(total, result, A):
    T.reducer_init(total)
    contribute(total, A)
    T.copy(total, result)
    T.finalize_reducer(total, result)


@T.macro
def begun_in_a_loop(total, result, A):
    for _ in T.serial(4):
        T.reducer_init(total)
        contribute(total, A)
    T.finalize_reducer(total, result)


@T.macro
def ended_in_a_loop(total, result, A):
    T.reducer_init(total)
    for _ in T.serial(4):
        contribute(total, A)
        T.finalize_reducer(total, result)


@T.macro
def begun_by_a_clear(total, result, A):
    T.clear(total)
    contribute(total, A)
    T.finalize_reducer(total, result)


@T.macro
def contributed_to_by_no_iteration(total, result, A):
    T.reducer_init(total)
    for i in T.serial(8):
        T.reducer_update(total[0], A[i])
    T.finalize_reducer(total, result)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (without_a_beginning, r"reducer_update before T.reducer_init of total\[1\] float32"),
        (without_an_end, r"total\[1\] float32 is never finalized"),
        (begun_twice, "double T.reducer_init of total"),
        (begun_by_a_clear, "reducer_update before T.reducer_init of total"),
        (contributed_to_by_no_iteration, "reducer_update outside any T.Parallel, of total"),
        (stored_to, "illegal store to reducer total"),
        (read_before_the_end, "illegal read of reducer total"),
        (begun_in_a_loop, "finalize_reducer is not in the scope of its T.reducer_init, of total"),
        (ended_in_a_loop, "finalize_reducer is not in the scope of its T.reducer_init, of total"),
    ],
)
def test_a_reducer_out_of_order(body, message):
    with pytest.raises(InvalidOperand, match=message) as caught:
        check(program(body), "llvm")
    assert "help:" in str(caught.value)


@T.macro
def several_times(total, result, A):
    for _ in T.serial(4):
        T.reducer_init(total, result[0])
        contribute(total, A)
        T.finalize_reducer(total, result)


@T.macro
def in_a_branch(total, result, A):
    T.reducer_init(total)
    contribute(total, A)
    if A[0] > 0:
        T.finalize_reducer(total, result)


@T.macro
def older_style(total, result, A):
    T.clear(total)
    for i in T.Parallel(8):
        total[0] += A[i]
    T.finalize_reducer(total)
    T.copy(total, result)


@pytest.mark.parametrize("body", [several_times, in_a_branch, older_style])
def test_a_reducer_in_order(body):
    check(program(body), "llvm")
