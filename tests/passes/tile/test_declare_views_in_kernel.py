"""DeclareViewsInKernel: a tensor by several names, one of them declared in front of the kernel."""

import numpy as np
import pytest
import torch
from tvm import ir
from tvm_ffi import structural_equal

import tvmtile
import tvmtile.language as T
from tvmtile.passes import DeclareViewsInKernel

SM90 = {"kind": "cuda", "arch": "sm_90a"}
TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "sm_90a": {"target": SM90, "execution_backend": "emulator"},
}
emulated = pytest.mark.parametrize("target", list(TARGETS))


def after(program):
    module = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    return module, DeclareViewsInKernel(module)


def numbers(*shape, dtype="float32"):
    rng = np.random.default_rng(len(shape))
    return torch.from_numpy(rng.integers(-3, 4, shape).astype(dtype))


def compiled(program, target):
    return tvmtile.compile(program, **TARGETS[target])


# The program ------------------------------------------------------------------------------------


def test_what_is_used_by_one_name_stays_outside():
    @T.prim_func
    def main(A: T.Tensor((4, 32), "float32"), B: T.Tensor((128,), "float32")):
        flat = T.reshape(A, (128,))
        with T.Kernel(1, threads=32):
            for i in T.Parallel(128):
                flat[i] = flat[i] + B[i]

    before, result = after(main)
    assert structural_equal(before, result)


def test_what_is_only_read_stays_outside():
    @T.prim_func
    def main(A: T.Tensor((4, 32), "float32"), B: T.Tensor((128,), "float32")):
        flat = T.reshape(A, (128,))
        with T.Kernel(1, threads=32):
            for i in T.Parallel(128):
                B[i] = flat[i] + A[0, i % 32]

    before, result = after(main)
    assert structural_equal(before, result)


def test_a_view_of_a_view_brings_what_it_is_a_view_of():
    @T.prim_func
    def main(A: T.Tensor((4, 32), "float32")):
        rows = T.reshape(A, (8, 16))
        words = T.view(rows, (128,), "int32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                words[i] = T.cast(A[1, i], "int32")

    _, result = after(main)
    text = result["main"].script()
    kernel = text[text.index("tvmtile.kernel") :]
    assert "decl_buffer" in kernel or "view(" in kernel
    A, expected = numbers(4, 32), numbers(4, 32)
    expected[0] = expected[1].to(torch.int32).view(torch.float32)
    compiled(main, "llvm")(A)
    assert torch.equal(A.view(torch.int32), expected.view(torch.int32))


# Numbers ----------------------------------------------------------------------------------------


@pytest.mark.full(but=1)
@emulated
def test_a_copy_of_a_pipelined_loop_sees_what_an_iteration_before_has_written(target):
    @T.prim_func
    def main(A: T.Tensor((5, 32, 32), "float32"), O: T.Tensor((4, 32, 32), "float32")):
        rows = T.reshape(A, (160, 32))
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((32, 32), "float32")
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, 0:32, 0:32], s)
                T.copy(s, O[k, 0:32, 0:32])
                for i, j in T.Parallel(32, 32):
                    rows[(k + 1) * 32 + i, j] = s[i, j] + 1

    A, O = numbers(5, 32, 32), torch.zeros(4, 32, 32)
    expected = torch.stack([A[0] + k for k in range(5)])
    if target == "llvm":
        compiled(main, target)(A, O)
    else:
        with pytest.warns(tvmtile.errors.TileWarning, match="k is not pipelined"):
            compiled(main, target)(A, O)
    assert torch.equal(A, expected)
    assert torch.equal(O, expected[:4])


@pytest.mark.full(but=2)
@emulated
def test_elements_that_threads_exchange_by_two_names(target):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), O: T.Tensor((128,), "int32")):
        bits = T.view(A, (128,), "int32")
        with T.Kernel(1, threads=128):
            for i in T.Parallel(128):
                A[i] = T.cast(i, "float32")
            for i in T.Parallel(128):
                O[i] = bits[127 - i]
            for i in T.Parallel(128):
                bits[i] = i

    A, O = numbers(128), torch.zeros(128, dtype=torch.int32)
    compiled(main, target)(A, O)
    assert torch.equal(O, torch.arange(128.0).view(torch.int32).flip(0))
    assert torch.equal(A.view(torch.int32), torch.arange(128, dtype=torch.int32))


@pytest.mark.full(but=2)
@emulated
def test_a_copy_between_two_names(target):
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        halves = T.reshape(A, (128, 16))
        with T.Kernel(1, threads=128):
            T.copy(halves[0:32, 0:16], A[8:40, 0:16])

    A = numbers(64, 32)
    expected = A.clone()
    expected[8:40, :16] = A.view(128, 16)[:32]
    compiled(main, target)(A)
    assert torch.equal(A, expected)


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "sm_90a"])
def test_a_tile_that_a_producer_copies_once_and_consumers_write_by_another_name(target):
    @T.prim_func
    def main(
        Q: T.Tensor((4, 64, 64), "float16"),
        K: T.Tensor((64, 256), "float16"),
        O: T.Tensor((4, 64, 64), "float32"),
    ):
        rows = T.reshape(Q, (256, 64))
        with T.Kernel(1, threads=128):
            q = T.alloc_shared((64, 64), "float16")
            k = T.alloc_shared((64, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            for r in range(3):
                T.copy(Q[r, 0:64, 0:64], q)
                T.clear(sums)
                for n in T.Pipelined(4, num_stages=2):
                    T.copy(K[0:64, n * 64 : n * 64 + 64], k)
                    T.gemm(q, k, sums)
                for i, j in T.Parallel(64, 64):
                    rows[(r + 1) * 64 + i, j] = T.if_then_else(
                        sums[i, j] > 0, T.float16(1), T.float16(-1)
                    )
                T.copy(sums, O[r, 0:64, 0:64])

    Q, K = numbers(4, 64, 64, dtype="float16"), numbers(64, 256, dtype="float16")
    O = torch.zeros(4, 64, 64)
    q, expected = Q[0].float(), torch.zeros(4, 64, 64)
    for r in range(3):
        expected[r] = q @ sum(K.float()[:, n : n + 64] for n in range(0, 256, 64))
        q = torch.where(expected[r] > 0, 1.0, -1.0)
    compiled(main, target)(Q, K, O)
    assert torch.equal(O, expected)


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "sm_90a"])
def test_stored_sums_that_are_read_by_another_name(target):
    @T.prim_func
    def main(
        A: T.Tensor((64, 128), "float16"),
        B: T.Tensor((128, 64), "float16"),
        O: T.Tensor((4, 64, 64), "float16"),
    ):
        rows = T.reshape(O, (256, 64))
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            for r in range(3):
                T.clear(sums)
                for k in T.Pipelined(2, num_stages=2):
                    T.copy(A[0, k * 64], a)
                    T.copy(B[k * 64, 0], b)
                    T.gemm(a, b, sums)
                for i, j in T.Parallel(64, 64):
                    sums[i, j] += rows[r * 64 + i, j]
                T.copy(sums, O[r + 1, 0:64, 0:64])

    A, B, O = (numbers(*shape, dtype="float16") for shape in ((64, 128), (128, 64), (4, 64, 64)))
    expected = O.clone()
    for r in range(3):
        expected[r + 1] = (A.float() @ B.float() + expected[r].float()).half()
    compiled(main, target)(A, B, O)
    assert torch.equal(O, expected)
