"""The warning about accumulators without a value: where it speaks, and where it must not."""

from __future__ import annotations

import warnings

import pytest

import tvmtile.language as T
from tvmtile.errors import TileWarning
from tvmtile.pipeline import check


def program(prologue):
    """A kernel that multiplies into `C` after `prologue(C, A, bx)`, in a loop."""

    @T.prim_func
    def kernel(A: T.Tensor((32, 32), "float32"), D: T.Tensor((32, 32), "float32")):
        with T.Kernel(2, threads=32) as bx:
            C = T.alloc_fragment((32, 32), "float32")
            prologue(C, A, bx)
            for _ in T.Pipelined(4, num_stages=2):
                T.gemm(A, A, C)
            T.copy(C, D)

    return kernel


def messages(func):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(func, "llvm")
    return [str(warning.message) for warning in caught if warning.category is TileWarning]


@T.macro
def cleared(C, A, bx):
    T.clear(C)


@T.macro
def filled(C, A, bx):
    T.fill(C, 1)


@T.macro
def filled_in_part(C, A, bx):
    T.fill(C[0:16, :], 1)
    T.fill(C[16:32, :], 2)


@T.macro
def copied(C, A, bx):
    T.copy(A, C)


@T.macro
def written_by_elements(C, A, bx):
    for i, j in T.Parallel(32, 32):
        C[i, j] = A[i, j]


@T.macro
def cleared_in_a_branch(C, A, bx):
    if bx == 0:
        T.clear(C)
    else:
        T.copy(A, C)


@T.macro
def cleared_in_one_branch(C, A, bx):
    if bx == 0:
        T.clear(C)


@T.macro
def cleared_in_a_loop(C, A, bx):
    for i in T.serial(2):
        if i == 0:
            T.clear(C)


@T.macro
def product_first(C, A, bx):
    T.gemm(A, A, C, clear_accum=True)


@T.macro
def cleared_through_a_view(C, A, bx):
    flat = T.reshape(C, (1024,))
    T.clear(flat)


@T.macro
def cleared_by_an_extern_function(C, A, bx):
    T.evaluate(T.call_extern("int32", "clear", T.address_of(C[0, 0])))


@T.macro
def cleared_by_a_pointer(C, A, bx):
    T.evaluate(T.call_extern("int32", "clear", C.data))


@pytest.mark.parametrize(
    "prologue",
    [
        cleared,
        filled,
        filled_in_part,
        copied,
        written_by_elements,
        cleared_in_a_branch,
        cleared_in_one_branch,
        cleared_in_a_loop,
        product_first,
        cleared_through_a_view,
        cleared_by_an_extern_function,
        cleared_by_a_pointer,
    ],
    ids=lambda macro: macro.__name__,
)
def test_no_false_alarm(prologue):
    assert messages(program(prologue)) == []


def test_tensors_of_the_signature_hold_values():
    @T.prim_func
    def kernel(A: T.Tensor((32, 32), "float32"), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1):
            T.gemm(A, A, C)

    assert messages(kernel) == []
