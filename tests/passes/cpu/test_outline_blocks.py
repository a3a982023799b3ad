"""OutlineBlocks: the blocks of a dynamic grid are one function, which both ways to run them call."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm.ir.instrument import pass_instrument

import tvmtile
import tvmtile.language as T

n = T.dynamic("n")


@T.prim_func
def scaled(A: T.Tensor((n, 48), "float32"), C: T.Tensor((n, 48), "float32"), factor: T.float32):
    """Through a tile that is too large for the stack, views of it, and a view of a tensor."""
    flat = T.view(C, (n * 48,))
    with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
        tile = T.alloc_shared((64, 48), "float32")
        values = T.view(tile, (64 * 48,))
        T.copy(A[bx * 64, 0], tile)
        for i in T.Parallel(64 * 48):
            values[i] = values[i] * factor
        for i, j in T.Parallel(64, 48):
            if bx * 64 + i < n:
                flat[(bx * 64 + i) * 48 + j] = tile[i, j]


@pytest.mark.full(but=4)
@pytest.mark.parametrize("rows", [0, 1, 64, 65, 300])
def test_one_block_and_several_do_the_same(rows):
    a, c = torch.randn(rows, 48), torch.zeros(rows, 48)
    tvmtile.compile(scaled, target="llvm")(a, c, 3.0)
    assert torch.equal(c, a * 3)


@T.prim_func
def two_kernels(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
    with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i] + 1
    with T.Kernel(T.ceildiv(n, 64), threads=32) as bx:
        for i in T.Parallel(64):
            A[bx * 64 + i] = B[bx * 64 + i] * 2


@pytest.mark.parametrize("count", [20, 50, 1000])
def test_each_kernel_has_a_function_of_its_own(count):
    a, b = torch.arange(count, dtype=torch.int32), torch.zeros(count, dtype=torch.int32)
    kernel = tvmtile.compile(two_kernels, target="llvm")
    kernel(a, b)
    assert torch.equal(b, torch.arange(1, count + 1, dtype=torch.int32))
    assert torch.equal(a, b * 2)


def test_a_function_knows_strides_that_the_call_gives():
    """They stand in no expression of the block, only in the tensor's declaration."""
    stride = T.dynamic("stride")

    @T.prim_func
    def main(A: T.Tensor((4, n), "float32"), B: T.StridedTensor((4, n), (stride, 1), "float32")):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            s = T.alloc_shared((4, 32), "float32")
            T.copy(A[0, bx * 32], s)
            T.copy(s, B[0, bx * 32])

    a, rows = torch.randn(4, 50), torch.zeros(4, 60)
    tvmtile.compile(main, target="llvm")(a, rows[:, :50])
    assert torch.equal(rows[:, :50], a)
    assert not rows[:, 50:].any()


def functions_after_outlining(program):
    """The names of a program's functions, and the text of the one that is called."""
    seen = []

    @pass_instrument
    class Watch:
        def run_after_pass(self, mod, info):
            if info.name == "tvmtile.OutlineBlocks":
                main = mod[next(gv for gv in mod.functions if gv.name_hint == "main")]
                seen.append(({gv.name_hint for gv in mod.functions}, main.script()))

    with tvm.transform.PassContext(instruments=[Watch()]):
        tvmtile.compile(program, target="llvm")
    return seen[0]


def test_both_loops_call_one_function():
    names, text = functions_after_outlining(scaled.with_attr("global_symbol", "main"))
    assert names == {"main", "main_block_0"}
    assert text.count("main_block_0(") == 2
    assert text.count("T.parallel(") == 1
    assert "alloc_buffer" not in text


def test_a_grid_that_is_known_stays_one_loop():
    @T.prim_func
    def main(A: T.Tensor((256,), "int32")):
        with T.Kernel(4, threads=32) as bx:
            for i in T.Parallel(64):
                A[bx * 64 + i] = i

    names, _ = functions_after_outlining(main)
    assert names == {"main"}


@pytest.mark.full
def test_an_exported_kernel_brings_its_function(tmp_path):
    path = tmp_path / "scaled.so"
    tvmtile.compile(scaled, target="llvm").export_library(path)
    a, c = torch.randn(200, 48), torch.zeros(200, 48)
    tvm.runtime.load_module(str(path))["scaled"](a, c, 2.0)
    assert torch.equal(c, a * 2)
