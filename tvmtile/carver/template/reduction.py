"""Reductions of rows, and elementwise computations: what the memory bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import te

from tvmtile.carver.model import Work
from tvmtile.carver.roller import Hint
from tvmtile.carver.template.base import BaseTemplate, bytes_of, powers
from tvmtile.errors import InvalidValue

_SPARE = 24
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
                registers=elements * self.tensors * size // (4 * threads) + _SPARE,
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
            registers=math.ceil(m * columns / threads) + _SPARE,
            shared=m * columns * size,
            scalar=5.0 * m * columns * wasted,
            stored=float(moved),
            unique=float(rows * columns * size * (2 if self.keeps else 1)),
            tail=combining,
        )
