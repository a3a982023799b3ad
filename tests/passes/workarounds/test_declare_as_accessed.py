"""DeclareAsAccessed: what TVM's generator would declare in too many or too few bytes."""

import pytest
import torch
import tvm
from tvm import ir
from tvm.script import tirx
from tvm.target import Target

import tvmtile.language as T
from tests.metal.programs import emulated
from tvmtile.codegen.device import marked
from tvmtile.passes.workarounds.declare_as_accessed import DeclareAsAccessed


def kernel_of(func, target="metal"):
    """A module of a function as TVM has split it from the host's."""
    func = func.with_attr("target", Target(target)).with_attr("global_symbol", "main")
    return ir.IRModule({"main": marked(func)})


@tirx.prim_func
def halves(A: tirx.Buffer((64,), "uint32")):
    for tx in tirx.thread_binding(32, thread="threadIdx.x"):
        tile = tirx.alloc_buffer((128,), "float16", scope="shared")
        words = tirx.decl_buffer((64,), "uint32", data=tile.data, scope="shared")
        words[tx] = A[tx]


def test_memory_is_declared_in_the_dtype_in_which_it_is_accessed():
    @tirx.prim_func
    def after(A: tirx.Buffer((64,), "uint32")):
        for tx in tirx.thread_binding(32, thread="threadIdx.x"):
            tile = tirx.alloc_buffer((64,), "uint32", scope="shared")
            words = tirx.decl_buffer((64,), "uint32", data=tile.data, scope="shared")
            words[tx] = A[tx]

    tvm.ir.assert_structural_equal(DeclareAsAccessed(kernel_of(halves)), kernel_of(after))


def test_other_targets_count_bytes():
    module = kernel_of(halves, {"kind": "cuda", "arch": "sm_80"})
    tvm.ir.assert_structural_equal(DeclareAsAccessed(module), module)


def test_memory_that_is_accessed_in_two_dtypes_stays_as_it_is():
    @tirx.prim_func
    def main(A: tirx.Buffer((32,), "uint32"), C: tirx.Buffer((64,), "float16")):
        for tx in tirx.thread_binding(32, thread="threadIdx.x"):
            tile = tirx.alloc_buffer((64,), "float16", scope="shared")
            words = tirx.decl_buffer((32,), "uint32", data=tile.data, scope="shared")
            words[tx] = A[tx]
            C[tx] = tile[63 - tx]

    tvm.ir.assert_structural_equal(DeclareAsAccessed(kernel_of(main)), kernel_of(main))


def test_memory_that_is_not_a_whole_number_of_words_stays_as_it_is():
    @tirx.prim_func
    def main(A: tirx.Buffer((1,), "uint32")):
        for _ in tirx.thread_binding(32, thread="threadIdx.x"):
            tile = tirx.alloc_buffer((3,), "float16", scope="shared")
            words = tirx.decl_buffer((1,), "uint32", data=tile.data, scope="shared")
            words[0] = A[0]

    tvm.ir.assert_structural_equal(DeclareAsAccessed(kernel_of(main)), kernel_of(main))


@pytest.mark.full
def test_accesses_of_a_loop_that_never_runs_do_not_count():
    """The product reads the tile's elements; without it, words are all that moves."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_shared((64, 64), "float16")
            other = T.alloc_shared((64, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            T.copy(A, tile)
            T.clear(sums)
            for k in T.serial(2, 2):
                T.copy(A, other)
                T.gemm(tile, other, sums)
            T.copy(tile, C)

    kernel = emulated(main)
    a, c = torch.randn(64, 64).half(), torch.zeros(64, 64).half()
    kernel(a, c)
    assert torch.equal(a, c)
    assert kernel.adapter.statistics.threadgroup_memory <= 2 * 64 * 72 * 2


def test_a_tile_that_moves_as_words_takes_the_bytes_that_it_has():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A, tile)
            T.copy(tile, C)

    kernel = emulated(main)
    a, c = torch.randn(64, 64).half(), torch.zeros(64, 64).half()
    kernel(a, c)
    assert torch.equal(a, c)
    assert kernel.adapter.statistics.threadgroup_memory == 64 * 64 * 2


@pytest.mark.full
def test_memory_that_tiles_share_has_room_for_all_of_a_tile():
    n = 12288

    @T.prim_func
    def main(
        A: T.Tensor((n,), "float16"), B: T.Tensor((n,), "float16"), C: T.Tensor((n,), "float16")
    ):
        with T.Kernel(1, threads=128) as _:
            x, y = T.alloc_shared((n,), "float16"), T.alloc_shared((n,), "float16")
            for i in T.Parallel(n):
                x[n - 1 - i] = A[i]
            for i in T.Parallel(n):
                C[i] = x[i * 5 % n]
            for i in T.Parallel(n):
                y[n - 1 - i] = B[i]
            for i in T.Parallel(n):
                C[i] += y[i * 5 % n]

    kernel = emulated(main)
    a, b, c = torch.randn(n).half(), torch.randn(n).half(), torch.zeros(n).half()
    kernel(a, b, c)
    places = n - 1 - torch.arange(n) * 5 % n
    assert torch.equal(c, a[places] + b[places])
    assert kernel.adapter.statistics.threadgroup_memory == n * 2
