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
from tvmtile.jit.executable import Executable
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.signature import KernelSignature

M, N, S = T.dynamic("m, n, s")


@pytest.fixture(scope="module")
def add():
    @T.prim_func
    def add(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, 4), T.ceildiv(N, 4)) as (bx, by):
            for i, j in T.Parallel(4, 4):
                B[bx * 4 + i, by * 4 + j] = A[bx * 4 + i, by * 4 + j] + 1

    return tvmtile.compile(add, out_idx=-1)


@pytest.fixture(scope="module")
def scale():
    """Constant extents, an extent that depends on another one, scalars."""

    @T.prim_func
    def scale(
        A: T.Tensor((M, 8), "float32"), n: T.int32, x: T.float32, B: T.Tensor((2 * M,), "float32")
    ):
        with T.Kernel(T.ceildiv(M, 4)) as bx:
            for i in T.Parallel(4):
                if bx * 4 + i < M:
                    B[bx * 4 + i] = A[bx * 4 + i, 0] * x + n
                    B[M + bx * 4 + i] = A[bx * 4 + i, 1]

    return tvmtile.compile(scale)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (1, 4), (8, 1), (0, 4), (4, 0), (0, 0)])
def test_shapes_with_one_and_with_nothing(add, shape):
    a, b = torch.randn(shape, requires_grad=True), torch.zeros(shape)
    assert torch.equal(add(a), a + 1)
    with torch.no_grad():
        add(a, b)
    assert torch.equal(b, a + 1)


@pytest.mark.parametrize("offset", range(4))
def test_results_are_of_the_kind_that_is_given_at_any_alignment(add, offset):
    a = np.random.default_rng(0).random(12 + offset, np.float32)[offset:].reshape(3, 4)
    np.testing.assert_array_equal(add(a), a + 1, strict=True)
    result = add(tvm.runtime.tensor(a))
    assert isinstance(result, tvm.runtime.Tensor)
    np.testing.assert_array_equal(result.numpy(), a + 1)


@pytest.mark.parametrize(
    ("n", "x"), [(2, 0.5), (np.int64(2), np.float32(0.5)), (np.bool_(True), np.array(0.5))]
)
def test_numbers_of_numpy_are_numbers(scale, n, x):
    b = torch.zeros(6)
    scale(torch.ones(3, 8), n, x, b)
    assert b.tolist() == [int(n) + 0.5] * 3 + [1] * 3


@pytest.mark.parametrize(("make", "rows"), [(torch.zeros, 3), (torch.zeros, 0), (np.zeros, 3)])
def test_a_program_that_fails_has_run_once(scale, make, rows):
    calls = []

    def failing(*args):
        calls.append(args)
        raise RuntimeError("after the kernel has begun")

    executable = Executable(scale.executable.request, scale.artifact)
    executable.launch = failing
    kernel = Kernel(scale.prim_func, scale.out_idx, executable)
    dtype = torch.float32 if make is torch.zeros else np.float32
    for count in (1, 2):  # how it is called is chosen in the first call
        with pytest.raises(RuntimeError, match="after the kernel has begun"):
            kernel(make((rows, 8), dtype=dtype), np.int64(2), 0.5, make(2 * rows, dtype=dtype))
        assert len(calls) == count


def test_results_whose_extents_come_from_anywhere():
    @T.prim_func
    def kernel(
        B: T.Tensor((M,), "float32"),
        A: T.Tensor((2 * N,), "float32"),
        k: T.int32,
        C: T.Tensor((N + M, 3), "float32"),
        Unused: T.Tensor((M,), "float32"),
        D: T.Tensor((2, M), "int32"),
    ):
        with T.Kernel(1):
            T.fill(B, 1)
            T.fill(C, 2)
            T.fill(D, k)

    call = tvmtile.compile(kernel, out_idx=[3, 0, 5])
    for unused in (torch.zeros(4), np.zeros(4, np.float32)):
        c, b, d = call(unused + 0, 2, unused)
        assert (tuple(d.shape), tuple(b.shape), tuple(c.shape)) == ((2, 4), (4,), (6, 3))
        assert type(d) is type(b) is type(unused)
    with pytest.raises(ArgumentError, match="kernel takes 3 arguments"):
        call(torch.zeros(4))


def test_declared_strides():
    @T.prim_func
    def strided(
        A: T.StridedTensor((4, 8), (16, 1), "float32"),
        B: T.StridedTensor((4, 8), (S, 1), "float32"),
        C: T.StridedTensor((4, 8), (S, 1), "float32"),
    ):
        with T.Kernel(1):
            for i, j in T.Parallel(4, 8):
                C[i, j] = A[i, j] + B[i, j]

    a, b, c = (torch.randn(4, width)[:, :8] for width in (16, 12, 12))
    tvmtile.compile(strided)(a, b, c)
    assert torch.equal(c, a + b)


@pytest.mark.parametrize(
    ("shape", "used", "message"),
    [
        ((N,), lambda bias, i: bias[i], "Bias is a tensor .* it got a NoneType"),
        ((M, M + 1), lambda bias, i: M, "the extent m .* is not known"),
    ],
    ids=["elements", "extents"],
)
def test_none_for_a_tensor_of_which_nothing_is_used(shape, used, message):
    kernels = []
    for value in (lambda bias, i: 1, used):

        @T.prim_func
        def bias(A: T.Tensor((N,), "float32"), Bias: T.Tensor(shape, "float32")):
            with T.Kernel(1):
                for i in T.Parallel(N):
                    A[i] = A[i] + value(Bias, i)

        kernels.append(tvmtile.compile(bias))
    a = torch.zeros(5)
    kernels[0](a, None)
    assert a.eq(1).all()
    with pytest.raises(ArgumentError, match=message):
        kernels[1](a, None)


OF_A_GPU = SimpleNamespace(shape=(4,), dtype=torch.float32, device=torch.device("cuda"))


@pytest.mark.parametrize(
    ("given", "device", "message", "remedy"),
    [
        (OF_A_GPU, "cpu", "A must be on the CPU; it is on cuda", "move it with `.cpu()`"),
        (torch.zeros(4), "metal", "A must be a TVM tensor on metal; it is on cpu", "tvm.metal()"),
    ],
)
def test_a_tensor_that_is_elsewhere(given, device, message, remedy):
    @T.prim_func
    def fill(A: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            T.fill(A, 1)

    error = explain(KernelSignature.of(fill, ()), (given,), device)
    assert error.message == f"fill: {message}"
    assert remedy in error.help


def test_an_extent_that_its_dtype_does_not_hold():
    n, m, wide = T.dynamic("n"), T.dynamic("m"), T.dynamic("wide", "int64")

    def copying(*shape):
        @T.prim_func
        def main(A: T.Tensor(shape, "int8"), B: T.Tensor((4,), "int8")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(4):
                    B[i] = A[i]

        return tvmtile.compile(main, target="llvm")

    large, b = np.empty(2**32 + 4, "int8"), np.zeros(4, "int8")  # memory that nobody touches
    large[:4] = 1, 2, 3, 4
    of_n = copying(n)
    for size in (2**31 - 1, 2**31 + 1024, 2**32 + 4):
        with pytest.raises(ArgumentError, match=r'axis 0 is n, an int32 of .*"n", "int64"\) holds'):
            of_n(large[:size], b)
    with pytest.raises(ArgumentError, match="axis 0 needs 4, not 4294967300"):
        copying(4)(large, b)
    with pytest.raises(
        ArgumentError, match=r'axis 0 is 2 \* m, an int32 .*"m", "int64"\) holds more'
    ):
        copying(2 * m)(large[: 2**31], b)
    for kernel, size in ((of_n, 2**31 - 1 - 2**16), (copying(wide), 2**32 + 4)):
        b[:] = 0
        kernel(large[:size], b)
        assert b.tolist() == [1, 2, 3, 4]
