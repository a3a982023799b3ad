"""Row by row: softmax, layer norm, rms norm. Rows of one warp or several, which divide them or not."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program
from tests.programs.text import Name

SHAPES = {
    "block": [4, 8, 1, 16, 3, 2],
    "threads": [64, 128, 256, 96, 32],
    "N": [100, 256, 1000, 64, 257, 7],
}


def _small(p):
    return p.block * p.N <= 32 * p.threads


@program(
    name="softmax_of_any_number_of_rows",
    tags={"rows"},
    parameters={"M": [Name("M")], "N": [96], "block": [4], "threads": [64], "dtype": ["float16"]},
    sizes=[{"M": 11}, {"M": 1}, {"M": 8}],
    fast=["metal"],
)
@program(
    tags={"rows"},
    parameters={"M": [10, 33, 5], **SHAPES, "dtype": ["float16", "float32", "bfloat16"]},
    examples=[{}, {"M": 5, "N": 1000, "block": 1, "threads": 128}],
    where=_small,
    drawn=4,
    fast=["metal", "sm_80"],
)
def softmax(A: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
    with T.Kernel(T.ceildiv(M, block), threads=threads) as bx:
        x = T.alloc_fragment((block, N), "float32")
        row_max, row_sum = (
            T.alloc_fragment((block,), "float32"),
            T.alloc_fragment((block,), "float32"),
        )
        T.copy(A[bx * block, 0], x)
        T.reduce_max(x, row_max, dim=1)
        for i, j in T.Parallel(block, N):
            x[i, j] = T.exp(x[i, j] - row_max[i])
        T.reduce_sum(x, row_sum, dim=1)
        for i, j in T.Parallel(block, N):
            x[i, j] /= row_sum[i]
        T.copy(x, C[bx * block, 0])


@program(tags={"rows"}, parameters={"M": [9, 17], **SHAPES}, where=_small, drawn=4, fast=["metal"])
def layer_norm(
    A: T.Tensor((M, N), "float16"),
    weight: T.Tensor((N,), "float32"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float16"),
):
    with T.Kernel(T.ceildiv(M, block), threads=threads) as bx:
        x, square = T.alloc_fragment((block, N), "float32"), T.alloc_fragment((block, N), "float32")
        mean, variance = (
            T.alloc_fragment((block,), "float32"),
            T.alloc_fragment((block,), "float32"),
        )
        T.copy(A[bx * block, 0], x)
        T.reduce_sum(x, mean, dim=1)
        for i in T.Parallel(block):
            mean[i] /= N
        for i, j in T.Parallel(block, N):
            square[i, j] = (x[i, j] - mean[i]) * (x[i, j] - mean[i])
        T.reduce_sum(square, variance, dim=1)
        for i in T.Parallel(block):
            variance[i] = T.rsqrt(variance[i] / N + 1e-5)
        for i, j in T.Parallel(block, N):
            x[i, j] = (x[i, j] - mean[i]) * variance[i] * weight[j] + bias[j]
        T.copy(x, C[bx * block, 0])


@program(tags={"rows"}, parameters={"M": [6, 16], **SHAPES}, where=_small, drawn=4, fast=["metal"])
def rms_norm_through_shared_memory(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(M, block), threads=threads) as bx:
        shared = T.alloc_shared((block, N), "float32")
        x, square = T.alloc_fragment((block, N), "float32"), T.alloc_fragment((block, N), "float32")
        scale = T.alloc_fragment((block,), "float32")
        T.copy(A[bx * block : (bx + 1) * block, :], shared)
        T.copy(shared, x)
        for i, j in T.Parallel(block, N):
            square[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(square, scale, dim=1)
        for i in T.Parallel(block):
            scale[i] = T.rsqrt(scale[i] / N + 1e-5)
        for i, j in T.Parallel(block, N):
            shared[i, j] *= scale[i]
        T.copy(shared, C[bx * block : (bx + 1) * block, :])


@program(
    tags={"rows", "reduce"},
    parameters={"threads": [256, 32]},
    inputs={"A": lambda rng, shape: -1 - rng.random(shape)},
    fast=["metal"],
)
def largest_of_rows_that_are_all_negative(
    A: T.Tensor((3, 300), "float32"),
    largest: T.Tensor((3,), "float32"),
    smallest: T.Tensor((3,), "float32"),
):
    """A row over several simdgroups must not meet a zero of a thread that has no element."""
    with T.Kernel(1, threads=threads):
        x = T.alloc_fragment((3, 300), "float32")
        high, low = T.alloc_fragment((3,), "float32"), T.alloc_fragment((3,), "float32")
        T.copy(A, x)
        T.reduce_max(x, high, dim=1)
        for i, j in T.Parallel(3, 300):
            x[i, j] = -x[i, j]
        T.reduce_min(x, low, dim=1)
        T.copy(high, largest)
        T.copy(low, smallest)


@program(
    tags={"reduce"},
    parameters={"dim": [0, 1, 2], "kind": ["sum", "max", "min", "abssum", "absmax"]},
    fast=["metal"],
)
def reduction_of_three_axes(A: T.Tensor((5, 6, 20), "float32"), C: T.Tensor(left, "float32")):
    left = ((6, 20), (5, 20), (5, 6))[dim]
    with T.Kernel(1, threads=64):
        x, result = T.alloc_fragment((5, 6, 20), "float32"), T.alloc_fragment(left, "float32")
        T.copy(A, x)
        getattr(T, "reduce_" + kind)(x, result, dim=dim)
        T.copy(result, C)


@program(tags={"reduce"}, parameters={"dtype": ["int8", "int32", "uint32"]}, fast=["metal"])
def reduction_of_integers(A: T.Tensor((9, 130), dtype), C: T.Tensor((9,), "int32")):
    with T.Kernel(1, threads=128):
        x, result = T.alloc_fragment((9, 130), dtype), T.alloc_fragment((9,), "int32")
        T.copy(A, x)
        T.reduce_sum(x, result, dim=1)
        T.copy(result, C)


@program(
    tags={"scan"},
    parameters={
        "shape": [(3, 100), (4, 128), (128, 4), (33, 7), (300, 6)],
        "dim": [1, 0],
        "reverse": [True, False],
    },
    drawn=3,
    fast=["metal"],
)
def running_sums(A: T.Tensor(shape, "float32"), C: T.Tensor(shape, "float32")):
    with T.Kernel(1, threads=128):
        x, sums = T.alloc_shared(shape, "float32"), T.alloc_fragment(shape, "float32")
        T.copy(A, x)
        T.cumsum(x, sums, dim=dim, reverse=reverse)
        T.copy(sums, C)
