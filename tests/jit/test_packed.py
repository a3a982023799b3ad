"""Tensors of floats of 4 bits in calls: what may be given, what is returned, and what is refused."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

FLOAT4 = "float4_e2m1fn"
PAIRS = torch.float4_e2m1fn_x2
M, N = T.dynamic("M, N")


@T.prim_func
def negate(A: T.Tensor((M, N), FLOAT4), X: T.Tensor((N,), "float32"), B: T.Tensor((M, N), FLOAT4)):
    with T.Kernel(M, threads=32) as bx:
        for j in T.Parallel(N):
            B[bx, j] = T.if_then_else(X[j] > 0, A[bx, j], -A[bx, j])


@pytest.fixture(scope="module")
def kernel():
    return tvmtile.compile(negate, out_idx=2)


@pytest.mark.parametrize("dtype", [PAIRS, torch.int8, torch.uint8])
def test_pairs_are_given_and_returned(kernel, dtype):
    """Every element in the upper half of its byte gets another sign; extents count elements."""
    pairs = torch.randint(256, (5, 12), dtype=torch.uint8)
    x, given = torch.ones(24) - torch.arange(24) % 2 * 2, torch.zeros_like(pairs)
    result = kernel(pairs.view(dtype), x)
    assert result.dtype == PAIRS
    kernel(pairs.view(dtype), x, given.view(PAIRS))
    for bytes_ in (
        result.view(torch.uint8),
        given,
        torch.from_numpy(kernel(pairs.numpy(), x.numpy())),
    ):
        assert torch.equal(bytes_, pairs ^ 0x80)


@pytest.mark.parametrize("dtype", [PAIRS, torch.int8])
def test_constants_of_an_eager_kernel_count_elements(dtype):
    @tvmtile.jit
    def widened(A):
        M, N, S = T.const("M, N, S")
        A: T.StridedTensor((M, N), (S, 1), FLOAT4)
        B = T.empty((M, N), "float32")
        with T.Kernel(M, threads=32) as bx:
            for j in T.Parallel(N):
                B[bx, j] = A[bx, j]
        return B

    pairs = torch.full((6, 8), 0x21, dtype=torch.uint8)[::2]
    expected = torch.tensor([0.5, 1.0]).repeat(3, 8)
    assert torch.equal(widened(pairs.view(dtype)), expected)


def test_the_profiler_makes_pairs(kernel):
    a, _ = kernel.get_profiler().inputs(dynamic_symbolic_constraints={"M": 3, "N": 10})
    assert (a.dtype, tuple(a.shape)) == (PAIRS, (3, 5))
