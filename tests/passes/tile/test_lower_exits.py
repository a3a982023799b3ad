"""T.thread_return: the numbers are those of threads that skip what follows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import NestingError

N = 40


def run(program, *arrays):
    tvmtile.compile(program, target="llvm")(*arrays)


def test_all_threads_of_a_block_return_before_tile_operators():
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(6, threads=32) as bx:
            if bx >= 4:
                T.thread_return()
            tile = T.alloc_fragment((32,), "float32")
            T.copy(A[bx, :], tile)
            for i in T.Parallel(32):
                C[bx, i] = tile[i] * 2

    a = np.random.default_rng(0).standard_normal((6, 32)).astype("float32")
    c = np.zeros_like(a)
    run(program, a, c)
    np.testing.assert_array_equal(c[:4], a[:4] * 2)
    assert not c[4:].any()


def test_some_threads_return():
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
        with T.Kernel(2, threads=32) as bx:
            i = bx * 32 + T.get_thread_binding()
            if i >= N:
                T.thread_return()
            own = T.alloc_local((2,), "int32")
            own[0] = A[i]
            if own[0] % 3 == 0:
                C[i] = -1
                T.thread_return()
            elif own[0] % 3 == 1:
                own[0] += 1
            C[i] = own[0]

    a = np.arange(N, dtype="int32")
    c = np.zeros(N, "int32")
    run(program, a, c)
    np.testing.assert_array_equal(c, np.where(a % 3 == 0, -1, a + (a % 3 == 1)))


def test_a_return_inside_branches_that_go_on_otherwise():
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            i = T.get_thread_binding()
            if A[i] > 10:
                if A[i] % 2 == 0:
                    if A[i] % 4 == 0:
                        T.thread_return()
                    C[i] += 1
                C[i] += 10
            C[i] += 100

    a = np.arange(N, dtype="int32")
    c = np.zeros(N, "int32")
    run(program, a, c)
    expected = 100 + 10 * (a > 10) + ((a > 10) & (a % 2 == 0))
    np.testing.assert_array_equal(c, np.where((a > 10) & (a % 4 == 0), 0, expected))


@pytest.mark.parametrize("kind", [T.serial, T.unroll])
def test_a_return_inside_loops(kind):
    @T.prim_func
    def program(A: T.Tensor((N, 6), "int32"), C: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            i = T.get_thread_binding()
            for j in kind(2):
                for k in kind(3):
                    if A[i, j * 3 + k] == 0:
                        T.thread_return()
                    C[i] += A[i, j * 3 + k]
                C[i] += 100
            C[i] += 1000

    a = np.random.default_rng(1).integers(0, 5, (N, 6)).astype("int32")
    c = np.zeros(N, "int32")
    run(program, a, c)
    expected = []
    for row in a:
        zeros = np.flatnonzero(row == 0)
        done = zeros[0] if zeros.size else 6
        expected.append(row[:done].sum() + 100 * (done // 3) + 1000 * (done == 6))
    np.testing.assert_array_equal(c, expected)


def test_what_follows_a_return_is_never_done():
    @T.macro
    def finish(C, i):
        C[i] = 1
        T.thread_return()

    @T.prim_func
    def program(C: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            i = T.get_thread_binding()
            finish(C, i)
            C[i] = 2

    c = np.zeros(N, "int32")
    run(program, c)
    assert (c == 1).all()


def test_iterations_of_parallel_loops_do_not_return():
    @T.prim_func
    def program(C: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                if C[i] == 0:
                    T.thread_return()
                C[i] = 2

    with pytest.raises(NestingError, match=r"T.thread_return stands in T.Parallel"):
        tvmtile.compile(program, target="llvm")


def test_outside_a_kernel():
    with pytest.raises(NestingError, match=r"T.thread_return stands outside T.Kernel"):

        @T.prim_func
        def program(C: T.Tensor((N,), "int32")):
            T.thread_return()
            with T.Kernel(1):
                C[0] = 1


@pytest.mark.parametrize("leave", ["continue", "break"])
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_a_loop_of_one_iteration_is_left(leave, target):
    # TVM replaces the loop by its body.
    @T.prim_func
    def continues(C: T.Tensor((3,), "int32")):
        with T.Kernel(3, threads=32) as bx:
            for q in range(1):
                if bx == 1:
                    continue
                C[bx] = q + 5

    @T.prim_func
    def breaks(C: T.Tensor((3,), "int32")):
        with T.Kernel(3, threads=32) as bx:
            for q in range(bx, bx + 1):
                if bx == 1:
                    break
                C[bx] = q - bx + 5

    program = continues if leave == "continue" else breaks
    if target == "cuda":
        kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_80"})
        assert kernel.cubin
        return
    c = torch.zeros(3, dtype=torch.int32)
    runnable(program, target)(c)
    assert c.tolist() == [5, 0, 5]
