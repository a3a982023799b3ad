"""Barriers between accesses of tensors that a kernel reads and writes, or writes twice."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tvm.script import tirx as T

import tvmtile
import tvmtile.language as TL
from tests.passes.gpu.barriers.oracle import (
    Oracle,
    Programs,
    assert_each_is_needed,
    barriers_in,
    executed,
    for_metal,
    meanings,
    with_pass,
)
from tvmtile.analysis.effects import Effects
from tvmtile.emulator.metal import compile_msl
from tvmtile.errors import MetalEmulationError


def reversed_through_a_tensor(steps):
    """Each thread reads what another one has written."""

    @T.prim_func
    def main(
        A: T.Buffer((steps, 64), "float32"),
        W: T.Buffer((64,), "float32"),
        C: T.Buffer((steps, 64), "float32"),
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                for k in range(steps):
                    W[tx] = A[k, tx]
                    C[k, tx] = W[63 - tx]

    return main


def test_a_tensor_is_ordered_like_a_shared_tile():
    func = with_pass(reversed_through_a_tensor(3))
    assert executed(func) == 2 * 3
    assert_each_is_needed(func)


def test_a_tensor_with_versions_needs_one_barrier_an_iteration():
    @T.prim_func
    def main(W: T.Buffer((2, 64), "float32"), C: T.Buffer((40, 64), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                for k in range(40):
                    W[k % 2, tx] = T.float32(1)
                    C[k, tx] = W[k % 2, 63 - tx]

    func = with_pass(main)
    assert executed(func) == 40
    assert_each_is_needed(func)


def test_tensors_that_need_no_barrier_get_none():
    @T.prim_func
    def read_and_written(
        A: T.Buffer((4, 64), "float32"), n: T.int32, C: T.Buffer((4, 64), "float32")
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                for k in range(n):
                    C[k % 4, 63 - tx] = A[k % 4, tx] + A[k % 4, 63 - tx]

    @T.prim_func
    def written_twice_by_one_thread(C: T.Buffer((4, 64), "float32"), n: T.int32):
        for bx in T.thread_binding(4, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                C[bx, 63 - tx] = T.float32(1)
                if n > 3:
                    C[bx, 63 - tx] = T.float32(2)
                else:
                    C[bx, tx ^ 63] = T.float32(3)

    @T.prim_func
    def written_by_a_whole_tile_or_by_its_elements(C: T.Buffer((100, 64), "float32")):
        for bx in T.thread_binding(4, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                if bx < 3:
                    for i in range(8):
                        C[bx * 32 + i * 4 + tx // 16, T.Ramp(tx % 16 * 4, 1, 4)] = T.Broadcast(
                            T.float32(1), 4
                        )
                else:
                    for i in range(32):
                        if bx * 32 + i < 100:
                            C[bx * 32 + i, tx] = T.float32(1)

    @T.prim_func
    def in_place(A: T.Buffer((1024,), "float16"), B: T.Buffer((512,), "float16")):
        for bx in T.thread_binding(4, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                words = T.decl_buffer((512,), "uint32", data=A.data)
                moved = T.alloc_buffer((2,), "uint32", scope="local")
                moved[T.Ramp(0, 1, 2)] = words[T.Ramp(bx * 128 + tx * 2, 1, 2)]
                for i in range(4):
                    A[bx * 256 + tx * 4 + i] = A[bx * 256 + tx * 4 + i] * T.float16(2)
                for i in range(2):
                    words[bx * 128 + tx * 2 + i] = moved[i]

    @T.prim_func
    def in_place_of_any_size(a: T.handle, n: T.int32):
        A = T.match_buffer(a, (n, n), "float32")
        for bx in T.thread_binding(8, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                for k in range(n // 64):
                    if k * 64 + tx < n:
                        A[bx, k * 64 + tx] = A[bx, k * 64 + tx] + T.float32(1)
                for k in range(n // 64):
                    A[bx, k * 64 + tx] = A[bx, k * 64 + tx] * T.float32(2)

    @T.prim_func
    def in_place_of_many_tiles(A: T.Buffer((64, 64), "float32"), n: T.int32):
        for bx in T.thread_binding(4, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                for k in range(n):
                    A[(k * 4 + bx) // 7 * 8 + tx // 8, (k * 4 + bx) % 7 * 8 + tx % 8] = (
                        A[(k * 4 + bx) // 7 * 8 + tx // 8, (k * 4 + bx) % 7 * 8 + tx % 8] * 2.0
                    )

    for func in (
        read_and_written,
        written_twice_by_one_thread,
        written_by_a_whole_tile_or_by_its_elements,
        in_place,
        in_place_of_any_size,
        in_place_of_many_tiles,
    ):
        assert not barriers_in(with_pass(func))
        assert not barriers_in(with_pass(for_metal(func)))


def test_stores_of_two_statements_are_ordered():
    @T.prim_func
    def main(A: T.Buffer((3, 64), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                for k in range(3):
                    C[63 - tx] = A[k, tx]
                    C[tx] = A[k, tx]

    func = with_pass(main)
    assert executed(func) == 2 * 3
    assert_each_is_needed(func)


def test_the_second_of_two_copies_to_a_tensor_stays():
    """The tiles lie in different threads."""

    @TL.prim_func
    def main(
        A: TL.Tensor((32, 32), "float16"),
        B: TL.Tensor((32, 32), "float16"),
        C: TL.Tensor((32, 32), "float16"),
    ):
        with TL.Kernel(1, threads=64):
            tile = TL.alloc_shared((32, 32), "float16")
            held = TL.alloc_fragment((32, 32), "float32")
            TL.copy(A, tile)
            TL.copy(B, held)
            TL.copy(tile, C)
            TL.copy(held, C)

    a, b, c = torch.randn(32, 32).half(), torch.randn(32, 32).half(), torch.empty(32, 32).half()
    tvmtile.compile(main, target="metal", execution_backend="emulator")(a, b, c)
    assert torch.equal(b, c)


def test_what_the_user_has_to_order_is_no_error():
    """In code that not all threads come to, and of elements that one statement reads and writes."""

    @T.prim_func
    def main(
        A: T.Buffer((64,), "float32"), W: T.Buffer((65,), "float32"), C: T.Buffer((64,), "float32")
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                if tx < 32:
                    W[tx] = A[tx]
                    C[tx] = W[31 - tx]
                W[tx] = W[tx + 1]
                C[tx] = W[63 - tx]

    func = with_pass(main)
    assert executed(func, ignored="W") == 2  # before and after the statement


def test_elements_that_data_decides_may_be_any():
    @T.prim_func
    def main(
        A: T.Buffer((64,), "float32"),
        places: T.Buffer((64,), "int32"),
        W: T.Buffer((64,), "float32"),
        C: T.Buffer((64,), "float32"),
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                W[places[tx]] = A[tx]
                C[tx] = W[tx]

    assert len(barriers_in(with_pass(main))) == 1


def test_atomic_updates_of_a_tensor():
    @T.prim_func
    def main(A: T.Buffer((64,), "int32"), W: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                if tx < 8:
                    W[tx] = 0
                for k in range(4):
                    T.evaluate(T.Call("tvmtile.atomic", [W[A[tx] % 8], 1], ret_ty="int32"))
                if tx < 8:
                    C[tx] = W[tx]

    @T.prim_func
    def updates(A: T.Buffer((64,), "int32"), W: T.Buffer((8,), "int32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                for k in range(4):
                    T.evaluate(T.Call("tvmtile.atomic", [W[A[tx] % 8], 1], ret_ty="int32"))

    @T.prim_func
    def updates_of_what_others_read(W: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                C[tx] = W[63 - tx]
                T.evaluate(T.Call("tvmtile.atomic", [W[tx], 1], ret_ty="int32"))
                C[tx] = C[tx] + W[63 - tx]

    @T.prim_func
    def updates_of_what_is_read_by_the_same(
        W: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32")
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                C[tx] = W[tx]
                T.evaluate(T.Call("tvmtile.atomic", [W[tx], 1], ret_ty="int32"))

    assert len(barriers_in(with_pass(main))) == 2
    assert not barriers_in(with_pass(updates))
    assert len(barriers_in(with_pass(updates_of_what_others_read))) == 2
    assert not barriers_in(with_pass(updates_of_what_is_read_by_the_same))


# Metal, where a barrier says what it orders ----------------------------------------------------------


def test_a_barrier_orders_device_memory_where_that_is_needed():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), W: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                S[tx] = A[tx]
                W[tx] = S[63 - tx]
                S[tx] = W[63 - tx]
                A[tx] = S[63 - tx]

    func = with_pass(for_metal(main))
    assert meanings(func) == [("block", False), ("block", True), ("block", False)]
    assert_each_is_needed(func)


def test_a_barrier_of_a_simdgroup_orders_device_memory():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), W: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                W[tx] = A[tx]
                A[tx] = W[tx // 32 * 32 + (31 - tx % 32)]

    func = with_pass(for_metal(main))
    assert meanings(func) == [("simdgroup", True)]
    assert_each_is_needed(func)


def test_barriers_of_the_user_order_what_the_kernel_exchanges():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), W: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                W[tx] = A[tx]
                T.evaluate(T.tvm_storage_sync("shared"))
                A[tx] = W[63 - tx]

    assert meanings(with_pass(for_metal(main))) == [("block", True)]
    assert meanings(with_pass(main)) == [("block", False)]


@pytest.mark.parametrize("scopes", [("global", "shared"), ("shared", "global"), ("global",) * 2])
@pytest.mark.parametrize("seed", range(4))
def test_random_programs_have_no_race_left(seed, scopes):
    for number in range(20):
        func = Programs(1000 * seed + number, scopes).program()
        func = for_metal(func) if number % 2 else func
        Oracle(with_pass(func), ignored={"C", "S", "T"} - ordered_in(func)).run()


def ordered_in(func):
    """The names of the buffers of a function that barriers order."""
    exchanged = {buffer.name for buffer in Effects(func.body).device_memory}
    return exchanged | ({"S", "T"} - {param.name for param in func.params})


# On the emulated GPU, which finds races and looks at what barriers order ------------------------------


def emulated(func):
    return tvmtile.compile(func, target="metal", execution_backend="emulator")


@TL.prim_func
def rounds(A: TL.Tensor((3, 128), "float32"), W: TL.Tensor((3, 128), "float32")):
    """Each round reverses the rows of a tensor through another one."""
    with TL.Kernel(3, threads=64) as row:
        for _ in TL.serial(3):
            for i in TL.Parallel(128):
                W[row, i] = A[row, 127 - i] + 1
            for i in TL.Parallel(128):
                A[row, i] = W[row, i] * 2


@TL.prim_func
def rounds_by_thread(A: TL.Tensor((3, 128), "float32"), W: TL.Tensor((3, 128), "float32")):
    """The same, written by thread index, with barriers of the user."""
    with TL.Kernel(3, threads=128) as row:
        thread = TL.get_thread_binding()
        for _ in TL.serial(3):
            W[row, thread] = A[row, 127 - thread] + 1
            TL.sync_threads()
            A[row, thread] = W[row, thread] * 2
            TL.sync_threads()


def reference_of_rounds(A):
    for _ in range(3):
        A = (A.flip(1) + 1) * 2
    return A


@pytest.mark.parametrize("kernel", [rounds, rounds_by_thread])
def test_rows_are_reversed_through_a_tensor(kernel):
    A = torch.randn(3, 128)
    expected = reference_of_rounds(A.double())
    compiled = emulated(kernel)
    compiled(A, torch.empty(3, 128))
    torch.testing.assert_close(A.double(), expected, rtol=1e-6, atol=1e-5)
    source = compiled.get_kernel_source()
    assert source.count("  tvmtile_threadgroup_barrier();") == 2
    assert "mem_flags::mem_threadgroup);" not in without_definitions(source)


def without_definitions(source):
    return "\n".join(line for line in source.splitlines() if not line.startswith("#define"))


def test_barriers_of_threadgroup_memory_would_not_do():
    source = emulated(rounds_by_thread).get_kernel_source()
    weaker = source.replace(
        "  tvmtile_threadgroup_barrier();", "threadgroup_barrier(mem_flags::mem_threadgroup);"
    )
    for text, expectation in (
        (source, nullcontext()),
        (weaker, pytest.raises(MetalEmulationError, match="race")),
    ):
        module = compile_msl(text)
        (name,) = module.kernel_names
        a, w = np.zeros((3, 128), "float32"), np.zeros((3, 128), "float32")
        with expectation:
            module.kernel(name)(a, w, grid=3, threads=128)


@TL.prim_func
def read_and_updated(
    A: TL.Tensor((64,), "int32"), B: TL.Tensor((64,), "int32"), C: TL.Tensor((64,), "int32")
):
    """What threads read others update after them, and read again."""
    with TL.Kernel(1, threads=64):
        for i in TL.Parallel(64):
            B[i] = A[63 - i]
        for i in TL.Parallel(64):
            TL.atomic_add(A[i], i)
        for i in TL.Parallel(64):
            C[i] = A[63 - i]


def test_a_tensor_is_read_before_and_after_atomic_updates():
    before = torch.randint(0, 99, (64,), dtype=torch.int32)
    A, B, C = before.clone(), torch.zeros_like(before), torch.zeros_like(before)
    emulated(read_and_updated)(A, B, C)
    torch.testing.assert_close(B, before.flip(0))
    torch.testing.assert_close(C, (before + torch.arange(64, dtype=torch.int32)).flip(0))


@TL.prim_func
def powers(A: TL.Tensor((96, 32), "float16"), B: TL.Tensor((32, 32), "float16")):
    """Rows of a tensor are multiplied in place, twice."""
    with TL.Kernel(3, threads=64) as block:
        tile = TL.alloc_shared((32, 32), "float16")
        factor = TL.alloc_shared((32, 32), "float16")
        product = TL.alloc_fragment((32, 32), "float32")
        TL.copy(B, factor)
        for _ in TL.serial(2):
            TL.copy(A[block * 32, 0], tile)
            TL.clear(product)
            TL.gemm(tile, factor, product)
            TL.copy(product, A[block * 32, 0])


def test_a_tensor_is_multiplied_in_place():
    A, B = torch.randn(96, 32).half() / 4, torch.randn(32, 32).half() / 4
    expected = (A.double() @ B.double()).half().double() @ B.double()
    emulated(powers)(A, B)
    torch.testing.assert_close(A.double(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rows", [64, 61])
def test_elementwise_kernels_in_place_wait_for_nobody(rows):
    @TL.prim_func
    def main(A: TL.Tensor((rows, 96), "float16"), B: TL.Tensor((rows, 96), "float16")):
        with TL.Kernel(TL.ceildiv(rows, 32), threads=64) as block:
            tile = TL.alloc_fragment((32, 96), "float16")
            TL.copy(A[block * 32, 0], tile)
            for i, j in TL.Parallel(32, 96):
                tile[i, j] = tile[i, j] + B[block * 32 + i, j]
            TL.copy(tile, A[block * 32, 0])
            for i, j in TL.Parallel(32, 96):
                A[block * 32 + i, j] = A[block * 32 + i, j] * 2

    A, B = torch.randn(rows, 96).half(), torch.randn(rows, 96).half()
    expected = (A + B) * 2
    kernel = emulated(main)
    assert "barrier" not in kernel.get_kernel_source()
    kernel(A, B)
    torch.testing.assert_close(A, expected)
