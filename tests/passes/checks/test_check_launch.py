"""Blocks against the limits of GPUs, on any machine."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import InvalidOperand, OutOfSharedMemory
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


@pytest.mark.parametrize("target", [SM80, SM90, "metal"], ids=str)
@pytest.mark.parametrize(
    ("threads", "count", "remedy"), [(1, 1, 32), (100, 100, 128), ((16, 3), 48, 64)]
)
def test_a_shuffle_in_a_partial_group(target, threads, count, remedy):
    @T.prim_func
    def kernel(A: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=threads):
            A[0] = T.shfl_xor(A[0], 1)

    message = (
        f"threads={count}, but .* shuffles values in groups of 32 threads, and the last one is"
    )
    with pytest.raises(InvalidOperand, match=message) as caught:
        check(kernel, target)
    assert caught.value.help == f"use a multiple of 32, such as threads={remedy}"
    assert caught.value.location.text == "A[0] = T.shfl_xor(A[0], 1)"
    check(kernel, "llvm")


@pytest.mark.parametrize("shuffle", [T.shfl_xor, T.shfl_sync, T.shfl_up, T.shfl_down])
def test_a_shuffle_of_some_lanes(shuffle):
    def launched(mask):
        @T.prim_func
        def kernel(A: T.Tensor((32,), "int32")):
            with T.Kernel(1, threads=32):
                tx = T.get_thread_binding()
                if tx < 16:
                    A[tx] = shuffle(tx, 1, mask=mask)

        return kernel

    with pytest.raises(InvalidOperand, match="a shuffle with mask=0xffff: Metal") as caught:
        check(launched(0xFFFF), "metal")
    assert "before the branch, and leave mask= out" in caught.value.help
    assert caught.value.location.text == "A[tx] = shuffle(tx, 1, mask=mask)"
    check(launched(0xFFFF), SM80)
    check(launched(0xFFFF), "llvm")
    check(launched(0xFFFFFFFF), "metal")
    check(launched(-1), "metal")


def test_a_shuffle_of_lanes_that_are_computed():
    def launched(comes):
        @T.prim_func
        def kernel(A: T.Tensor((64,), "int32"), N: T.Tensor((1,), "int32")):
            with T.Kernel(1, threads=64):
                tx = T.get_thread_binding()
                if comes(tx, N[0]):
                    A[tx] = T.shfl_xor(tx, 1, mask=T.cast(T.activemask(), "uint32"))

        return kernel

    @T.prim_func
    def in_a_loop(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            for _ in T.serial(tx):
                A[tx] += T.shfl_xor(tx, 1, mask=T.ballot(tx < 16))

    for kernel in (launched(lambda tx, n: tx < 16), launched(lambda tx, n: tx < n), in_a_loop):
        with pytest.raises(InvalidOperand, match="a shuffle with a computed mask: Metal") as caught:
            check(kernel, "metal")
        assert "before the branch, and leave mask= out" in caught.value.help
        assert "T.shfl_xor(tx, 1, mask=" in caught.value.location.text
        check(kernel, SM80)
        check(kernel, "llvm")
    check(launched(lambda tx, n: n > 3), "metal")


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


@pytest.mark.parametrize("target", [SM80, SM90, "metal"], ids=str)
def test_too_many_threads(target):
    with pytest.raises(InvalidOperand, match=r"threads=2048, but .* has at most 1024"):
        check(launch((64, 32)), target)


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


def test_tiles_that_hold_values_at_the_same_time_are_added_up():
    @T.prim_func
    def kernel(A: T.Tensor((64, 128), "float16"), B: T.Tensor((64, 128), "float16")):
        with T.Kernel(1, threads=128):
            first = T.alloc_shared((64, 128), "float16")
            second = T.alloc_shared((64, 129), "float16")
            T.copy(A, first)
            T.copy(B, second[:, 0:128])
            T.copy(first, B)

    message = re.escape(
        "T.Kernel: the shared tiles need 32.125 KB at once; a block of Metal has 32 KB\n"
        "  first[64, 128] float16: 16 KB\n"
        "  second[64, 129] float16: 16.125 KB"
    )
    with pytest.raises(OutOfSharedMemory, match=message):
        check(kernel, "metal")


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


@pytest.mark.parametrize("target", [SM80, SM90, "metal"], ids=str)
def test_a_shared_tile_whose_extent_a_call_gives(target):
    count = T.dynamic("count")

    @T.prim_func
    def kernel(A: T.Tensor((count,), "float32")):
        with T.Kernel(1, threads=32):
            row = T.alloc_shared((count,), "float32")
            T.copy(A, row)

    message = r"T.alloc_shared: row\[count\] float32 has an extent that a call gives"
    with pytest.raises(InvalidOperand, match=message) as caught:
        check(kernel, target)
    assert caught.value.location.text == 'row = T.alloc_shared((count,), "float32")'
    assert caught.value.help.startswith(
        "allocate a tile of constant extents and loop over the rest"
    )
    check(kernel, "llvm")
