"""Reducers that are used out of order, and those that are not."""

from __future__ import annotations

import pytest

import tvmtile.language as T
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
