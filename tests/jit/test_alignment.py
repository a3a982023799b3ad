"""Tensors that begin anywhere: a GPU's vectors ask for more, and a version of the kernel doesn't."""

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError, TileWarning

N = T.dynamic("N")


def vectors():
    @T.prim_func
    def main(X: T.Tensor((N,), "float16"), Y: T.Tensor((N,), "float16")):
        with T.Kernel(T.ceildiv(N, 256), threads=32) as b:
            for i in T.Parallel(256):
                if b * 256 + i < N:
                    Y[b * 256 + i] = X[b * 256 + i]

    return main


def stages():
    @T.prim_func
    def main(X: T.Tensor((512,), "float16"), Y: T.Tensor((512,), "float16")):
        x, y = T.reshape(X, (16, 32)), T.reshape(Y, (16, 32))
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8, 32), "float16")
            for k in T.Pipelined(2, num_stages=2):
                T.copy(x[k * 8, 0], tile)
                T.copy(tile, y[k * 8, 0])

    return main


def additions():
    @T.prim_func
    def main(X: T.Tensor((512,), "float16"), Y: T.Tensor((512,), "float16")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((512,), "float16")
            T.copy(X, x)
            T.clear(Y)
            T.atomic_add(Y, x)

    return main


def pointers():
    @T.prim_func
    def main(X: T.ptr, Y: T.ptr):
        x, y = T.make_tensor(X, (512,), "float16"), T.make_tensor(Y, (512,), "float16")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(512):
                y[i] = x[i]

    return main


def lanes():
    @T.prim_func
    def main(X: T.Tensor((512,), "float16"), Y: T.Tensor((512,), "float16")):
        with T.Kernel(1, threads=128):
            thread = T.get_thread_binding()
            for lane in T.vectorized(4):
                Y[thread * 4 + lane] = X[thread * 4 + lane]

    return main


TARGETS = {"metal": "metal", "sm_80": {"kind": "cuda", "arch": "sm_80"}}
TARGETS["sm_90a"] = {"kind": "cuda", "arch": "sm_90a"}


@pytest.mark.full(but=6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", [vectors, stages, additions, pointers, lanes])
def test_tensors_may_begin_anywhere(program, target):
    kernel = tvmtile.compile(program(), target=TARGETS[target], execution_backend="emulator")
    x, y = torch.randn(530).half(), torch.zeros(530).half()
    with pytest.warns(TileWarning, match="must begin at a multiple of 16 bytes to be fast"):
        kernel(x[1:513], y[2:514])
    assert torch.equal(y[2:514], x[1:513])
    assert not y[:2].any()
    assert not y[514:].any()
    kernel(x[1:513], y[2:514].zero_())  # warns once
    kernel(x[8:520], y[16:528].zero_())
    assert torch.equal(y[16:528], x[8:520])


@pytest.mark.parametrize("of", [torch.tensor, np.array], ids=["torch", "numpy"])
def test_a_version_is_remembered(of, monkeypatch):
    kernel = tvmtile.compile(vectors(), target=TARGETS["sm_80"], execution_backend="emulator")
    half = {"dtype": torch.float16 if of is torch.tensor else "float16"}
    x, y = of([*range(300)], **half), of([0] * 300, **half)
    kernel(x[8:264], y[8:264])
    with pytest.warns(TileWarning, match="main: X must begin"):
        kernel(x[1:257], y[:256])
    launched = kernel.adapter.call
    with monkeypatch.context() as patch:
        patch.setattr(kernel.adapter, "call", lambda *_: pytest.fail("the other version"))
        kernel(x[1:257], y[:256])
        assert y[0] == 1
    assert kernel.adapter.call == launched
    kernel(x[8:264], y[:256])
    assert y[0] == 8
    with pytest.warns(TileWarning, match="main: X, Y must begin"):
        kernel(x[1:257], y[3:259])
    kernel(x[2:258], y[3:259])
    assert y[3] == 2
    with pytest.raises(ArgumentError, match=r"main: X is a tensor \[N\] of float16; it got a list"):
        kernel([1.0], y)


def test_what_moves_one_by_one_may_begin_anywhere_without_another_version():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                Y[i] = X[31 - i]

    kernel = tvmtile.compile(main, target=TARGETS["sm_80"], execution_backend="emulator")
    x, y = np.arange(33, dtype="float32"), np.zeros(33, "float32")
    kernel(x[1:], y[1:])
    assert (y[1:] == x[:0:-1]).all()


def test_a_result_beside_an_argument_between_two_vectors():
    kernel = tvmtile.compile(
        vectors(), out_idx=-1, target=TARGETS["sm_80"], execution_backend="emulator"
    )
    x = torch.randn(300).half()
    with pytest.warns(TileWarning, match="main: X must begin"):
        assert torch.equal(kernel(x[1:]), x[1:])


def test_what_needs_a_tensor_map_refuses_others():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((4, 64), "float16")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((4, 64), "float16")
            full = T.alloc_barrier(1)
            if T.get_thread_binding() == 0:
                T.mbarrier_expect_tx(full, T.tma_gather4_bytes(64, "float16"))
                T.tma_gather4(X, tile, 0, [1, 3, 5, 7], barrier=full)
                T.mbarrier_arrive(full)
            T.mbarrier_wait_parity(full, 0)
            T.copy(tile, Y)

    target = {"kind": "cuda", "arch": "sm_100a"}
    kernel = tvmtile.compile(main, target=target, execution_backend="emulator")
    x, y = torch.randn(64 * 64 + 1).half(), torch.zeros(4, 64).half()
    with pytest.raises(ArgumentError, match="X must begin at a multiple of 16 bytes") as e:
        kernel(x[1:].view(64, 64), y)
    assert e.value.help == "pass a copy, `x.clone()` or `x.copy()`"


def boxes(**of_stores):
    M, N = T.dynamic("M"), T.dynamic("N")

    @T.prim_func
    def main(X: T.Tensor((M, 128), "float16"), Y: T.Tensor((N, 64), "float16"), k: T.int32):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((64, 64), "float16")
            y = T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for step in T.Pipelined(k, num_stages=2):
                T.copy(X[0, step * 64], x)
                T.gemm(x, x, total)
            T.copy(total, y)
            T.copy(y, Y[0, 0], **of_stores)

    return main


def test_a_tensor_without_elements_has_no_boxes_to_copy():
    """The driver has no map of it: rows outside of it are zero by another version."""
    target = TARGETS["sm_90a"]
    kernel = tvmtile.compile(boxes(), target=target, execution_backend="emulator")
    assert "CUtensorMap X_map" in kernel.get_kernel_source()
    x, y = torch.ones(0, 128).half(), torch.ones(64, 64).half()
    kernel(x, y, 0)  # no box is copied
    assert not y.any()
    with pytest.warns(TileWarning, match="main: X must have elements to be fast; a version"):
        kernel(x, y.fill_(1), 2)
    assert not y.any()
    kernel(x, y.fill_(1), 2)  # warns once
    assert not y.any()
    kernel(torch.ones(64, 128).half(), y, 2)
    assert (y == 128).all()


def test_boxes_of_a_tensor_without_elements_are_refused_where_they_are_asked_for():
    target = TARGETS["sm_90a"]
    kernel = tvmtile.compile(boxes(impl="tma"), target=target, execution_backend="emulator")
    with pytest.raises(ArgumentError, match="main: Y must have elements: copy: impl='tma'") as e:
        kernel(torch.ones(64, 128).half(), torch.ones(0, 64).half(), 2)
    assert e.value.help == "let T.copy do without tensor maps, `disable_tma=True`"
