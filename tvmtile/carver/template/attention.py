"""Attention whose scores stay on the chip."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import te

from tvmtile.carver.model import Work
from tvmtile.carver.roller import Hint
from tvmtile.carver.template.base import BaseTemplate, bytes_of, powers

_SPARE = 48
_SOFTMAX = 8.0
"""Instructions for a score: maximum, difference, exponential, sum, conversion."""
_COMBINING = 250.0
"""Cycles in which the lanes of a row combine its maximum and its sum."""


@dataclass
class FlashAttentionTemplate(BaseTemplate):
    """O = softmax(Q K^T) V for each head.

    Attributes
    ----------
    batch_size, num_heads, head_dim, seq_length, seq_kv_length : int
        Its extents.
    is_causal : bool
        A query sees the keys up to its own place.
    in_dtype, out_dtype, accum_dtype : str
        Of Q, K and V, of O, of the sums.
    """

    batch_size: int = 1
    num_heads: int = 1
    head_dim: int = 1
    seq_length: int = 1
    seq_kv_length: int = 1
    is_causal: bool = False
    in_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"

    def equivalent_function(self) -> Any:
        """Scores times values, without the softmax, which is no single computation."""
        heads, accum = self.batch_size * self.num_heads, str(self.accum_dtype)
        shape = (heads, self.seq_length, self.head_dim)
        Q = te.placeholder(shape, str(self.in_dtype), "Q")
        K, V = (
            te.placeholder((heads, self.seq_kv_length, self.head_dim), str(self.in_dtype), name)
            for name in "KV"
        )
        d = te.reduce_axis((0, self.head_dim), name="d")
        s = te.reduce_axis((0, self.seq_kv_length), name="s")
        scores = te.compute(
            (heads, self.seq_length, self.seq_kv_length),
            lambda h, i, j: te.sum(Q[h, i, d].astype(accum) * K[h, j, d].astype(accum), axis=d),
            name="scores",
        )
        total = te.compute(
            shape,
            lambda h, i, j: te.sum(scores[h, i, s] * V[h, s, j].astype(accum), axis=s),
            name="total",
        )
        O = te.compute(shape, lambda *i: total(*i).astype(str(self.out_dtype)), name="O")  # noqa: E741
        return te.create_prim_func([Q, K, V, O])

    def candidates(self) -> Iterator[tuple[Hint, Work]]:
        # Four warps have 64 rows, and a product 16 columns, also where there are fewer.
        rows = [m for m in powers(16, 256) if m < 2 * max(64, self.seq_length)]
        columns = [n for n in powers(16, 256) if n < 2 * max(16, self.seq_kv_length)]
        # Of float64 and of long rows a block has room for few.
        size = bytes_of(self.in_dtype)
        is_small = size < 8 and size * self.head_dim <= 512
        sizes = (128, 256) if is_small else (32, 64, 128, 256)
        for m, n, threads, stages in itertools.product(rows, columns, sizes, (1, 2, 3)):
            warps = threads // self.arch.warp_size
            if self.arch.platform == "CPU" and (threads, stages) != (128, 1):
                continue
            if self.arch.platform == "CPU" or m % (16 * warps) == 0:
                hint = Hint([m, n], threads, [max(1, m // warps), n], [n], stages, True)
                yield hint, self._work(m, n, threads, stages)

    def _work(self, m: int, n: int, threads: int, stages: int) -> Work:
        """A step is two products with the softmax between them: no warp does two at a time."""
        size, wide, dim = bytes_of(self.in_dtype), bytes_of(self.accum_dtype), self.head_dim
        keys = self.seq_kv_length / 2 if self.is_causal else self.seq_kv_length
        heads = self.batch_size * self.num_heads
        tile = n * dim * size
        # Tensor cores hold sums of 16 bits as they take them; others change threads in shared memory.
        weights = m * n * size if self.arch.platform == "CUDA" and size > 2 else 0
        kept = m * dim * wide + m * n * (wide + size)
        return Work(
            blocks=math.ceil(self.seq_length / m) * heads,
            threads=threads,
            registers=kept // (4 * threads) + _SPARE,
            shared=m * dim * size + 2 * tile * stages + weights,
            steps=math.ceil(keys / n),
            stages=stages,
            matrix=4.0 * m * n * dim,
            scalar=_SOFTMAX * m * n,
            moved=2.0 * tile * (1 + threads // self.arch.matrix_threads),
            loaded=2.0 * tile,
            stored=float(m * dim * (size + bytes_of(self.out_dtype))),
            chain=_SOFTMAX * m * n / 128 + _COMBINING,
            unique=float(heads * dim * 2 * size * (self.seq_length + self.seq_kv_length)),
        )
