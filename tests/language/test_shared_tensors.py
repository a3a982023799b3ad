"""T.annotate_restrict_buffers: tensors that are slices of one, and what a kernel does in its order."""

import warnings

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileWarning

TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"},
    "sm_90a": {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
}
emulated = pytest.mark.parametrize("target", list(TARGETS))


def numbers(*shape, dtype="float32"):
    rng = np.random.default_rng(len(shape))
    return torch.from_numpy(rng.integers(-3, 4, shape).astype(dtype))


def call(program, target, *tensors):
    tvmtile.compile(program, **TARGETS[target])(*tensors)


@pytest.mark.full(but=1)
@emulated
def test_a_copy_does_not_run_ahead_of_a_store(target):
    @T.prim_func
    def main(A: T.Tensor((4, 32, 32), "float32"), B: T.Tensor((4, 32, 32), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_restrict_buffers(A, B)
            s = T.alloc_shared((32, 32), "float32")
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, 0:32, 0:32], s)
                for i, j in T.Parallel(32, 32):
                    B[k, i, j] = s[i, j] + 1

    memory = numbers(5, 32, 32)
    expected = torch.stack([memory[0] + k for k in range(5)])
    if target == "llvm":
        call(main, target, memory[:4], memory[1:])
    else:
        with pytest.warns(TileWarning, match="k is not pipelined"):
            call(main, target, memory[:4], memory[1:])
    assert torch.equal(memory, expected)


@pytest.mark.full(but=1)
@emulated
def test_threads_wait_for_what_others_have_stored_by_the_other_name(target):
    @T.prim_func
    def main(
        A: T.Tensor((128,), "float32"),
        B: T.Tensor((128,), "float32"),
        C: T.Tensor((128,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_restrict_buffers(A, B)
            for i in T.Parallel(128):
                A[i] = i
            for i in T.Parallel(128):
                C[i] = B[127 - i]

    memory, C = numbers(128), torch.zeros(128)
    call(main, target, memory, memory, C)
    assert torch.equal(C, torch.arange(127.0, -1, -1))


@pytest.mark.full(but=1)
@emulated
def test_elements_are_changed_in_place(target):
    @T.prim_func
    def main(A: T.Tensor((1000,), "float32"), B: T.Tensor((1000,), "float32")):
        with T.Kernel(T.ceildiv(1000, 256), threads=128) as bx:
            T.annotate_restrict_buffers(A, B)
            for i in T.Parallel(256):
                B[bx * 256 + i] = A[bx * 256 + i] * 2

    memory = numbers(1000)
    expected = memory * 2
    call(main, target, memory, memory)
    assert torch.equal(memory, expected)


@pytest.mark.full
@emulated
def test_sums_are_not_kept_where_the_operands_are(target):
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float16"),
        B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((32, 32), "float16"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_restrict_buffers(A, B, C)
            a = T.alloc_shared((32, 16), "float16")
            b = T.alloc_shared((16, 32), "float16")
            sums = T.alloc_fragment((32, 32), "float16")
            T.clear(sums)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * 16], a)
                T.copy(B[k * 16, 0], b)
                T.gemm(a, b, sums)
            T.copy(sums, C)

    A, memory = numbers(32, 64, dtype="float16"), numbers(64, 32, dtype="float16")
    expected = (A.float() @ memory.float()).half()
    call(main, target, A, memory, memory[:32])
    assert torch.equal(memory[:32], expected)


@pytest.mark.full
@emulated
def test_a_producer_reads_what_consumers_have_stored_by_the_other_name(target):
    @T.prim_func
    def main(
        Q: T.Tensor((3, 64, 64), "float16"),
        K: T.Tensor((64, 256), "float16"),
        O: T.Tensor((3, 64, 64), "float16"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_restrict_buffers(Q, O)
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
                    O[r, i, j] = T.if_then_else(sums[i, j] > 0, T.float16(1), T.float16(-1))

    memory, K = numbers(4, 64, 64, dtype="float16"), numbers(64, 256, dtype="float16")
    expected = memory.clone()
    total = sum(K.float()[:, n : n + 64] for n in range(0, 256, 64))
    for r in range(3):
        expected[r + 1] = torch.where(expected[r].float() @ total > 0, 1.0, -1.0).half()
    call(main, target, memory[:3], K, memory[1:])
    assert torch.equal(memory, expected)


@pytest.mark.parametrize(("named", "is_pipelined"), [("BC", True), ("ABC", False), ("B", False)])
def test_copies_of_other_tensors_run_ahead(named, is_pipelined):
    """One that is named alone may share memory with any other."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 32, 32), "float32"),
        B: T.Tensor((4, 32, 32), "float32"),
        C: T.Tensor((4, 32, 32), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_restrict_buffers(*({"A": A, "B": B, "C": C}[name] for name in named))
            s = T.alloc_shared((32, 32), "float32")
            T.copy(C[0, 0:32, 0:32], s)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, 0:32, 0:32], s)
                T.copy(s, B[k, 0:32, 0:32])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tvmtile.compile(main, **TARGETS["sm_80"])
    assert any("k is not pipelined" in str(w.message) for w in caught) != is_pipelined
