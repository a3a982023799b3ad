"""Serial loops over fragments: which are refused, and which are fine."""

from __future__ import annotations

import pytest

import tvmtile.language as T
from tvmtile.pipeline import check


def program(body, layout=None):
    """A kernel with an accumulator `C`, a fragment `F` that is only copied into, and `body`."""

    @T.prim_func
    def kernel(A: T.Tensor((32, 32), "float32"), O: T.Tensor((32, 32), "float32")):
        with T.Kernel(2, threads=32) as bx:
            C = T.alloc_fragment((32, 32), "float32")
            F = T.alloc_fragment((32, 32), "float32")
            if layout is not None:
                T.annotate_layout({C: layout})
            T.copy(A, F)
            T.clear(C)
            T.gemm(A, A, C)
            body(C, F, O, bx)

    return kernel


@T.macro
def store(C, F, O, bx):
    for i in T.serial(32):
        C[i, 0] = 0


@T.macro
def serial_loop_inside_parallel(C, F, O, bx):
    for i in T.Parallel(32):
        for k in T.serial(32):
            C[i, 0] += C[i, k]


@T.macro
def serial_loop_around_parallel(C, F, O, bx):
    for k in T.serial(32):
        for j in T.Parallel(32):
            C[k, j] = 0


@T.macro
def one_element(C, F, O, bx):
    O[0, 0] = C[0, 0]


@T.macro
def element_by_block(C, F, O, bx):
    O[0, 0] = C[bx, 0]


@T.macro
def element_by_thread(C, F, O, bx):
    tx = T.get_thread_binding()
    for k in T.serial(32):
        O[tx, k] = C[tx, k]


@T.macro
def rows_by_operator(C, F, O, bx):
    for i in T.serial(32):
        T.copy(C[i, :], O[i, :])


@T.macro
def fragment_that_each_thread_may_hold(C, F, O, bx):
    for i in T.serial(32):
        O[0, i] = F[0, i]


@T.macro
def shared_tile(C, F, O, bx):
    S = T.alloc_shared((32, 32), "float32")
    T.copy(C, S)
    for i in T.serial(32):
        O[0, i] = S[0, i]


@pytest.mark.parametrize(
    "body",
    [
        serial_loop_inside_parallel,
        serial_loop_around_parallel,
        one_element,
        element_by_block,
        element_by_thread,
        rows_by_operator,
        fragment_that_each_thread_may_hold,
        shared_tile,
    ],
    ids=lambda macro: macro.__name__,
)
def test_accepted(body):
    check(program(body), "llvm")


def test_a_user_layout_is_the_users_affair():
    check(program(store, layout=lambda i, j: (i, j)), "llvm")
