"""Blocks against the limits of GPUs, on any machine."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import OutOfSharedMemory
from tvmtile.pipeline import check

SM80 = {"kind": "cuda", "arch": "sm_80"}
SM90 = {"kind": "cuda", "arch": "sm_90a"}
KB = 1024


def launch(threads):
    @T.prim_func
    def kernel(A: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=threads):
            T.clear(A)

    return kernel


def shared_bytes(count):
    @T.prim_func
    def kernel(A: T.Tensor((count,), "int8")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((count,), "int8")
            T.copy(A, tile)

    return kernel


@pytest.mark.parametrize("target", [SM80, SM90, "metal"], ids=str)
@pytest.mark.parametrize("threads", [1, 32, 48, 100, 1024, (16, 3), (8, 8, 8)])
def test_any_number_of_threads(target, threads):
    check(launch(threads), target)


@pytest.mark.parametrize("mask", [0xFFFFFFFF, -1])
@pytest.mark.parametrize("shuffle", [T.shfl_xor, T.shfl_sync, T.shfl_up, T.shfl_down])
def test_shuffle_of_all_lanes_is_accepted_by_metal(shuffle, mask):
    @T.prim_func
    def kernel(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            if tx < 16:
                A[tx] = shuffle(tx, 1, mask=mask)

    check(kernel, "metal")


def test_shuffle_of_computed_lanes_where_all_threads_come_is_accepted_by_metal():
    @T.prim_func
    def kernel(A: T.Tensor((64,), "int32"), N: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if N[0] > 3:
                A[tx] = T.shfl_xor(tx, 1, mask=T.cast(T.activemask(), "uint32"))

    check(kernel, "metal")


@pytest.mark.full
def test_all_lanes_shuffle_for_some():
    """What the error says to do instead of `mask=`, and what `mask=` does elsewhere."""

    @T.prim_func
    def before(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            other = T.shfl_xor(tx * 3, 1)
            if tx < 16:
                A[tx] = other

    @T.prim_func
    def inside(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            if tx < 16:
                A[tx] = T.shfl_xor(tx * 3, 1, mask=0xFFFF)

    expected = [(i ^ 1) * 3 if i < 16 else 0 for i in range(32)]
    for kernel, target in ((before, "metal"), (before, SM90), (inside, "llvm"), (inside, SM90)):
        a = torch.zeros(32, dtype=torch.int32)
        runnable(kernel, target)(a)
        assert a.tolist() == expected


def test_a_cpu_takes_any_number_of_threads():
    check(launch(100), "llvm")
    check(launch((64, 32)), "llvm")
    check(shared_bytes(1000 * KB), "llvm")


@pytest.mark.parametrize(
    ("target", "limit"),
    [
        ({"kind": "cuda", "arch": "sm_75"}, 64),
        (SM80, 163),
        ({"kind": "cuda", "arch": "sm_86"}, 99),
        ({"kind": "cuda", "arch": "sm_89"}, 99),
        ({"kind": "cuda", "arch": "sm_90"}, 227),
        (SM90, 227),
        ({"kind": "cuda", "arch": "sm_100a"}, 227),
        ({"kind": "cuda", "arch": "sm_120"}, 99),
        ("metal", 32),
    ],
    ids=str,
)
def test_limit_of_shared_memory(target, limit):
    check(shared_bytes(limit * KB), target)
    with pytest.raises(OutOfSharedMemory, match=f"a block of .* has {limit} KB"):
        check(shared_bytes(limit * KB + 1), target)


def test_tiles_that_are_used_one_after_the_other_may_share_memory():
    @T.prim_func
    def kernel(A: T.Tensor((128, 128), "float16")):
        with T.Kernel(1, threads=128):
            first = T.alloc_shared((128, 128), "float16")
            second = T.alloc_shared((128, 128), "float16")
            T.copy(A, first)
            T.copy(first, A)
            T.copy(A, second)
            T.copy(second, A)

    check(kernel, "metal")


def test_views_take_no_memory_and_packed_dtypes_little():
    @T.prim_func
    def kernel(A: T.Tensor((327680,), "int4")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((327680,), "int4")
            bytes_ = T.view(tile, (163840,), "int8")
            T.copy(A, tile)
            T.clear(bytes_)

    check(kernel, SM80)


def test_fragments_are_not_shared_memory():
    @T.prim_func
    def kernel(A: T.Tensor((128, 128), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_fragment((128, 128), "float32")
            T.copy(A, tile)

    check(kernel, "metal")
