"""OrderIterations: what later iterations of a user's loop store stays, by which threads ever."""

from __future__ import annotations

import re

import pytest
import torch
from tvm import ir, tirx
from tvm.script import tirx as S

import tvmtile
import tvmtile.language as T
from tests.passes.gpu.barriers.oracle import barriers_in, with_pass
from tvmtile._tvm import nodes_in
from tvmtile.ir.annotations import ORDER_OF_STORES
from tvmtile.passes import OrderIterations

GPUS = [{"kind": "cuda", "arch": "sm_90a"}, "metal"]
SIZE = 512
BARRIER = r"^ +(?:__syncthreads|tvmtile_threadgroup_barrier)\("


def compiled_for(program, target):
    return tvmtile.compile(program, target=target, execution_backend="emulator")


def barriers(kernel):
    return len(re.findall(BARRIER, kernel.get_kernel_source(), re.MULTILINE))


def assert_as_on_a_cpu(kernel, program, *sizes):
    """On the emulator, which finds races, with threads that run in several orders."""
    A, expected = torch.randn(128), torch.zeros(SIZE)
    tvmtile.compile(program, target="llvm")(*sizes, A, expected)
    for seed in range(3):
        kernel.adapter.seed = seed
        C = torch.zeros(SIZE)
        kernel(*sizes, A, C)
        assert torch.equal(C, expected)


def elements(step):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=128):
            for n in T.serial(3):
                for i in T.Parallel(128):
                    C[n * step + i] = A[i] + n

    return main


def tile(step):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=128):
            held = T.alloc_fragment((128,), "float32")
            for n in T.serial(3):
                for i in T.Parallel(128):
                    held[i] = A[i] + n
                T.copy(held, C[n * step])

    return main


def two_loops(step):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=128):
            for m in T.serial(2):
                for n in T.serial(3):
                    for i in T.Parallel(128):
                        C[m * step + n * 128 + i] = A[i] + n + m

    return main


def through_a_view(step):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        rows = T.reshape(C, (SIZE // 64, 64))
        with T.Kernel(1, threads=128):
            for n in T.serial(3):
                for i, j in T.Parallel(2, 64):
                    rows[n * step // 64 + i, j] = A[i * 64 + j] + n

    return main


def pipelined(step):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=128):
            loaded = T.alloc_shared((128,), "float32")
            for n in T.Pipelined(3, num_stages=2):
                T.copy(A, loaded)
                for i in T.Parallel(128):
                    C[n * step + i] = loaded[127 - i] + n

    return main


PROGRAMS = [elements, tile, two_loops, through_a_view]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("step", [0, 64, 128])
@pytest.mark.parametrize("target", GPUS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_iterations_wait_where_other_threads_write_an_element_again(program, target, step):
    kernel = compiled_for(program(step), target)
    assert barriers(kernel) == (step == 64)
    assert_as_on_a_cpu(kernel, program(step))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("step", [0, 64, 128])
@pytest.mark.parametrize("target", GPUS, ids=str)
def test_a_pipelined_loop_stores_in_order(target, step):
    assert_as_on_a_cpu(compiled_for(pipelined(step), target), pipelined(step))


@pytest.mark.full
@pytest.mark.parametrize("target", GPUS, ids=str)
def test_iterations_of_a_while_wait(target):
    """How the variable changes is not known, so its iterations may always meet."""

    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=128):
            n = T.alloc_var("int32", init=0)
            while n < 3:
                for i in T.Parallel(128):
                    C[n * 64 + i] = A[i] + n
                n = n + 1

    kernel = compiled_for(main, target)
    assert barriers(kernel) == 1
    assert_as_on_a_cpu(kernel, main)


@pytest.mark.full
@pytest.mark.parametrize("target", GPUS, ids=str)
def test_several_threads_that_write_one_element_wait_for_the_next_value(target):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=128):
            for n in T.serial(3):
                for i in T.Parallel(128):
                    C[i // 64] = A[n]

    kernel = compiled_for(main, target)
    assert barriers(kernel) == 1
    assert_as_on_a_cpu(kernel, main)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", GPUS, ids=str)
def test_there_is_no_order_among_the_steps_of_a_parallel_loop(target):
    """How far they are apart is not known: the loop has one barrier, none of its steps has."""

    @T.prim_func
    def main(n: T.int32, A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=64):
            for k in T.serial(3):
                for i, j in T.Parallel(n, n):
                    C[k * 16 + i * n + j] = A[i] + k

    kernel = compiled_for(main, target)
    assert barriers(kernel) == 1
    before, _, _ = kernel.get_kernel_source().partition("for (int step")
    assert re.search(BARRIER, before, re.MULTILINE)
    assert_as_on_a_cpu(kernel, main, 10)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", GPUS, ids=str)
def test_waves_of_tiles_and_persistent_blocks_store_apart(target):
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(2, threads=128) as block:
            for (n,) in T.Persistent([4], 2, block):
                for i in T.Parallel(128):
                    C[n * 128 + i] = A[i] + n

    kernel = compiled_for(main, target)
    assert barriers(kernel) == 0
    assert_as_on_a_cpu(kernel, main)


@pytest.mark.full
def test_consumers_of_a_pipeline_wait_for_each_other():
    @T.prim_func
    def main(
        A: T.Tensor((128, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((256, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((128, 32), "float16"), T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * 32], a)
                T.copy(B[0, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            for n in T.serial(3):
                for i, j in T.Parallel(128, 64):
                    c[i, j] += 1
                T.copy(c, C[n * 64, 0], disable_tma=True)

    a, b, c = torch.randn(128, 64).half(), torch.randn(64, 64).half(), torch.zeros(256, 64)
    kernel = compiled_for(main, GPUS[0])
    expected = torch.zeros(256, 64).double()
    for n in range(3):
        expected[n * 64 : n * 64 + 128] = a.double() @ b.double().T + n + 1
    for seed in range(3):
        kernel.adapter.seed = seed
        kernel(a, b, c.zero_())
        torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-4)


# What the loops say -----------------------------------------------------------------------------------


def ordered(program):
    """The tensors that loops name, by the names of the loops' variables."""
    func = OrderIterations(ir.IRModule({"main": program}))["main"]
    notes = {loop.loop_var.name: loop.annotations for loop in nodes_in(func.body, tirx.For)}
    return {name: list(of[ORDER_OF_STORES]) for name, of in notes.items() if ORDER_OF_STORES in of}


def test_loops_outside_of_parallel_ones_name_what_they_store_to():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(2, threads=128) as block:
            for n in T.serial(3):
                for m in T.unroll(2):
                    for i in T.Parallel(64):
                        for k in T.serial(2):
                            C[n * 64 + m + i * 2 + k] = A[i]
            for p in T.serial(3):
                T.copy(A, C[p])
            for (w,) in T.Persistent([4], 2, block):
                T.copy(A, C[w * 128])

    assert ordered(main) == {"n": ["C"], "m": ["C"], "p": ["C"]}


def test_a_while_is_named_by_the_kernel():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(2, threads=128) as block:
            n = T.alloc_var("int32", init=0)
            while n < 3:
                T.copy(A, C[n * 64])
                n = n + 1

    assert ordered(main) == {"block": ["C"]}


def test_places_that_memory_decides_are_the_users():
    @T.prim_func
    def main(
        places: T.Tensor((3, 128), "int32"),
        A: T.Tensor((128,), "float32"),
        C: T.Tensor((SIZE,), "float32"),
        D: T.Tensor((SIZE,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            held = T.alloc_fragment((128,), "int32")
            for n in T.serial(3):
                T.copy(places[n, 0], held)
                for i in T.Parallel(128):
                    C[held[i]] = A[i]
                first = places[n, 0]
                T.copy(A, D[first])

    assert ordered(main) == {}


def test_what_threads_store_for_themselves_is_the_users():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((SIZE,), "float32")):
        with T.Kernel(1, threads=128):
            thread = T.get_thread_binding()
            for n in T.serial(3):
                C[n * 64 + thread] = A[thread]
            for m in T.serial(3):
                T.copy(A, C[m * 64])

    assert ordered(main) == {"m": ["C"]}


# And what InsertBarriers makes of it ------------------------------------------------------------------


def test_only_loops_that_name_a_tensor_order_stores_to_it():
    @S.prim_func
    def main(A: S.Buffer((128,), "float32"), C: S.Buffer((SIZE,), "float32")):
        for bx in S.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in S.thread_binding(64, "threadIdx.x"):
                for n in S.serial(3, annotations={"tvmtile.order_of_stores": ["C"]}):
                    for step in range(2):
                        C[n * 128 + step * 32 + tx] = A[tx]

    assert not barriers_in(with_pass(main))


def test_no_barrier_stands_where_not_all_threads_come():
    @S.prim_func
    def main(A: S.Buffer((128,), "float32"), C: S.Buffer((SIZE,), "float32")):
        for bx in S.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in S.thread_binding(64, "threadIdx.x"):
                if tx < 33:
                    for n in S.serial(3, annotations={"tvmtile.order_of_stores": ["C"]}):
                        C[n * 16 + tx] = A[tx]

    assert not barriers_in(with_pass(main))
