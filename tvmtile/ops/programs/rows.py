"""Softmax and norms of rows: held whole by a block, or visited in parts where they are too wide."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

import tvmtile.language as T
from tvmtile.ir.combiners import accumulator_dtype
from tvmtile.ops.configurations import rows_configuration
from tvmtile.ops.programs.online_softmax import OnlineSoftmax
from tvmtile.target import TargetLike

__all__ = ["layer_norm", "rms_norm", "softmax"]


def softmax(
    M: T.dtypes.Extent,
    N: int,
    dtype: T.dtypes.DTypeLike,
    *,
    target: TargetLike,
    configuration: Mapping[str, int] | None = None,
) -> tirx.PrimFunc:
    """The tile program of the softmax of each row; its parameters are X and the result.

    Parameters
    ----------
    M : int or Expr
        Rows; a `T.dynamic` variable stands for an extent that the arguments of a call bind.
    N : int
        Elements of a row.
    dtype : dtype
        Of both tensors; it is computed in float32, for float64 in float64.
    target : str, dict or Target
        Where it runs; it chooses the configuration.
    configuration : mapping, optional
        Values for `block_M`, `block_N` and `threads`, in place of the table's; a block holds parts of
        `block_N` elements of a row, all of it where `block_N` is 0.
    """
    dtype = T.as_dtype(dtype)
    accum = accumulator_dtype(dtype, dtype)
    block_M, block_N, threads = _blocks(target, M, N, dtype, configuration)
    parts = -(-N // block_N)

    @T.prim_func
    def softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, block_N), accum)
            weights = OnlineSoftmax(block_M, dtype=accum)
            for k in T.serial(parts):
                T.copy(X[bx * block_M, k * block_N], x)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(k * block_N + j < N, x[i, j], -T.infinity(accum))
                weights.weigh(x)
            for i in T.Parallel(block_M):
                # A row of -infinity is NaN, as torch has it.
                weights.total[i] = 1 / weights.total[i]
            for k in T.serial(parts):
                if parts > 1:
                    T.copy(X[bx * block_M, k * block_N], x)
                    weights.exponentiate(x)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] *= weights.total[i]
                T.copy(x, Y[bx * block_M, k * block_N])

    return softmax


def rms_norm(
    M: T.dtypes.Extent,
    N: int,
    dtype: T.dtypes.DTypeLike,
    *,
    target: TargetLike,
    epsilon: float = 1e-6,
    statistics: bool = False,
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
    statistics : bool
        One more result of shape (M,), of the dtype of sums: what each row is multiplied by, which the
        gradient asks for.
    """
    dtype = T.as_dtype(dtype)
    accum = accumulator_dtype(dtype, dtype)
    block_M, block_N, threads = _blocks(target, M, N, dtype, configuration)
    parts = -(-N // block_N)

    @T.macro
    def compute(X, weight, Y, factors):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, block_N), accum)
            squares = T.alloc_fragment((block_M, block_N), accum)
            factor = T.alloc_fragment((block_M,), accum)
            T.fill(factor, 0)
            for k in T.serial(parts):
                T.copy(X[bx * block_M, k * block_N], x)
                for i, j in T.Parallel(block_M, block_N):
                    squares[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(squares, factor, dim=1, clear=False)
            for i in T.Parallel(block_M):
                factor[i] = T.rsqrt(factor[i] / N + epsilon)
            for k in T.serial(parts):
                _copy_part(X, x, bx * block_M, k * block_N, parts)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = x[i, j] * factor[i] * weight[k * block_N + j]
                T.copy(x, Y[bx * block_M, k * block_N])
            if statistics:
                T.copy(factor, factors[bx * block_M])

    rows, columns = T.Tensor((M, N), dtype), T.Tensor((N,), dtype)
    if statistics:

        @T.prim_func
        def rms_norm_statistics(X: rows, weight: columns, Y: rows, factors: T.Tensor((M,), accum)):
            compute(X, weight, Y, factors)

        return rms_norm_statistics

    @T.prim_func
    def rms_norm(X: rows, weight: columns, Y: rows):
        compute(X, weight, Y, None)

    return rms_norm


def layer_norm(
    M: T.dtypes.Extent,
    N: int,
    dtype: T.dtypes.DTypeLike,
    *,
    target: TargetLike,
    epsilon: float = 1e-5,
    statistics: bool = False,
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
    statistics : bool
        Two more results of shape (M,), of the dtype of sums: the mean of each row, and what it is
        multiplied by, which the gradients ask for.
    """
    dtype = T.as_dtype(dtype)
    accum = accumulator_dtype(dtype, dtype)
    block_M, block_N, threads = _blocks(target, M, N, dtype, configuration)
    parts = -(-N // block_N)

    @T.macro
    def compute(X, weight, bias, Y, means, factors):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, block_N), accum)
            squares = T.alloc_fragment((block_M, block_N), accum)
            mean = T.alloc_fragment((block_M,), accum)
            factor = T.alloc_fragment((block_M,), accum)
            T.fill(mean, 0)
            T.fill(factor, 0)
            for k in T.serial(parts):
                T.copy(X[bx * block_M, k * block_N], x)
                T.reduce_sum(x, mean, dim=1, clear=False)
            for i in T.Parallel(block_M):
                mean[i] /= N
            for k in T.serial(parts):
                _copy_part(X, x, bx * block_M, k * block_N, parts)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(k * block_N + j < N, x[i, j] - mean[i], 0)
                    squares[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(squares, factor, dim=1, clear=False)
            for i in T.Parallel(block_M):
                factor[i] = T.rsqrt(factor[i] / N + epsilon)
            for k in T.serial(parts):
                if parts > 1:
                    T.copy(X[bx * block_M, k * block_N], x)
                    for i, j in T.Parallel(block_M, block_N):
                        x[i, j] -= mean[i]
                for i, j in T.Parallel(block_M, block_N):
                    column = k * block_N + j
                    x[i, j] = x[i, j] * factor[i] * weight[column] + bias[column]
                T.copy(x, Y[bx * block_M, k * block_N])
            if statistics:
                T.copy(mean, means[bx * block_M])
                T.copy(factor, factors[bx * block_M])

    rows, columns = T.Tensor((M, N), dtype), T.Tensor((N,), dtype)
    if statistics:

        @T.prim_func
        def layer_norm_statistics(
            X: rows,
            weight: columns,
            bias: columns,
            Y: rows,
            means: T.Tensor((M,), accum),
            factors: T.Tensor((M,), accum),
        ):
            compute(X, weight, bias, Y, means, factors)

        return layer_norm_statistics

    @T.prim_func
    def layer_norm(X: rows, weight: columns, bias: columns, Y: rows):
        compute(X, weight, bias, Y, None, None)

    return layer_norm


@T.macro
def _copy_part(X, x, row, column, parts):
    """Copy a part of rows that was visited before, where a block does not hold all of them."""
    if parts > 1:
        T.copy(X[row, column], x)


def _blocks(
    target: TargetLike,
    M: T.dtypes.Extent,
    N: int,
    dtype: T.dtypes.DTypeLike,
    given: Mapping[str, int] | None,
) -> tuple[int, int, int]:
    c = {**rows_configuration(target, M, N, str(dtype)), **(given or {})}
    return c["block_M"], c["block_N"] or N, c["threads"]
