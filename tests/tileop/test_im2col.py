"""T.im2col on the CPU and on Metal, and a convolution made with it."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.gpu.machine import precision_of_products
from tests.metal.programs import assert_close
from tvmtile.tileop.im2col import reference


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "dilation", "pad"),
    [
        ((2, 7, 9, 5), 3, 1, 1, 1),
        ((1, 8, 8, 4), 3, 2, 1, 0),
        ((2, 9, 7, 3), 2, 1, 2, 2),
        ((1, 5, 5, 1), 1, 3, 1, 0),
    ],
)
def test_all_tiles(tensors, shape, kernel, stride, dilation, pad, compiled):
    """Tiles of 16 x 8, beyond the last row and column zero."""
    src = tensors(shape, "float32")
    expected = torch.tensor(reference(src.numpy(), kernel, stride, dilation, pad))
    rows, columns = expected.shape
    grid = T.ceildiv(columns, 8), T.ceildiv(rows, 16)

    @T.prim_func
    def main(A: T.Tensor(shape, "float32"), C: T.Tensor((grid[1] * 16, grid[0] * 8), "float32")):
        with T.Kernel(*grid) as (bx, by):
            tile = T.alloc_shared((16, 8), "float32")
            T.im2col(A, tile, by, bx, kernel, stride, dilation, pad)
            T.copy(tile, C[by * 16, bx * 8])

    out = torch.full((grid[1] * 16, grid[0] * 8), 7.0)
    compiled(main)(src, out)
    assert torch.equal(out[:rows, :columns], expected)
    assert not out[rows:].any()
    assert not out[:, columns:].any()


def test_convolution(tensors, compiled):
    N, H, W, C, F, K = 2, 10, 12, 16, 24, 3

    @T.prim_func
    def main(
        data: T.Tensor((N, H, W, C), "float32"),
        weight: T.Tensor((K, K, C, F), "float32"),
        out: T.Tensor((N, H, W, F), "float32"),
    ):
        with T.Kernel(T.ceildiv(F, 16), T.ceildiv(N * H * W, 32)) as (bx, by):
            a = T.alloc_shared((32, 16), "float32")
            b = T.alloc_shared((16, 16), "float32")
            c = T.alloc_fragment((32, 16), "float32")
            weight_flat = T.Tensor((K * K * C, F), "float32", weight.data)
            out_flat = T.Tensor((N * H * W, F), "float32", out.data)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K * K * C, 16), num_stages=2):
                T.c2d_im2col(data, a, by, k, K, 1, 1, 1)
                T.copy(weight_flat[k * 16, bx * 16], b)
                T.gemm(a, b, c)
            T.copy(c, out_flat[by * 32, bx * 16])

    data, weight = tensors((N, H, W, C), "float32"), tensors((K, K, C, F), "float32")
    out = torch.zeros(N, H, W, F)
    compiled(main)(data, weight, out)
    expected = torch.nn.functional.conv2d(
        data.double().permute(0, 3, 1, 2), weight.double().permute(3, 2, 0, 1), padding=1
    )
    assert_close(out, expected.permute(0, 2, 3, 1), precision_of_products("float32", compiled))
