"""T.fill and T.clear on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.tileop.fill import reference


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", 1.5),
        ("float16", -2),
        ("bfloat16", 0.1),
        ("float64", 0.1),
        ("int8", -128),
        ("uint8", 255),
        ("int64", 2**40),
        ("bool", True),
    ],
)
@pytest.mark.parametrize("shape", [(7, 33), (1, 1), (64,)])
def test_whole_tiles(dtype, value, shape):
    @T.prim_func
    def main(C: T.Tensor(shape, dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment(shape, dtype)
            T.fill(tile, value)
            T.copy(tile, C)

    out = torch.zeros(shape, dtype=getattr(torch, dtype))
    expected = torch.full(shape, value, dtype=out.dtype)
    tvmtile.compile(main)(out)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_infinities(dtype):
    @T.prim_func
    def main(C: T.Tensor((2, 5), dtype)):
        with T.Kernel(1):
            T.fill(C[0, 0:5], -T.infinity(dtype))
            T.fill(C[1, 0:5], T.infinity(dtype))

    out = torch.zeros(2, 5, dtype=getattr(torch, dtype))
    tvmtile.compile(main)(out)
    assert out[:, 0].tolist() == [-float("inf"), float("inf")]
    assert torch.equal(out, out[:, :1].expand(2, 5))


def test_region_element_and_clear():
    @T.prim_func
    def main(C: T.Tensor((6, 9), "float32")):
        with T.Kernel(1, threads=1):
            tile = T.alloc_shared((6, 9), "float32")
            T.fill(tile, 1)
            T.fill(tile[1:4, 2:7], 2)
            T.fill(tile[5, 8], 3)
            T.clear(tile[2:3, :])
            T.copy(tile, C)

    out = torch.full((6, 9), 9.0)
    expected = reference(np.empty((6, 9)), 1)
    expected[1:4, 2:7], expected[5, 8], expected[2:3] = 2, 3, 0
    tvmtile.compile(main)(out)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_value_of_the_running_kernel_is_converted():
    @T.prim_func
    def main(A: T.Tensor((3,), "float32"), C: T.Tensor((3, 40), "int32")):
        with T.Kernel(3) as bx:
            T.fill(C[bx, 0:40], A[bx] * 2 + bx)

    src, out = torch.tensor([1.25, -3.75, 100.0]), torch.zeros(3, 40, dtype=torch.int32)
    tvmtile.compile(main)(src, out)
    assert torch.equal(out, torch.tensor([[2], [-6], [202]]).expand(3, 40).int())


def test_tile_over_the_edge_of_a_tensor():
    @T.prim_func
    def main(C: T.Tensor((50, 30), "float32")):
        with T.Kernel(T.ceildiv(30, 16), T.ceildiv(50, 16)) as (bx, by):
            T.fill(C[by * 16 : by * 16 + 16, bx * 16 : bx * 16 + 16], 1 + by)

    storage = torch.zeros(60, 30)
    tvmtile.compile(main)(storage[:50])
    assert storage[:, 0].tolist() == [1] * 16 + [2] * 16 + [3] * 16 + [4] * 2 + [0] * 10
    assert torch.equal(storage, storage[:, :1].expand(60, 30))
