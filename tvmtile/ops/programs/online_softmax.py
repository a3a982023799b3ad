"""The softmax of rows whose scores come tile by tile: of operators, and of kernels of your own."""

from __future__ import annotations

import math
from typing import Any

import tvmtile.language as T

__all__ = ["OnlineSoftmax", "normalized_weight"]

_LOG2E = math.log2(math.e)  # exp2(_LOG2E * x) is exp(x)
_exp2 = T.__exp2  # in a class the name would be the class's own


class OnlineSoftmax:
    """Maximum and sum of the rows of scores that come tile by tile, in a kernel.

    A weight is relative to its row's largest score so far. Where a tile raises it, what was summed
    before is scaled down (M. Milakov and N. Gimelshein, Online normalizer calculation for softmax,
    2018). ::

        softmax = OnlineSoftmax(block_M, scale)
        for k in T.Pipelined(...):
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, clear_accum=True)
            softmax.weigh(scores)  # scores become weights
            T.copy(scores, weights)
            softmax.rescale(output)
            T.gemm(weights, V_shared, output)
        softmax.normalize(output)

    The difference of scores is taken before it is scaled: that of the largest is 0 and its weight 1,
    whatever its size. The first maximum is the lowest number: scores of -infinity, as masks make them,
    have the weight 0, and no finite score lies below it.

    Where `fused`, a weight is exp2 of one multiply-add, `x * c - o`, in place of a difference and a
    product. The offset `o` is `m * c`, rounded for the row's largest score `m`: all weights of the row
    have its error as a factor, which their sum has, too. Where that factor might be large (`_EXACT`),
    weights of all but the largest score vanish; `c` is then a power of 2, for which `o` is exact.

    Parameters
    ----------
    rows : int
        Of a tile of scores.
    scale : float
        Positive: what scores are multiplied by.
    dtype : dtype
        Of scores and sums: float32, or float64.
    fused : bool
        For targets with an instruction for `T.ieee_fmaf`, as NVIDIA's GPUs have it. It holds for
        float32 and a `scale` from 1e-30 to log(2).

    Attributes
    ----------
    largest, total : fragment
        Of each row, the largest score so far, and the sum of the weights relative to it.
    """

    def __init__(
        self,
        rows: T.dtypes.Extent,
        scale: float = 1.0,
        dtype: T.dtypes.DTypeLike = "float32",
        *,
        fused: bool = False,
    ) -> None:
        self._factor = scale * _LOG2E
        self._fused = fused and 1e-30 < self._factor <= 1 and T.as_dtype(dtype) == "float32"
        names = ("largest", "total", "_before", "_rescale", "_of_tile")
        for name in (*names, "_slope", "_offset") if self._fused else names:
            setattr(self, name, T.alloc_fragment((rows,), dtype))
        T.fill(self.largest, T.min_value(dtype))
        T.fill(self.total, 0)
        if self._fused:
            self._power = 2.0 ** math.ceil(math.log2(self._factor))
            T.fill(self._offset, T.min_value(dtype) * self._power)

    largest: Any
    total: Any
    _before: Any
    _rescale: Any
    _of_tile: Any
    _slope: Any
    _offset: Any

    @T.macro
    def weigh(self, scores: Any) -> None:
        """Turn a tile of scores into weights, and count them."""
        T.copy(self._offset if self._fused else self.largest, self._before)
        T.reduce_max(scores, self.largest, dim=1, clear=False)
        for i in T.Parallel(scores.shape[0]):
            if self._fused:
                self._slope[i] = self._slope_for(self.largest[i])
                self._offset[i] = self.largest[i] * self._slope[i]
                self._rescale[i] = _exp2(self._before[i] - self._offset[i])
            else:
                self._rescale[i] = _exp2((self._before[i] - self.largest[i]) * self._factor)
        self.exponentiate(scores)
        T.reduce_sum(scores, self._of_tile, dim=1)
        for i in T.Parallel(scores.shape[0]):
            self.total[i] = self.total[i] * self._rescale[i] + self._of_tile[i]

    def _slope_for(self, largest: Any) -> Any:
        """The factor of a row's scores, of which the error of the offset is small, or none."""
        return T.if_then_else(T.abs(largest) < _EXACT / self._factor, self._factor, self._power)

    @T.macro
    def exponentiate(self, scores: Any) -> None:
        """Turn scores into weights that are relative to the largest ones so far."""
        for i, j in T.Parallel(*scores.shape):
            if self._fused:
                scores[i, j] = _exp2(T.ieee_fmaf(scores[i, j], self._slope[i], -self._offset[i]))
            else:
                scores[i, j] = _exp2((scores[i, j] - self.largest[i]) * self._factor)

    @T.macro
    def rescale(self, output: Any) -> None:
        """Scale down what earlier tiles of weights made, before the last one's share is added."""
        for i, j in T.Parallel(*output.shape):
            output[i, j] *= self._rescale[i]

    @T.macro
    def normalize(self, output: Any) -> None:
        """Divide by the sums of weights, of rows without one (which are 0) by 1."""
        for i in T.Parallel(output.shape[0]):
            self.total[i] = T.if_then_else(self.total[i] == 0, 1, self.total[i])
            self._rescale[i] = (
                1 / self.total[i]
            )  # a quotient an element would be eight instructions
        self.rescale(output)

    @T.macro
    def to_logarithms(self) -> None:
        """Turn the sums of weights into their logarithms to base 2, relative to the largest scores."""
        for i in T.Parallel(self.total.shape[0]):
            self.total[i] = T.log2(self.total[i])
            if self._fused:
                slope = self._slope_for(self.largest[i])
                self.total[i] -= T.ieee_fmaf(self.largest[i], slope, -self._offset[i])


_EXACT = 2.0**28
"""A product below this is rounded by at most 8, so that weights are at most 2^8, which float16 holds.
Products of scores beyond it differ by at least 16 if they do.
"""


def normalized_weight(score: Any, largest: Any, logarithm: Any, scale: float) -> Any:
    """The weight of a score, by its row's largest one and the logarithm to base 2 of their sum.

    The two apart keep the weight of the largest score exact, whatever its size. A score that was
    summed in another order may lie above it, without a bound: it counts as the largest.
    """
    return _exp2(T.min(score - largest, 0) * (scale * _LOG2E) - logarithm)
