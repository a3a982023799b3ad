"""AccumulateInPlace: blocks that write the same elements have sums of their own."""

import pytest
import torch

import tvmtile
import tvmtile.language as T


@pytest.mark.full(but=1)
@pytest.mark.parametrize("apart", [16, 0])
def test_sums_of_blocks_that_overlap_have_a_tile(apart):
    @T.prim_func
    def main(
        A: T.Tensor((96, 48), "float32"),
        B: T.Tensor((48, 64), "float32"),
        C: T.Tensor((96, 64), "float32"),
    ):
        with T.Kernel(2, 5 if apart else 6) as (bx, by):
            row = by * 16 if apart else by // 2 * 32
            sums = T.alloc_fragment((32, 32), "float32")
            T.clear(sums)
            for k in T.serial(3):
                T.gemm(
                    A[row : row + 32, k * 16 : k * 16 + 16],
                    B[k * 16 : k * 16 + 16, bx * 32 : bx * 32 + 32],
                    sums,
                )
            T.copy(sums, C[row, bx * 32])

    kernel = tvmtile.compile(main, target="llvm")
    assert "%sums" in kernel.get_kernel_source()
    A, B, C = torch.randn(96, 48), torch.randn(48, 64), torch.full((96, 64), 7.0)
    kernel(A, B, C)
    torch.testing.assert_close(C, A @ B, rtol=1e-4, atol=1e-4)
