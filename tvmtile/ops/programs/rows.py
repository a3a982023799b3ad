"""Softmax and norms of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm import tirx

import tvmtile.language as T
from tvmtile.frontend.dtypes import as_dtype
from tvmtile.ops.configurations import rows_configuration

__all__ = ["layer_norm", "rms_norm", "softmax"]


def softmax(
    M: Any, N: int, dtype: Any, *, target: Any, configuration: Mapping[str, int] | None = None
) -> tirx.PrimFunc:
    """The tile program of the softmax of each row; its parameters are X and the result.

    Parameters
    ----------
    M : int or Expr
        Rows; a `T.dynamic` variable stands for an extent that the arguments of a call bind.
    N : int
        Elements of a row.
    dtype : dtype
        Of both tensors; it is computed in float32.
    target : str, dict or Target
        Where it runs; it chooses the configuration.
    configuration : mapping, optional
        Values for `block_M` and `threads`, in place of the table's.
    """
    dtype, log2e = as_dtype(dtype), math.log2(math.e)
    c = {**rows_configuration(target, M, N, str(dtype)), **(configuration or {})}
    block_M = c["block_M"]

    @T.prim_func
    def softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=c["threads"]) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            row_max = T.alloc_fragment((block_M,), "float32")
            row_sum = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M, 0], x)
            T.reduce_max(x, row_max, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.exp2((x[i, j] - row_max[i]) * log2e)
            T.reduce_sum(x, row_sum, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] /= row_sum[i]
            T.copy(x, Y[bx * block_M, 0])

    return softmax


def rms_norm(
    M: Any,
    N: int,
    dtype: Any,
    *,
    target: Any,
    epsilon: float = 1e-6,
    configuration: Mapping[str, int] | None = None,
) -> tirx.PrimFunc:
    """The tile program of rows over the root of their mean square, times a weight for each column.

    Its parameters are X, the weight, and the result.

    Parameters
    ----------
    M, N, dtype, target, configuration
        As of `softmax`.
    epsilon : float
        What is added to the mean square.
    """
    dtype = as_dtype(dtype)
    c = {**rows_configuration(target, M, N, str(dtype)), **(configuration or {})}
    block_M = c["block_M"]

    @T.prim_func
    def rms_norm(
        X: T.Tensor((M, N), dtype), weight: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=c["threads"]) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            squares = T.alloc_fragment((block_M, N), "float32")
            factor = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M, 0], x)
            for i, j in T.Parallel(block_M, N):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, factor, dim=1)
            for i in T.Parallel(block_M):
                factor[i] = T.rsqrt(factor[i] / N + epsilon)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * factor[i] * weight[j]
            T.copy(x, Y[bx * block_M, 0])

    return rms_norm


def layer_norm(
    M: Any,
    N: int,
    dtype: Any,
    *,
    target: Any,
    epsilon: float = 1e-5,
    configuration: Mapping[str, int] | None = None,
) -> tirx.PrimFunc:
    """The tile program of rows less their mean over their deviation, scaled and shifted a column.

    Its parameters are X, the weight, the bias, and the result. The variance is the mean of
    squared deviations: subtracting the squared mean from the mean square loses all digits where the
    mean is large.

    Parameters
    ----------
    M, N, dtype, target, configuration
        As of `softmax`.
    epsilon : float
        What is added to the variance.
    """
    dtype = as_dtype(dtype)
    c = {**rows_configuration(target, M, N, str(dtype)), **(configuration or {})}
    block_M = c["block_M"]

    @T.prim_func
    def layer_norm(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        bias: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=c["threads"]) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            squares = T.alloc_fragment((block_M, N), "float32")
            mean = T.alloc_fragment((block_M,), "float32")
            variance = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M, 0], x)
            T.reduce_sum(x, mean, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] - mean[i] / N
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, variance, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * T.rsqrt(variance[i] / N + epsilon) * weight[j] + bias[j]
            T.copy(x, Y[bx * block_M, 0])

    return layer_norm
