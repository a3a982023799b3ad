"""T.transpose on the CPU and on Metal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tvmtile.language as T
from tvmtile.tileop.transpose import reference


@pytest.mark.parametrize("shape", [(16, 16), (5, 33), (1, 7), (7, 1)])
@pytest.mark.parametrize(("dtype", "out_dtype"), [("float32", "float32"), ("int8", "float16")])
def test_shapes_and_dtypes(tensors, shape, dtype, out_dtype, compiled):
    rows, columns = shape

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), C: T.Tensor((columns, rows), out_dtype)):
        with T.Kernel(1):
            tile = T.alloc_shared(shape, dtype)
            transposed = T.alloc_shared((columns, rows), out_dtype)
            T.copy(A, tile)
            T.transpose(tile, transposed)
            T.copy(transposed, C)

    src, out = tensors(shape, dtype), torch.zeros((columns, rows), dtype=getattr(torch, out_dtype))
    compiled(main)(src, out)
    np.testing.assert_array_equal(out.numpy(), reference(src.numpy()).astype(out_dtype))


def test_tiles_over_the_edge(tensors, compiled):
    @T.prim_func
    def main(A: T.Tensor((50, 70), "float32"), C: T.Tensor((70, 50), "float32")):
        with T.Kernel(T.ceildiv(70, 16), T.ceildiv(50, 16)) as (bx, by):
            T.transpose(
                A[by * 16 : by * 16 + 16, bx * 16 : bx * 16 + 16],
                C[bx * 16 : bx * 16 + 16, by * 16 : by * 16 + 16],
            )

    src, out = tensors((50, 70), "float32"), torch.zeros(70, 50)
    compiled(main)(src, out)
    assert torch.equal(out, src.T)


def test_fragments(tensors, compiled):
    """The elements lie in other threads than those that need them."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 48), "float32"),
        C: T.Tensor((48, 32), "float16"),
        S: T.Tensor((48,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            tile = T.alloc_fragment((32, 48), "float32")
            total = T.alloc_fragment((48,), "float32")
            transposed = T.alloc_fragment((48, 32), "float16")
            T.copy(A, tile)
            T.reduce_sum(tile, total, dim=0)
            T.copy(total, S)
            T.clear(transposed)
            T.transpose(tile, transposed)
            T.copy(transposed, C)

    src, out, total = tensors((32, 48), "float32"), torch.zeros(48, 32).half(), torch.zeros(48)
    compiled(main)(src, out, total)
    assert torch.equal(out, src.T.half())
    torch.testing.assert_close(total, src.sum(0))


def test_matrix_of_a_stack(tensors, compiled):
    @T.prim_func
    def main(A: T.Tensor((3, 4, 6), "float32"), C: T.Tensor((3, 6, 4), "float32")):
        with T.Kernel(3) as bx:
            T.transpose(A[bx, 0:4, 0:6], C[bx, 0:6, 0:4])

    src, out = tensors((3, 4, 6), "float32"), torch.zeros(3, 6, 4)
    compiled(main)(src, out)
    assert torch.equal(out, src.mT)


@pytest.mark.parametrize(
    ("src_shape", "dst_shape"),
    [
        ((2, 3, 4), (2, 4, 3)),
        ((2, 3, 1, 5), (2, 3, 5, 1)),
        ((1, 2, 3, 4), (2, 4, 3)),
        ((3, 4), (1, 1, 4, 3)),
    ],
)
def test_several_matrices(tensors, src_shape, dst_shape, compiled):
    @T.prim_func
    def main(A: T.Tensor(src_shape, "float32"), C: T.Tensor(dst_shape, "float32")):
        with T.Kernel(1):
            T.transpose(A, C)

    src = tensors(src_shape, "float32")
    result = compiled(main, out_idx=-1)(src)
    np.testing.assert_array_equal(result.numpy(), reference(src.numpy()).reshape(dst_shape))
