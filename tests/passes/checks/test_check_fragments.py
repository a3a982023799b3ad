"""Serial loops over fragments: which are refused, and which are fine."""

from __future__ import annotations

import re

import pytest

import tvmtile.language as T
from tvmtile.errors import NestingError
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
def load(C, F, O, bx):
    for i in range(32):
        O[0, i] = C[0, i]


@T.macro
def load_in_a_condition(C, F, O, bx):
    for i in range(32):
        if C[0, i] > 0:
            O[0, i] = 1


@T.macro
def update(C, F, O, bx):
    for i, j in T.grid(32, 32):
        C[i, j] += 1


@T.macro
def name_of_an_index(C, F, O, bx):
    for i in T.unroll(16):
        row = i * 2
        C[row, 0] = 0


@T.macro
def through_a_view(C, F, O, bx):
    flat = T.reshape(C, (1024,))
    for i in T.serial(32):
        flat[i] = 0


@T.macro
def visited_by_parallel(C, F, O, bx):
    for i, j in T.Parallel(32, 32):
        F[i, j] = 1
    for i in T.serial(32):
        F[i, 0] = 2


@pytest.mark.parametrize(
    ("body", "loop", "tile"),
    [
        (store, "i", "C[32, 32]"),
        (load, "i", "C[32, 32]"),
        (load_in_a_condition, "i", "C[32, 32]"),
        (update, "i", "C[32, 32]"),
        (name_of_an_index, "i", "C[32, 32]"),
        (through_a_view, "i", "C[32, 32]"),
        (visited_by_parallel, "i", "F[32, 32]"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_refused(body, loop, tile):
    message = (
        f"the serial loop over {loop!r} visits elements of the fragment {tile} float32, "
        "which are spread over the threads of the block"
    )
    with pytest.raises(NestingError, match=re.escape(message)) as caught:
        check(program(body), "llvm")
    assert caught.value.location.file == __file__


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


def test_a_product_that_begins_from_zero_spreads_its_accumulator_too():
    @T.prim_func
    def kernel(A: T.Tensor((32, 32), "float32"), O: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=32):
            C = T.alloc_fragment((32, 32), "float32")
            T.gemm(A, A, C, clear_accum=True)
            for i in T.serial(32):
                C[i, 0] = 0
            T.copy(C, O)

    with pytest.raises(NestingError, match="visits elements of the fragment C"):
        check(kernel, "llvm")


def test_a_user_layout_is_the_users_affair():
    check(program(store, layout=lambda i, j: (i, j)), "llvm")
