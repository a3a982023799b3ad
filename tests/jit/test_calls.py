"""How kernels are called: by keyword, as methods, with globals that change, with nothing in them."""

from __future__ import annotations

import functools
import gc
import weakref

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError, OutOfBounds

SCALE = 2.0
ROWS = T.dynamic("ROWS")


def _scale():
    return SCALE


@T.macro
def scaled(value):
    return value * _scale()


@T.prim_func
def add(
    X: T.Tensor((ROWS, 8), "float32"),
    Y: T.Tensor((ROWS, 8), "float32"),
    Z: T.Tensor((ROWS, 8), "float32"),
):
    with T.Kernel(ROWS) as row:
        for i in T.Parallel(8):
            Z[row, i] = X[row, i] + 2 * Y[row, i]


@tvmtile.jit
def scale_rows(X):
    M = T.const("M")
    X: T.Tensor((M, 8), T.float32)
    Y = T.empty((M, 8), T.float32)
    with T.Kernel(M) as row:
        for i in T.Parallel(8):
            Y[row, i] = scaled(X[row, i])
    return Y


class Scaler:
    def __init__(self, scale):
        self.scale = scale

    @tvmtile.jit
    def rows(self, X):
        M = T.const("M")
        X: T.Tensor((M, 8), T.float32)
        Y = T.empty((M, 8), T.float32)
        with T.Kernel(M) as row:
            for i in T.Parallel(8):
                Y[row, i] = X[row, i] * self.scale
        return Y

    @tvmtile.jit(out_idx=-1)
    def make(self, N):
        @T.prim_func
        def kernel(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(N):
                    Y[i] = X[i] * self.scale

        return kernel


def ones(*shape):
    return np.ones(shape, np.float32)


@pytest.fixture(scope="module")
def kernel():
    return tvmtile.compile(add, out_idx=-1, target="llvm")


def test_parameters_by_keyword(kernel):
    assert (kernel(Y=ones(4, 8), X=4 * ones(4, 8)) == 6).all()
    assert (kernel(4 * ones(4, 8), Y=ones(4, 8)) == 6).all()
    z = ones(4, 8)
    kernel(Y=ones(4, 8), X=4 * ones(4, 8), Z=z)
    assert (z == 6).all()


def test_nothing_to_do(kernel):
    assert kernel(ones(0, 8), ones(0, 8)).shape == (0, 8)
    assert scale_rows(ones(0, 8)).shape == (0, 8)
    for target in ("metal", {"kind": "cuda", "arch": "sm_90a"}):
        program = scale_rows.get_tir(M=0)
        emulated = tvmtile.compile(program, target=target, execution_backend="emulator")
        assert emulated(ones(0, 8)).shape == (0, 8)


def test_grids_with_an_empty_axis():
    @T.prim_func
    def fill(X: T.Tensor((4,), "float32")):
        with T.Kernel(4, 0, 2) as (x, y, z):
            X[x] = y + z
        with T.Kernel(4) as x:
            X[x] += 1

    x = ones(4)
    tvmtile.compile(fill, target="llvm")(x)
    assert (x == 2).all()


def test_a_global_that_changes_makes_another_kernel(monkeypatch):
    assert (scale_rows(ones(2, 8)) == 2).all()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert (scale_rows(ones(2, 8)) == 3).all()


def test_methods_of_objects_which_may_change_or_go_or_can_not_be_watched():
    two, three = Scaler(2.0), Scaler(3.0)
    for scaler, scale in ((two, 2), (three, 3), (two, 5)):
        scaler.scale = float(scale)
        assert (scaler.rows(ones(4, 8)) == scale).all()
        assert (scaler.make(4)(ones(4)) == scale).all()
    assert two.rows.compile(M=4) is two.rows.compile(M=4)
    assert Scaler(4.0).rows(ones(1, 8))[0, 0] == 4  # of an object that is held by nothing else
    gone = weakref.ref(two)
    del two, scaler
    gc.collect()
    assert gone() is None

    class Slots:
        __slots__ = ("scale",)
        rows = Scaler.__dict__["rows"]

    slots = Slots()
    slots.scale = 6.0
    assert (slots.rows(ones(1, 8)) == 6).all()


def test_a_name_that_tvmtile_does_not_have():
    with pytest.raises(AttributeError, match="'tvmtile' has no attribute 'complie'") as caught:
        _ = tvmtile.complie
    assert caught.value.name == "complie"
    assert caught.value.obj is tvmtile  # Python looks there for the nearest name


@pytest.mark.full
def test_a_tensor_map_of_a_tensor_without_elements():
    """There is none; the loop that would copy by it has no iterations."""

    @T.prim_func
    def gram(X: T.Tensor((ROWS, 64), "float16"), Y: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((64, 64), "float16")
            y = T.alloc_fragment((64, 64), "float32")
            T.clear(y)
            for k in T.Pipelined(T.ceildiv(ROWS, 64), num_stages=2):
                T.copy(X[k * 64, 0], x)
                T.gemm(x, x, y, transpose_A=True)
            T.copy(y, Y)

    sm_90a = {"kind": "cuda", "arch": "sm_90a"}
    kernel = tvmtile.compile(gram, out_idx=-1, target=sm_90a, execution_backend="emulator")
    assert "tensormap" in kernel.get_kernel_source().lower()
    assert (kernel(np.ones((0, 64), np.float16)) == 0).all()
    assert (kernel(np.ones((128, 64), np.float16)) == 128).all()


def test_more_blocks_than_a_gpu_launches():
    n = T.dynamic("n")

    @T.prim_func
    def main(Y: T.Tensor((n,), "int32")):
        with T.Kernel(1, 1, n, threads=32) as (x, y, z):
            if T.get_thread_binding() == 0:
                Y[z] = z

    target = {"kind": "cuda", "arch": "sm_80"}
    kernel = tvmtile.compile(main, target=target, execution_backend="emulator")
    with pytest.raises(ArgumentError, match="n blocks in z, of which CUDA sm_80 launches") as e:
        kernel(np.zeros(70000, "int32"))
    assert e.value.help == "write the longest axis first: T.Kernel(longest, ...)"
    kernel(y := np.zeros(40, "int32"))
    assert (y == np.arange(40)).all()


@pytest.mark.parametrize(
    "of", [np.zeros, functools.partial(torch.zeros, dtype=torch.float64)], ids=["numpy", "torch"]
)
@pytest.mark.parametrize("stride", [T.dynamic("stride"), 8], ids=str)
@pytest.mark.parametrize("rows", [0, 3])
def test_strided_tensors_without_elements(of, stride, rows):
    n = T.dynamic("n")

    @T.prim_func
    def ones(A: T.StridedTensor((n, 4), (stride, 1), "float64")):
        with T.Kernel(n):
            A[0, 0] = 1.0

    memory = of((rows, 8))
    kernel = tvmtile.compile(ones, target="llvm")
    kernel(of((0, 4)) if rows == 0 else memory[:, :4])
    assert memory.sum() == (rows > 0)


def test_an_index_out_of_a_tile_shows_no_frame_of_ours():
    @T.prim_func
    def shifted(A: T.Tensor((4,), "float32"), n: T.int32):
        with T.Kernel(1):
            x = T.alloc_shared((4,), "float32")
            T.copy(A, x)
            A[0] = x[n]

    kernel = tvmtile.compile(shifted, target="llvm", pass_configs={"tvmtile.check_indices": True})
    for _ in range(2):  # a later call of torch's tensors goes another way
        with pytest.raises(OutOfBounds) as caught:
            kernel(torch.zeros(4), 7)
        frames = [str(entry.path) for entry in caught.traceback]
        assert [path for path in frames if path != __file__] == frames[1:]
        assert len(frames) == 2  # the test, and the one that raises
