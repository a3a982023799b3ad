"""Layouts of fragments that a kernel fixes by hand."""

import numpy as np
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


@pytest.mark.parametrize(
    ("shape", "vector"),
    [((128, 128), 8), ((16, 64), 1), ((2, 4, 64), 8), ((16, 96), 1), ((3, 5, 64), 2)],
)
def test_elements_that_are_dealt_out_in_the_order_of_memory(shape, vector):
    """The thread and the register are written on the flat index: every element is where they say."""
    threads = 32

    def place(*indices):
        flat = 0
        for index, extent in zip(indices, shape, strict=True):
            flat = flat * extent + index
        return flat // vector % threads, flat // vector // threads * vector + flat % vector

    layout = read_user_layout(tile(*shape), T.Fragment(shape, forward_fn=place).index_map, threads)
    for indices in np.ndindex(*shape):
        found = {"tx": 0, "m": 0}
        for index, digits in zip(indices, layout.axes, strict=True):
            for digit in reversed(digits):
                index, value = divmod(index, digit.extent)
                found[digit.axis] += value * digit.stride
        assert tuple(found.values()) == place(*indices)


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


@pytest.mark.parametrize("first", [0, 64, 96])
def test_a_tile_of_some_of_the_threads_is_in_the_others_too(first):
    """`first` is in no thread of the digits: 16 threads have the elements, and all 128 copies."""
    user_layout = T.Fragment((8, 8), forward_fn=lambda i, j: (first + i * 2 + j // 4, j % 4))
    layout = read_user_layout(tile(8, 8), user_layout.index_map, 128)
    assert layout.axes == ((Digit(8, "tx", 2),), (Digit(2, "tx", 1), Digit(4, "m", 1)))
    assert layout.replicas == [Digit(8, "tx", 16)]


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
