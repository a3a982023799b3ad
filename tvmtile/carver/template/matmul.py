"""Products of matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm import te

from tvmtile.carver.model import Work
from tvmtile.carver.roller import Hint, NoRasterization, Rasterization2DRow
from tvmtile.carver.template.base import BaseTemplate, bytes_of, powers

_SPARE = 40
"""Registers of a thread for indices and addresses."""
_PANEL = 10


class _Parts(NamedTuple):
    """Rows and columns of parts of a block's tile, and the warps that make one together."""

    rows: int
    columns: int
    warps: int


@dataclass
class MatmulTemplate(BaseTemplate):
    """C[M, N] = A[M, K] B[K, N].

    Attributes
    ----------
    M, N, K : int
        Its extents.
    trans_A, trans_B : bool
        A is stored as [K, M], B as [N, K].
    in_dtype, out_dtype, accum_dtype : str
        Of A and B, of C, of the sum.
    with_bias : bool
        A vector of N elements is added.
    batch : int
        How many such products there are.
    """

    M: int = 1
    N: int = 1
    K: int = 1
    trans_A: bool = False
    trans_B: bool = True
    in_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"
    with_bias: bool = False
    batch: int = 1

    def equivalent_function(self) -> Any:
        A = te.placeholder(
            (self.K, self.M) if self.trans_A else (self.M, self.K), str(self.in_dtype), "A"
        )
        B = te.placeholder(
            (self.N, self.K) if self.trans_B else (self.K, self.N), str(self.in_dtype), "B"
        )
        bias = te.placeholder((self.N,), str(self.out_dtype), "bias")
        k = te.reduce_axis((0, self.K), name="k")
        accum, out = str(self.accum_dtype), str(self.out_dtype)

        def product(i: Any, j: Any) -> Any:
            a = A[k, i] if self.trans_A else A[i, k]
            b = B[j, k] if self.trans_B else B[k, j]
            return te.sum(a.astype(accum) * b.astype(accum), axis=k)

        total = te.compute((self.M, self.N), product, name="total")

        def result(i: Any, j: Any) -> Any:
            value = total[i, j].astype(out)
            return value + bias[j] if self.with_bias else value

        C = te.compute((self.M, self.N), result, name="C")
        return te.create_prim_func([A, B, bias, C] if self.with_bias else [A, B, C])

    def candidates(self) -> Iterator[tuple[Hint, Work]]:
        is_cpu = self.arch.platform == "CPU"
        rows = powers(16, max(16, min(256, _next_power(self.M))))
        # Four warps beside each other need 32 columns where there are 16 rows.
        columns = powers(16, max(32, min(256, _next_power(self.N))))
        steps = powers(16, max(16, min(256 if is_cpu else 128, _next_power(self.K))))
        ways = [(128, 1)] if is_cpu else list(itertools.product((128, 256), (1, 2, 3, 4)))
        for m, n, k, (threads, stages) in itertools.product(rows, columns, steps, ways):
            if is_cpu:
                yield Hint([m, n], threads, rstep=[k]), self._on_cpu(m, n, k)
                continue
            parts = self._parts(m, n, threads)
            if parts is not None:
                hint = self._hint(m, n, k, threads, stages, parts)
                yield hint, self._work(m, n, k, threads, stages, parts)

    def _parts(self, m: int, n: int, threads: int) -> _Parts | None:
        """The parts that make warps read the least; None where they are too small."""
        together = self.arch.matrix_threads if m % 64 == 0 else self.arch.warp_size
        warps, groups = together // self.arch.warp_size, threads // together
        ways = [_Parts(rows, groups // rows, warps) for rows in powers(1, groups)]
        possible = [p for p in ways if m % (16 * warps * p.rows) == 0 and n % (8 * p.columns) == 0]
        return min(possible, key=lambda p: m * p.columns + n * p.rows, default=None)

    def _hint(self, m: int, n: int, k: int, threads: int, stages: int, parts: _Parts) -> Hint:
        tall = math.ceil(self.M / m) > _PANEL
        order = Rasterization2DRow(_PANEL) if tall else NoRasterization()
        warp = [m // (parts.rows * parts.warps), n // parts.columns]
        return Hint([m, n], threads, warp, [k], stages, True, order)

    def _work(self, m: int, n: int, k: int, threads: int, stages: int, parts: _Parts) -> Work:
        size, wide = bytes_of(self.in_dtype), bytes_of(self.accum_dtype)
        operands = 0  # several warps together read them where they are
        if parts.warps == 1:
            held = m // parts.rows + n // parts.columns
            operands = held * 16 * size // (4 * self.arch.warp_size)
        copied = (m + n) * k * size
        return Work(
            blocks=self._blocks(m, n),
            threads=threads,
            registers=m * n * wide // (4 * threads) + 2 * operands + _SPARE,
            shared=copied * stages,
            steps=math.ceil(self.K / k),
            stages=stages,
            matrix=2.0 * m * n * k * size / 2,
            scalar=copied / 16.0 * 2,
            moved=copied + (m * parts.columns + n * parts.rows) * k * size,
            loaded=copied,
            stored=m * n * bytes_of(self.out_dtype),
            unique=self._unique(),
        )

    def _on_cpu(self, m: int, n: int, k: int) -> Work:
        size, lanes = bytes_of(self.in_dtype), self.arch.warp_size
        idle = math.ceil(n / lanes) * lanes / n * (1 + 4.0 / m)  # partial vectors; few rows
        return Work(
            blocks=self._blocks(m, n),
            threads=1,
            registers=0,
            shared=(m + n) * k * size + m * n * bytes_of(self.accum_dtype),
            steps=math.ceil(self.K / k),
            matrix=2.0 * m * n * k * idle,
            moved=m * n * bytes_of(self.accum_dtype) * 2 + (m + n) * k * size,
            loaded=(m + n) * k * size,
            stored=m * n * bytes_of(self.out_dtype),
            unique=self._unique(),
        )

    def _blocks(self, m: int, n: int) -> int:
        return math.ceil(self.M / m) * math.ceil(self.N / n) * self.batch

    def _unique(self) -> float:
        read = (self.M + self.N) * self.K * bytes_of(self.in_dtype)
        return float(self.batch * (read + self.M * self.N * bytes_of(self.out_dtype)))


def GEMVTemplate(
    N: int = 1,
    K: int = 1,
    trans_B: bool = True,
    in_dtype: str = "float16",
    out_dtype: str = "float16",
    accum_dtype: str = "float16",
    with_bias: bool = False,
) -> MatmulTemplate:
    """C[N] = A[K] B[K, N], as a product with one row.

    Parameters
    ----------
    N, K : int
        Extents.
    trans_B : bool
        B is [N, K].
    in_dtype, out_dtype, accum_dtype : str
        Of A and B, of C, and of the sums.
    with_bias : bool
        As of `MatmulTemplate`.
    """
    return MatmulTemplate(1, N, K, False, trans_B, in_dtype, out_dtype, accum_dtype, with_bias)


def _next_power(value: int) -> int:
    return 1 << (value - 1).bit_length()
