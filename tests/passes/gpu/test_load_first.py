"""LoadFirst: copies by elements load all that they hold before they store."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable

CUDA = {"kind": "cuda", "arch": "sm_80"}


def doubled(rows, columns, block, threads):
    """A tile through shared memory, with a view of it."""

    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float16"), C: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(columns, block), T.ceildiv(rows, 32), threads=threads) as (bx, by):
            tile = T.alloc_shared((32, block), "float16")
            flat = T.view(tile, (32 * block,))
            own = T.alloc_fragment((32, block), "float16")
            T.copy(A[by * 32, bx * block], tile)
            for i, j in T.Parallel(32, block):
                own[i, j] = flat[i * block + j] * 2
            T.copy(own, C[by * 32, bx * block])

    return main


def lengths_of_arrays(source):
    """Of those that a thread loads elements of the tensor into."""
    return {int(count) for count in re.findall(r"half tile_vector_ptr\w*\[(\d+)\]", source)}


@pytest.mark.parametrize("shape", [(70, 45), (1, 7), (64, 129)])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("block", "threads"), [(32, 32), (64, 32), (32, 128), (96, 32)])
def test_rows_that_begin_anywhere_are_copied_right(shape, known, block, threads):
    extents = shape if known else T.dynamic("m, n")
    kernel = runnable(doubled(*extents, block, threads), CUDA)
    a, c = torch.randn(shape).half(), torch.zeros(shape).half()
    kernel(a, c)
    assert torch.equal(c, a * 2)


@pytest.mark.parametrize(("block", "threads", "held"), [(32, 32, 32), (32, 128, 8), (64, 32, 32)])
def test_at_most_32_elements_are_loaded_at_once(block, threads, held):
    kernel = tvmtile.compile(doubled(*T.dynamic("m, n"), block, threads), target=CUDA)
    assert lengths_of_arrays(kernel.get_kernel_source()) == {held}
