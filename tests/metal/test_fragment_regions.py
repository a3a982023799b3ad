"""Regions of fragments: each element is touched by the threads that hold it, a single one too."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T


@pytest.mark.parametrize(("first", "second"), [(4, 14), (4, 4), (0, 0), (15, 0)])
@pytest.mark.parametrize("count", [1, 2])
def test_a_part_of_a_fragment_in_another_one(first, second, count):
    first, second = min(first, 16 - count), min(second, 16 - count)

    @T.prim_func
    def main(A: T.Tensor((16,), "float32"), B: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((16,), "float32")
            b = T.alloc_fragment((16,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(a[first : first + count], b[second : second + count])
            T.copy(b, B)

    a, b = torch.arange(16.0) + 100, torch.arange(16.0)
    expected = b.clone()
    expected[second : second + count] = a[first : first + count]
    tvmtile.compile(main, target="metal", execution_backend="emulator")(a, b)
    assert torch.equal(b, expected)


def test_an_element_of_a_fragment_is_filled_added_to_and_stored():
    @T.prim_func
    def main(A: T.Tensor((2, 16), "float32"), B: T.Tensor((3,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((2, 16), "float32")
            T.copy(A, a)
            T.copy(a[1:2, 4:5], B[0:1])
            T.fill(a[1:2, 4:5], 9)
            T.copy(a[1:2, 4:5], B[1:2])
            for i in T.Parallel(1):
                a[1, i + 5] += 0.5
            T.copy(a[1:2, 5:6], B[2:3])
            T.copy(a, A)

    a, b = torch.arange(32.0).view(2, 16), torch.zeros(3)
    expected = a.clone()
    expected[1, 4], expected[1, 5] = 9, 21.5
    tvmtile.compile(main, target="metal", execution_backend="emulator")(a, b)
    assert b.tolist() == [20, 9, 21.5]
    assert torch.equal(a, expected)
