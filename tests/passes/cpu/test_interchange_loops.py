"""InterchangeLoopsOnCpu: which loops move, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import ir, tirx
from tvm_ffi import structural_equal, structural_walk

import tvmtile
import tvmtile.language as T
from tvmtile.passes import InterchangeLoopsOnCpu

RNG = np.random.default_rng(0)


def is_changed(program):
    before = ir.IRModule({"main": program})
    return not structural_equal(before, InterchangeLoopsOnCpu(before))


def innermost_loops(program):
    """The names of the loops that hold nothing but one store, after the pass."""
    names = set()

    def note(loop):
        if isinstance(loop.body, tirx.BufferStore):
            names.add(loop.loop_var.name)

    body = InterchangeLoopsOnCpu(ir.IRModule({"main": program}))["main"].body
    structural_walk(body, (tirx.For, note))
    return names


@pytest.mark.full(but=2)
@pytest.mark.parametrize("shape", [(5, 40, 7), (1, 64, 1), (16, 33, 20)])
def test_matrix_product_by_hand(shape):
    rows, columns, depth = shape

    @T.prim_func
    def program(
        A: T.Tensor((rows, depth), "float32"),
        B: T.Tensor((depth, columns), "float32"),
        C: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(1, threads=32):
            total = T.alloc_fragment((rows, columns), "float32")
            for i, j in T.Parallel(rows, columns):
                total[i, j] = 0
                for k in T.serial(depth):
                    total[i, j] += A[i, k] * B[k, j]
                C[i, j] = total[i, j] * 2

    assert innermost_loops(program) == {"j"}
    a = RNG.standard_normal((rows, depth)).astype("float32")
    b = RNG.standard_normal((depth, columns)).astype("float32")
    c = np.zeros((rows, columns), "float32")
    tvmtile.compile(program, target="llvm")(a, b, c)
    np.testing.assert_allclose(c, 2 * a.astype("float64") @ b, rtol=1e-5, atol=1e-5)


def test_serial_loops_in_each_other():
    @T.prim_func
    def program(X: T.Tensor((6, 40), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for j in T.Parallel(32):
                Y[j] = 1
                for r in T.serial(6):
                    Y[j] += 100
                    for s in T.serial(9):
                        Y[j] += X[r, j + s] * (s + 1)

    assert innermost_loops(program) == {"j"}
    x = RNG.standard_normal((6, 40)).astype("float32")
    y = np.zeros(32, "float32")
    tvmtile.compile(program, target="llvm")(x, y)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), 9, axis=1)
    np.testing.assert_allclose(y, 601 + (windows * np.arange(1, 10)).sum((0, 2)), rtol=1e-5)


def test_what_the_iterations_share_stays():
    @T.prim_func
    def program(A: T.Tensor((32, 4), "int32"), C: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            own = T.alloc_local((4,), "int32")
            for i in T.Parallel(32):
                for k in T.serial(4):
                    own[k] = i + k
                C[i] = own[0] + own[3]

    assert not is_changed(program)
    c = np.zeros(32, "int32")
    tvmtile.compile(program, target="llvm")(np.zeros((32, 4), "int32"), c)
    np.testing.assert_array_equal(c, 2 * np.arange(32) + 3)


def test_loops_that_would_not_gain_stay():
    @T.prim_func
    def strided(A: T.Tensor((32, 8), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                for k in T.serial(8):
                    C[i] += A[i, k]

    @T.prim_func
    def bounded_by_the_iteration(A: T.Tensor((32,), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                for k in T.serial(i):
                    C[i] += A[k]

    @T.prim_func
    def neighbours(C: T.Tensor((40,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                for k in T.serial(8):
                    C[i + k] += 1

    assert not any(map(is_changed, (strided, bounded_by_the_iteration, neighbours)))
