"""Computations whose cuts into blocks a model can rank, and the cuts; TileLang's names."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from tvm import te

from tvmtile.carver.model import (
    Hint,
    NoRasterization,
    Rasterization,
    Rasterization2DColumn,
    Rasterization2DRow,
    Work,
    seconds,
)
from tvmtile.errors import InvalidValue
from tvmtile.target.devices import TileDevice, auto_infer_current_arch

__all__ = [
    "BaseTemplate",
    "ElementwiseTemplate",
    "FlashAttentionTemplate",
    "GEMVTemplate",
    "GeneralReductionTemplate",
    "Hint",
    "MatmulTemplate",
    "NoRasterization",
    "Rasterization",
    "Rasterization2DColumn",
    "Rasterization2DRow",
]


_Template = TypeVar("_Template", bound="BaseTemplate")


def bytes_of(dtype: Any) -> int:
    """Bytes of an element, one at least."""
    digits = "".join(c for c in str(dtype).partition("_")[0] if c.isdigit())
    return max(1, int(digits or 8) // 8)


def powers(first: int, last: int) -> list[int]:
    """Powers of two from the first to the last."""
    return [1 << i for i in range(first.bit_length() - 1, last.bit_length())]


class BaseTemplate(ABC):
    """A computation; `with_arch` says where it runs, `recommend_hints` how to cut it."""

    _arch: TileDevice | None = None

    def with_arch(self: _Template, arch: TileDevice) -> _Template:
        """Say on what device it runs. The template itself is returned."""
        self._arch = arch
        return self

    @property
    def arch(self) -> TileDevice:
        """The device; this machine's where none was given."""
        if self._arch is None:
            self._arch = auto_infer_current_arch()
        return self._arch

    @abstractmethod
    def equivalent_function(self) -> Any:
        """The computation as a `PrimFunc` of TVM's, without any cut."""

    @abstractmethod
    def candidates(self) -> Iterator[tuple[Hint, Work]]:
        """All cuts, with what a block of each does."""

    def recommend_hints(self, topk: int = 10) -> list[Hint]:
        """The cuts that the model takes for the best, the best first.

        Parameters
        ----------
        topk : int
            How many, at most.
        """
        ranked = [
            replace(hint, seconds=seconds(work, self.arch)) for hint, work in self.candidates()
        ]
        possible = [hint for hint in ranked if math.isfinite(hint.seconds)]
        return sorted(possible, key=lambda hint: hint.seconds)[:topk]


# Products of matrices ------------------------------------------------------------------------------

_SPARE_OF_MATMUL = 40
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
            registers=m * n * wide // (4 * threads) + 2 * operands + _SPARE_OF_MATMUL,
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


# What the memory bounds ----------------------------------------------------------------------------

_SPARE_OF_ROWS = 24
_SHUFFLE, _BARRIER = 30.0, 150.0
"""Cycles to combine two values of a warp's lanes, and those of its warps."""
_VECTOR = 16
"""Bytes that a thread loads at best."""


@dataclass
class ElementwiseTemplate(BaseTemplate):
    """B[...] = f(A[...]).

    Attributes
    ----------
    shape : list of int
        Its extents.
    dtype : str
        Of the elements.
    tensors : int
        How many of that shape are read and written.
    """

    shape: Sequence[int] = field(default_factory=list)
    dtype: str = "float16"
    tensors: int = 2

    def equivalent_function(self) -> Any:
        A = te.placeholder(tuple(self.shape), str(self.dtype), "A")
        B = te.compute(tuple(self.shape), lambda *i: A(*i) + A(*i), name="B")
        return te.create_prim_func([A, B])

    def candidates(self) -> Iterator[tuple[Hint, Work]]:
        *outer, columns = self.shape
        rows, size = math.prod(outer), bytes_of(self.dtype)
        heights = powers(1, min(256, rows)) if outer else [1]
        widths = powers(min(32, columns), min(8192, columns))
        for m, n, threads in itertools.product(heights, widths, (32, 64, 128, 256, 512)):
            elements = m * n
            if elements * self.tensors * size > threads * 4 * 128:
                continue
            contiguous = min(1.0, n * size / 128) * min(1.0, elements * size / (threads * _VECTOR))
            work = Work(
                blocks=math.ceil(rows / m) * math.ceil(columns / n),
                threads=threads,
                registers=elements * self.tensors * size // (4 * threads) + _SPARE_OF_ROWS,
                shared=elements * size,
                scalar=float(elements * self.tensors) / max(contiguous, 0.25),
                stored=float(elements * size * self.tensors) / max(contiguous, 0.25),
                unique=float(rows * columns * size * self.tensors),
            )
            yield Hint([m, n] if outer else [n], threads), work


@dataclass
class GeneralReductionTemplate(BaseTemplate):
    """Some axes of a tensor are summed over.

    Attributes
    ----------
    structure : str
        A letter an axis: S for one that stays, R for one that is summed over.
    shape : list of int
        Its extents.
    dtype : str
        Of the elements.
    keeps : bool
        The result has all elements, as that of a softmax, not one of each sum.
    """

    structure: str = "SR"
    shape: Sequence[int] = field(default_factory=list)
    dtype: str = "float16"
    keeps: bool = False

    def __post_init__(self) -> None:
        if len(self.structure) != len(self.shape) or set(self.structure.upper()) - set("SR"):
            raise InvalidValue(
                f"the structure {self.structure!r} of a reduction of the shape {list(self.shape)}",
                help="give S or R for each axis",
            )

    def _extent(self, kind: str) -> int:
        axes = zip(self.structure.upper(), self.shape, strict=True)
        return math.prod(extent for axis, extent in axes if axis == kind)

    def equivalent_function(self) -> Any:
        A = te.placeholder(tuple(self.shape), str(self.dtype), "A")
        kinds = self.structure.upper()
        summed = [
            te.reduce_axis((0, n)) for s, n in zip(kinds, self.shape, strict=True) if s == "R"
        ]
        stays = [n for s, n in zip(kinds, self.shape, strict=True) if s == "S"]

        def total(*index: object) -> Any:
            left, over = iter(index), iter(summed)
            place = [next(left) if s == "S" else next(over) for s in kinds]
            return te.sum(A(*place), axis=summed)

        C = te.compute(tuple(stays), total if summed else A, name="C")
        return te.create_prim_func([A, C])

    def candidates(self) -> Iterator[tuple[Hint, Work]]:
        rows, columns, size = self._extent("S"), self._extent("R"), bytes_of(self.dtype)
        heights = powers(1, min(128, rows))
        for m, threads in itertools.product(heights, (32, 64, 128, 256, 512, 1024)):
            work = self._work(m, threads, rows, columns, size)
            if self.arch.platform != "CPU" or threads == 128:
                yield Hint([m], threads, rstep=[columns]), work

    def _work(self, m: int, threads: int, rows: int, columns: int, size: int) -> Work:
        """A block has `m` rows whole, each shared by its threads, in registers."""
        row_threads = max(1, min(threads // m if m < threads else 1, columns))
        lanes = min(row_threads, 32)
        combining = 2 * (_SHUFFLE * math.log2(lanes) + (_BARRIER if row_threads > lanes else 0))
        moved = m * columns * size * (2 if self.keeps else 1)
        wasted = max(1.0, threads * _VECTOR / (m * columns * size))
        return Work(
            blocks=math.ceil(rows / m),
            threads=threads,
            registers=math.ceil(m * columns / threads) + _SPARE_OF_ROWS,
            shared=m * columns * size,
            scalar=5.0 * m * columns * wasted,
            stored=float(moved),
            unique=float(rows * columns * size * (2 if self.keeps else 1)),
            tail=combining,
        )


# Attention whose scores stay on the chip -----------------------------------------------------------

_SPARE_OF_ATTENTION = 48
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
            registers=kept // (4 * threads) + _SPARE_OF_ATTENTION,
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
