"""Layouts of fragments that a kernel fixes by hand."""

import pytest
import torch
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tvmtile.layout.fragment import Digit, spread
from tvmtile.layout.user_layout import read_user_layout


def tile(*shape):
    return tirx.decl_buffer(shape, "float32", name="x", scope="local.fragment")


def test_thread_and_register_become_digits():
    user_layout = T.Fragment((8, 8), forward_fn=lambda i, j: (i * 4 + j // 2, j % 2)).index_map
    layout = read_user_layout(tile(8, 8), user_layout, 32)
    assert layout.axes == ((Digit(8, "tx", 4),), (Digit(4, "tx", 1), Digit(2, "m", 1)))


def test_the_compiler_counts_the_registers_where_only_the_thread_is_given():
    user_layout = T.Fragment((16, 8), forward_thread_fn=lambda i, j: i % 8 * 4 + j // 2).index_map
    layout = read_user_layout(tile(16, 8), user_layout, 32)
    assert layout.registers == 4
    assert layout.axes[0] == (Digit(2, "m", 2), Digit(8, "tx", 4))


def test_copies_are_over_the_threads_that_the_indices_leave():
    user_layout = T.Fragment(
        (8,), forward_fn=lambda i, copy: (i * 4 + copy, 0), replicate=4
    ).index_map
    layout = read_user_layout(tile(8), user_layout, 32)
    assert layout.replicas == [Digit(4, "tx", 1)]


def test_a_layout_of_tvm_is_taken_as_it_is():
    given = spread((8, 64), 128, 4)
    assert read_user_layout(tile(8, 64), given.to_tvm(), 128) == given


@pytest.mark.full
def test_a_kernel_runs_with_a_layout_by_hand():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), C: T.Tensor((8, 8), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((8, 8), "float32")
            T.annotate_layout({x: T.Fragment((8, 8), lambda i, j: (j * 4 + i // 2, i % 2))})
            T.copy(A, x)
            for i, j in T.Parallel(8, 8):
                x[i, j] = x[i, j] * 2
            T.copy(x, C)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert "thread float x[2]" in kernel.get_kernel_source()
    A, C = torch.randn(8, 8), torch.empty(8, 8)
    kernel(A, C)
    assert torch.equal(C, A * 2)
