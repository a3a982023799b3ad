"""`@tvmtile.jit`: the two styles of kernels."""

from __future__ import annotations

import linecache
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tests.kernels import scaling
from tvmtile.errors import ArgumentError, TileError

VECTOR = T.Tensor((8,), "float32")
MATRIX = T.Tensor((4, 8), "float32")


@T.macro
def copy_all(A, B):
    with T.Kernel(A.shape[0]) as row:
        for j in T.Parallel(A.shape[1]):
            B[row, j] = A[row, j]


@T.macro
def copy_of(A):
    B = T.empty(*A.shape, dtype=A.dtype)
    copy_all(A, B)
    return B


def test_a_function_that_returns_a_program_is_lazy_and_called_once_for_a_specialisation():
    calls = []

    @tvmtile.jit(out_idx=-1)
    def factory(n, factor=2.0):
        calls.append((n, factor))
        return scaling(n, factor)

    assert factory.mode == "lazy"
    assert calls == []
    kernel = factory(16)
    a = torch.randn(16)
    torch.testing.assert_close(kernel(a), a * 2)
    assert factory(16) is kernel
    assert factory(16, factor=3.0) is not kernel
    assert factory(8).params[0].shape == [8]
    assert calls == [(16, 2.0), (16, 3.0), (8, 2.0)]


def test_a_function_around_a_prim_func_is_lazy_at_once_and_a_prim_func_is_compiled_at_once():
    @tvmtile.jit
    def factory(n):
        @T.prim_func
        def zero(A: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                T.clear(A)

        return zero

    assert factory.mode == "lazy"
    a = torch.randn(8)
    assert factory(8)(a) is None
    assert a.abs().max() == 0
    double = tvmtile.jit(out_idx=-1)(scaling(8))
    assert isinstance(double, tvmtile.Kernel)
    a = torch.randn(8)
    torch.testing.assert_close(double(a), a * 2)


@tvmtile.jit
def with_a_macro(A: MATRIX, B: MATRIX):
    copy_all(A, B)


def helper(a, b):
    copy_all(a, b)


CALLS = []


@tvmtile.jit
def with_a_helper(A: MATRIX, B: MATRIX):
    """Its kernel is in a helper; what else it does is done when it is traced."""
    CALLS.append("copy")
    helper(A, B)


@tvmtile.jit
def with_a_later_helper(A: MATRIX, B: MATRIX):
    later(A, B)


later = helper


@pytest.mark.parametrize("copy", [with_a_macro, with_a_helper, with_a_later_helper])
def test_a_kernel_in_a_macro_or_a_helper_is_eager(copy):
    assert copy.mode == ("auto" if copy is with_a_later_helper else "eager")
    assert CALLS == []
    for _ in range(2):
        a, b = torch.randn(4, 8), torch.zeros(4, 8)
        assert copy(a, b) is None
        assert torch.equal(b, a)
    assert copy.mode == "eager"
    assert CALLS == ["copy"] * (copy is with_a_helper)
    CALLS.clear()


@tvmtile.jit
def of_an_annotation_in_brackets(A):
    M, N = T.const("M N")
    A: T.Tensor[[M, N], T.float16]
    return copy_of(A)


@tvmtile.jit
def of_constants_from_strides(A):
    M, N, rows, columns = T.const("M, N, rows, columns")
    A: T.StridedTensor[[M, N], [rows, columns], T.float32]
    return copy_of(A)


@tvmtile.jit
def of_a_dynamic_extent(A):
    M = T.dynamic("M")
    N = T.const("N")
    A: T.Tensor((M, N), T.float32)
    return copy_of(A)


@pytest.mark.parametrize(
    ("copy", "tensors"),
    [
        (of_an_annotation_in_brackets, [torch.randn(3, 5).half(), torch.randn(2, 5).half()]),
        (of_constants_from_strides, [torch.randn(6, 2, 5, 3)[:, 1, :, 2]]),
        (of_a_dynamic_extent, [torch.randn(3, 4), torch.randn(7, 4)]),
    ],
)
def test_a_result_made_in_a_macro(copy, tensors):
    assert copy.mode == "eager"
    for a in tensors:
        assert torch.equal(copy(a), a)
        assert torch.equal(copy(A=a), a)
    kernels = {copy.compile(a) for a in tensors}
    assert len(kernels) == (1 if copy is of_a_dynamic_extent else len(tensors))


def test_several_results_are_a_list_in_the_order_of_the_return():
    @tvmtile.jit
    def both(A):
        n = T.dynamic("n")
        A: T.Tensor((n,), T.float32)
        B = T.empty((n,), T.float32)
        C = T.empty((n * 2 + 1,), T.int32)
        with T.Kernel(1):
            for i in range(n):
                B[i] = A[i] + 1
            for i in range(n * 2 + 1):
                C[i] = i
        return C, B

    a = torch.randn(6)
    results = both(a)
    assert isinstance(results, list)
    torch.testing.assert_close(results, [torch.arange(13, dtype=torch.int32), a + 1])


def test_a_scalar_of_the_run_and_a_constant_of_the_kernel():
    @tvmtile.jit
    def fill(A: VECTOR, value: T.float32, step: int = 1):
        with T.Kernel(1):
            for i in range(0, 8, step):
                A[i] = value

    a = torch.zeros(8)
    fill(a, 2.5)
    assert a.tolist() == [2.5] * 8
    fill(a, 1.0, step=2)
    assert a.tolist() == [1.0, 2.5] * 4
    assert fill.compile(a, 3.0) is fill.compile(a, 4.0)


def test_the_program_of_tensors_that_are_only_described():
    @tvmtile.jit
    def copy(A, B, block=4):
        M, N = T.const("M N")
        A: T.Tensor((M, N), T.float32)
        B: T.Tensor((M, N), T.float32)
        copy_all(A, B)

    program = copy.get_tir(T.Tensor((12, 16)), T.Tensor((12, 16)))
    assert isinstance(program, tirx.PrimFunc)
    assert [int(extent) for extent in program.params[1].ty.shape] == [12, 16]
    assert copy.compile(M=12, N=16, block=8).prim_func is not None


def test_python_decides_branches_of_an_eager_kernel():
    @tvmtile.jit
    def pick(A, first: bool):
        A: T.Tensor((2,), T.int32)
        with T.Kernel(1):
            if first:
                v = A[0]
            else:
                v = A[1]
            A[1 if first else 0] = v + 1

    a = torch.tensor([10, 20], dtype=torch.int32)
    pick(a, True)
    assert a.tolist() == [10, 11]
    pick(a, False)
    assert a.tolist() == [12, 11]


def test_equal_values_of_other_types_have_kernels_of_their_own():
    @tvmtile.jit
    def fill(A, value):
        A: T.Tensor((2,), T.float32)
        with T.Kernel(1):
            A[0] = 0.5 if isinstance(value, bool) else value

    kernels = [fill.compile(torch.zeros(2), value) for value in (1, True, 1.0)]
    assert len(set(map(id, kernels))) == 3


def test_an_annotation_has_the_values_of_where_the_kernel_is_written():
    size = 2

    @tvmtile.jit
    def fill(A: T.Tensor((size,), "float32")):
        with T.Kernel(1):
            T.fill(A, 1)

    size = 3
    assert locals()["size"] == 3  # from which Python's frame may take it again
    with pytest.raises(ArgumentError, match="axis 0 needs 2, not 3"):
        fill(torch.zeros(3))


def test_specialisations_are_bounded_and_many_of_them_are_told(monkeypatch):
    monkeypatch.setattr("tvmtile.jit.decorator.MANY", 2)
    monkeypatch.setattr("tvmtile.jit.specialisation.MOST", 3)

    @tvmtile.jit(target="llvm")
    def doubled(A):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty(N)
        with T.Kernel(N) as i:
            B[i] = A[i] * 2
        return B

    def call(n):
        a = torch.arange(float(n))
        assert torch.equal(doubled(a), a * 2)

    call(3)
    text = (
        "doubled was compiled for 2 sets of extents and constants: let extents that change from call "
        'to call be T.dynamic("n")'
    )
    with pytest.warns(tvmtile.errors.TileWarning, match=re.escape(text)):
        call(4)
    for n in (5, 6, 3):
        call(n)
    assert repr(doubled).endswith("3 compiled>")


def test_constants_in_extents_and_strides_are_solved():
    @tvmtile.jit
    def every_other(A, B):
        N, S = T.const("N, S")
        A: T.StridedTensor((2 * N, 4), (S, 1), "float32")
        B: T.Tensor((N,), "float32")
        C = T.empty((N,), "float32")
        with T.Kernel(1):
            for i in T.Parallel(N):
                C[i] = A[2 * i, 0] + B[i]
        return C

    @tvmtile.jit
    def halved(A):
        N = T.const("N")
        A: T.Tensor((2 * N + 1, 1), "float32")
        return copy_of(A)

    a, b = torch.randn(6, 8)[:, :4], torch.randn(3)
    assert every_other(a, b).equal(a[::2, 0] + b)
    assert list(halved.get_tir(torch.empty(7, 1)).params[0].ty.shape) == [7, 1]
    with pytest.raises(ArgumentError, match="axis 0 needs 7, not 8"):
        halved(torch.empty(8, 1))


def test_source_of_the_kernel_that_was_compiled_last():
    @tvmtile.jit
    def doubled(X):
        N = T.const("N")
        X: T.Tensor((1, N), "float32")
        return copy_of(X)

    with pytest.raises(ArgumentError, match="needs the argument 'X'"):
        doubled.get_kernel_source()
    x = torch.ones(1, 5)
    doubled(x)
    assert doubled.get_kernel_source() == doubled.get_kernel_source(x)


def test_a_first_call_that_fails_leaves_no_program_for_the_next():
    @tvmtile.jit
    def factory(sizes):
        return scaling(int(max(sizes)), 2.0)

    with pytest.raises(ArgumentError):  # an array has no hash
        factory(np.array([4]))
    assert factory.get_tir((8,)).params[0].ty.shape[0] == 8


def test_first_calls_of_two_threads_have_programs_of_their_own():
    """Each is in the function when the other one is."""
    both = threading.Barrier(2)

    @tvmtile.jit
    def lazy(n):
        both.wait(60)
        return scaling(n, 2.0)

    @tvmtile.jit
    def eager(A):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        both.wait(60)
        B = T.empty((N,), "float32")
        with T.Kernel(1):
            T.copy(A, B)
        return B

    for function, given in (
        (lazy.get_tir, (3, 5)),
        (eager.get_tir, (torch.ones(3), torch.ones(5))),
    ):
        with ThreadPoolExecutor(2) as threads:
            programs = list(threads.map(function, given))
        assert [program.params[0].ty.shape[0] for program in programs] == [3, 5]


def test_a_package_whose_name_begins_with_ours_is_the_users(monkeypatch):
    """A change among its globals is seen, and its errors point at its lines."""
    text = """import tvmtile, tvmtile.language as T
FACTOR = 2
@tvmtile.jit
def scale(A):
    A: T.Tensor((4,), T.float32)
    with T.Kernel(1):
        for i in T.Parallel(4):
            A[i] = A[i] * FACTOR
            if FACTOR == 5: T.copy(A, 0)
"""
    path = f"{Path(tvmtile.__file__).parent}_kernels/scale.py"
    monkeypatch.setitem(linecache.cache, path, (len(text), None, text.splitlines(True), path))
    names = {"__name__": "tvmtile_kernels.scale"}
    exec(compile(text, path, "exec"), names)
    a = torch.ones(4)
    names["scale"](a)
    names["FACTOR"] = 3
    names["scale"](a)
    assert a.tolist() == [6.0] * 4
    names["FACTOR"] = 5
    with pytest.raises(TileError, match=r"_kernels/scale\.py:9"):
        names["scale"](a)


class _Copies:
    def helper(self, a, b):
        copy_all(a, b)

    @tvmtile.jit
    def copy(self, A: MATRIX, B: MATRIX):
        self.helper(A, B)


def test_a_kernel_in_a_method_that_a_method_calls_is_eager():
    copy = _Copies().copy
    assert copy.mode == "eager"
    a, b = torch.randn(4, 8), torch.zeros(4, 8)
    assert copy(a, b) is None
    assert torch.equal(b, a)
