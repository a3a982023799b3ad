"""CheckBounds: elements outside a kernel's own tiles."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import OutOfBounds


def test_a_loop_longer_than_the_tile_is_refused():
    @T.prim_func
    def main(A: T.Tensor((2,), "float32")):
        with T.Kernel(1) as _:
            tile = T.alloc_fragment((2,), "float32")
            for i in T.Parallel(64):
                tile[i] = A[0]

    with pytest.raises(
        OutOfBounds, match=r"tile\[2\] float32 has 2 .* axis 0.*`i` reaches 63"
    ) as caught:
        tvmtile.compile(main)
    assert caught.value.location.text == "tile[i] = A[0]"


def test_a_load_before_the_tile_is_refused():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1) as _:
            tile = T.alloc_shared((4, 8), "float32")
            T.clear(tile)
            for i in T.serial(8):
                row = i - 1
                A[i] = tile[row, i] if i > 8 else tile[row + 1 - 1, i]

    @T.prim_func
    def plain(A: T.Tensor((8,), "float32")):
        with T.Kernel(1) as _:
            tile = T.alloc_shared((4, 8), "float32")
            T.clear(tile)
            for i in T.serial(4):
                row = i - 1
                A[i] = tile[row, i]

    tvmtile.compile(main)  # under a condition: taken to be right
    with pytest.raises(OutOfBounds, match="axis 0, and the index `row` reaches -1"):
        tvmtile.compile(plain)


def test_conditions_and_loops_that_may_not_run_are_taken_to_be_right():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), n: T.int32, B: T.Tensor((64,), "float32")):
        with T.Kernel(1) as _:
            tile = T.alloc_shared((32,), "float32")
            for i in T.Parallel(64):
                if i < 32:
                    tile[i] = A[i]
            for i in T.Parallel(64):
                B[i] = T.if_then_else(i < 32, tile[i], 0)
            for k in T.serial(n):
                for i in T.serial(64):
                    tile[k * 64 + i] = 0

    a = torch.randn(64)
    b = torch.empty(64)
    tvmtile.compile(main)(a, 0, b)
    assert torch.equal(b, torch.cat([a[:32], torch.zeros(32)]))
