"""Row by row on Metal: softmax, layer norm, rms norm, and the reductions that they are made of."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, random

# Rows of a block, its threads, columns: of one simdgroup or several, which divide them or not.
SHAPES = [(8, 128, 256), (1, 128, 1000), (4, 64, 100), (16, 256, 64), (3, 96, 257), (2, 32, 7)]


def softmax(M, N, block_M, threads, dtype):
    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            row_max = T.alloc_fragment((block_M,), "float32")
            row_sum = T.alloc_fragment((block_M,), "float32")
            T.copy(A[bx * block_M, 0], x)
            T.reduce_max(x, row_max, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.exp(x[i, j] - row_max[i])
            T.reduce_sum(x, row_sum, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] / row_sum[i]
            T.copy(x, C[bx * block_M, 0])

    return main


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("block_M", "threads", "N"), SHAPES)
def test_softmax(compiled, block_M, threads, N, dtype):
    M = block_M + 2
    a = random(M, N, dtype=dtype)
    c = torch.empty_like(a)
    compiled(softmax(M, N, block_M, threads, dtype))(a, c)
    assert_close(c, torch.softmax(a.double(), 1))


def layer_norm(M, N, block_M, threads):
    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float16"),
        weight: T.Tensor((N,), "float32"),
        bias: T.Tensor((N,), "float32"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            square = T.alloc_fragment((block_M, N), "float32")
            mean = T.alloc_fragment((block_M,), "float32")
            variance = T.alloc_fragment((block_M,), "float32")
            T.copy(A[bx * block_M, 0], x)
            T.reduce_sum(x, mean, dim=1)
            for i in T.Parallel(block_M):
                mean[i] /= N
            for i, j in T.Parallel(block_M, N):
                square[i, j] = (x[i, j] - mean[i]) * (x[i, j] - mean[i])
            T.reduce_sum(square, variance, dim=1)
            for i in T.Parallel(block_M):
                variance[i] = T.rsqrt(variance[i] / N + 1e-5)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = (x[i, j] - mean[i]) * variance[i] * weight[j] + bias[j]
            T.copy(x, C[bx * block_M, 0])

    return main


@pytest.mark.parametrize(("block_M", "threads", "N"), SHAPES)
def test_layer_norm(compiled, block_M, threads, N):
    M = 2 * block_M + 1
    a, weight, bias = random(M, N, dtype="float16"), random(N), random(N)
    c = torch.empty_like(a)
    compiled(layer_norm(M, N, block_M, threads))(a, weight, bias, c)
    expected = torch.layer_norm(a.double(), (N,), weight.double(), bias.double())
    assert_close(c, expected)


@pytest.mark.parametrize(("block_M", "threads", "N"), SHAPES)
def test_rms_norm_through_shared_memory(compiled, block_M, threads, N):
    M = 2 * block_M

    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            shared = T.alloc_shared((block_M, N), "float32")
            x = T.alloc_fragment((block_M, N), "float32")
            square = T.alloc_fragment((block_M, N), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            T.copy(A[bx * block_M : (bx + 1) * block_M, :], shared)
            T.copy(shared, x)
            for i, j in T.Parallel(block_M, N):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, scale, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / N + 1e-6)
            for i, j in T.Parallel(block_M, N):
                shared[i, j] *= scale[i]
            T.copy(shared, C[bx * block_M : (bx + 1) * block_M, :])

    a = random(M, N)
    c = torch.empty_like(a)
    compiled(main)(a, c)
    wide = a.double()
    assert_close(c, wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("threads", [32, 256])
def test_largest_of_rows_that_are_all_negative(compiled, threads):
    """A row over several simdgroups must not meet a zero of a thread that has no element."""

    @T.prim_func
    def main(
        A: T.Tensor((3, 300), "float32"),
        largest: T.Tensor((3,), "float32"),
        smallest: T.Tensor((3,), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((3, 300), "float32")
            high = T.alloc_fragment((3,), "float32")
            low = T.alloc_fragment((3,), "float32")
            T.copy(A, x)
            T.reduce_max(x, high, dim=1)
            for i, j in T.Parallel(3, 300):
                x[i, j] = -x[i, j]
            T.reduce_min(x, low, dim=1)
            T.copy(high, largest)
            T.copy(low, smallest)

    a = -1 - torch.rand(3, 300)
    largest, smallest = torch.empty(3), torch.empty(3)
    compiled(main)(a, largest, smallest)
    assert torch.equal(largest, a.amax(1))
    assert torch.equal(smallest, -a.amax(1))


REDUCTIONS = {
    "sum": lambda x, dim: x.sum(dim),
    "max": lambda x, dim: x.amax(dim),
    "min": lambda x, dim: x.amin(dim),
    "abssum": lambda x, dim: x.abs().sum(dim),
    "absmax": lambda x, dim: x.abs().amax(dim),
}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_of_three_axes(compiled, kind, dim):
    shape = (5, 6, 20)
    left = [extent for axis, extent in enumerate(shape) if axis != dim]
    reduce = getattr(T, f"reduce_{kind}")

    @T.prim_func
    def main(A: T.Tensor(shape, "float32"), C: T.Tensor(left, "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment(shape, "float32")
            result = T.alloc_fragment(left, "float32")
            T.copy(A, x)
            reduce(x, result, dim=dim)
            T.copy(result, C)

    a, c = random(*shape), torch.empty(left)
    compiled(main)(a, c)
    assert_close(c, REDUCTIONS[kind](a.double(), dim))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8"])
def test_sums_of_integers(compiled, dtype):
    @T.prim_func
    def main(A: T.Tensor((9, 130), dtype), C: T.Tensor((9,), "int32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((9, 130), dtype)
            result = T.alloc_fragment((9,), "int32")
            T.copy(A, x)
            T.reduce_sum(x, result, dim=1)
            T.copy(result, C)

    a, c = random(9, 130, dtype=dtype), torch.empty(9, dtype=torch.int32)
    compiled(main)(a, c)
    assert_close(c, a.long().sum(1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("M", "N", "dim"), [(4, 128, 1), (3, 100, 1), (128, 4, 0), (33, 7, 0)])
def test_cumulative_sum(compiled, M, N, dim, reverse):
    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((M, N), "float32")
            sums = T.alloc_fragment((M, N), "float32")
            T.copy(A, x)
            T.cumsum(x, sums, dim=dim, reverse=reverse)
            T.copy(sums, C)

    a, c = random(M, N), torch.empty(M, N)
    compiled(main)(a, c)
    wide = a.double().flip(dim) if reverse else a.double()
    expected = wide.cumsum(dim)
    assert_close(c, expected.flip(dim) if reverse else expected)
