"""Arguments of compiled kernels: what is taken without a copy, and what is said of the rest."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError
from tvmtile.jit.arguments import explain
from tvmtile.jit.kernel import Kernel


@pytest.fixture(scope="module")
def add():
    m, n = T.dynamic("m, n")

    @T.prim_func
    def add(A: T.Tensor((m, n), "float32"), B: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, 4), T.ceildiv(n, 4)) as (bx, by):
            for i, j in T.Parallel(4, 4):
                B[bx * 4 + i, by * 4 + j] = A[bx * 4 + i, by * 4 + j] + 1

    return tvmtile.compile(add, out_idx=-1)


@pytest.fixture(scope="module")
def scale():
    """Constant extents, an extent that depends on another one, scalars."""
    m = T.dynamic("m")

    @T.prim_func
    def scale(
        A: T.Tensor((m, 8), "float32"),
        n: T.int32,
        x: T.float32,
        B: T.Tensor((2 * m,), "float32"),
    ):
        with T.Kernel(T.ceildiv(m, 4)) as bx:
            for i in T.Parallel(4):
                if bx * 4 + i < m:
                    B[bx * 4 + i] = A[bx * 4 + i, 0] * x + n
                    B[m + bx * 4 + i] = A[bx * 4 + i, 1]

    return tvmtile.compile(scale)


@pytest.fixture(scope="module")
def strided():
    s = T.dynamic("s")

    @T.prim_func
    def strided(
        A: T.StridedTensor((4, 8), (16, 1), "float32"),
        B: T.StridedTensor((4, 8), (s, 1), "float32"),
        C: T.StridedTensor((4, 8), (s, 1), "float32"),
    ):
        with T.Kernel(1):
            for i, j in T.Parallel(4, 8):
                C[i, j] = A[i, j] + B[i, j]

    return tvmtile.compile(strided)


def zeros(*shape, **options):
    return torch.zeros(shape, **options)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (1, 4), (8, 1), (0, 4), (4, 0), (0, 0)])
def test_shapes_with_one_and_with_nothing(add, shape):
    a = torch.randn(shape)
    torch.testing.assert_close(add(a), a + 1)


def test_a_tensor_that_requires_a_gradient(add):
    a = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(add(a), a.detach() + 1)


@pytest.mark.parametrize("offset", range(4))
def test_numpy_in_numpy_out_at_any_alignment(add, offset):
    numbers = np.random.default_rng(0).standard_normal(12 + offset, dtype=np.float32)
    a = numbers[offset:].reshape(3, 4)
    result = add(a)
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, a + 1)


def test_tvm_in_tvm_out(add):
    a = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)
    result = add(tvm.runtime.tensor(a))
    assert isinstance(result, tvm.runtime.Tensor)
    np.testing.assert_allclose(result.numpy(), a + 1)


def test_results_given_by_the_caller_are_written(add):
    a, b = torch.randn(3, 4), torch.zeros(3, 4)
    add(a, b)
    torch.testing.assert_close(b, a + 1)


def test_numpy_scalars_are_numbers(scale):
    b = zeros(6)
    scale(torch.ones(3, 8), np.int64(2), np.float32(0.5), b)
    assert b.tolist() == [2.5, 2.5, 2.5, 1, 1, 1]


@pytest.mark.parametrize(
    "given",
    [
        lambda: (zeros(3, 8), np.int64(2), np.float32(0.5), zeros(6)),
        lambda: (zeros(0, 8), 2, 0.5, zeros(0)),
        lambda: (np.zeros((3, 8), np.float32), 2, 0.5, np.zeros(6, np.float32)),
    ],
)
def test_a_program_that_fails_has_run_once(scale, given):
    calls = []

    def failing(*args):
        calls.append(args)
        raise RuntimeError("after the kernel has begun")

    adapter = SimpleNamespace(call=failing, device="cpu")
    kernel = Kernel(scale.prim_func, scale.artifact, scale.out_idx, {}, adapter)
    for count in (1, 2):  # how it is called is chosen in the first call
        with pytest.raises(RuntimeError, match="after the kernel has begun"):
            kernel(*given())
        assert len(calls) == count


def test_a_bool_of_numpy_is_a_number(scale):
    b = zeros(6)
    scale(torch.ones(3, 8), np.bool_(True), np.array(0.5), b)
    assert b.tolist() == [1.5, 1.5, 1.5, 1, 1, 1]


def test_results_whose_extents_come_from_anywhere():
    m, n = T.dynamic("m, n")

    @T.prim_func
    def kernel(
        B: T.Tensor((m,), "float32"),
        A: T.Tensor((2 * n,), "float32"),
        k: T.int32,
        C: T.Tensor((n + m, 3), "float32"),
        Unused: T.Tensor((m,), "float32"),
        D: T.Tensor((2, m), "int32"),
    ):
        with T.Kernel(1):
            T.fill(B, 1)
            T.fill(C, 2)
            T.fill(D, k)

    call = tvmtile.compile(kernel, out_idx=[5, 0, 3])
    for unused in (torch.zeros(4), np.zeros(4, np.float32)):
        d, b, c = call(unused + 0, 2, unused)
        assert (tuple(d.shape), tuple(b.shape), tuple(c.shape)) == ((2, 4), (4,), (6, 3))
        assert type(d) is type(b) is type(unused)
    with pytest.raises(ArgumentError, match="kernel takes 3 arguments"):
        call(torch.zeros(4))


def test_declared_strides(strided):
    a, b = torch.randn(4, 16)[:, :8], torch.randn(4, 12)[:, :8]
    c = zeros(4, 12)[:, :8]
    strided(a, b, c)
    torch.testing.assert_close(c, a + b)


@pytest.fixture(scope="module")
def eager():
    @tvmtile.jit
    def eager(A, B):
        M, N = T.const("M, N")
        A: T.Tensor((M, N), T.float32)
        B: T.Tensor((N,), T.float32)
        C = T.empty((M, N), T.float32)
        with T.Kernel(T.ceildiv(M, 16)) as bx:
            for i, j in T.Parallel(16, N):
                C[bx * 16 + i, j] = A[bx * 16 + i, j] + B[j]
        return C

    return eager


def test_none_for_a_tensor_that_is_not_used():
    def bias(is_used):
        n = T.dynamic("n")

        @T.prim_func
        def bias(A: T.Tensor((n,), "float32"), Bias: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(n):
                    A[i] = A[i] + (Bias[i] if is_used else 1)

        return tvmtile.compile(bias)

    a = torch.zeros(5)
    bias(False)(a, None)
    assert a.eq(1).all()
    with pytest.raises(ArgumentError, match="Bias is a tensor .* it got a NoneType"):
        bias(True)(a, None)


def test_none_for_a_tensor_whose_extent_no_other_argument_has():
    def bias(is_extent_used):
        n, m = T.dynamic("n, m")

        @T.prim_func
        def bias(A: T.Tensor((n,), "float32"), Bias: T.Tensor((m, m + 1), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(n):
                    A[i] = A[i] + (m if is_extent_used else 1)

        return tvmtile.compile(bias)

    a = torch.zeros(5)
    bias(False)(a, None)
    assert a.eq(1).all()
    with pytest.raises(ArgumentError, match="the extent m .* is not known"):
        bias(True)(a, None)


def test_a_tensor_that_tvm_does_not_have_on_the_gpu():
    @T.prim_func
    def fill(A: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            T.fill(A, 1)

    class OfAGpu:  # there is none here
        shape, dtype, device = (4,), torch.float32, torch.device("cuda")

    error = explain("fill", list(fill.params), (), (OfAGpu(),))
    assert error.message == "fill: A must be on the CPU; it is on cuda"
    assert error.help == "move it with `.cpu()`"
    error = explain("fill", list(fill.params), (), (torch.zeros(4),), "metal")
    assert error.message == "fill: A must be a TVM tensor on metal; it is on cpu"
    assert "tvm.metal()" in error.help
