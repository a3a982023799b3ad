"""The CPU's matrix multiplication by dot products of two or four elements of K at a time.

The micro-kernel stays as it is, on words of 32 bits: a word of A holds neighbours of a row, a word of
B neighbours of a column, and an instruction adds the sum of their products to each lane (see
`tvmtile.codegen.llvm_dots`). A is read as it lies, where its elements are the instruction's and fill
the words; B is packed, one panel at a time. Floats of 8 bits become bfloat16, which holds them all.

Where an instruction multiplies unsigned bytes by signed ones only, the top bit of B's bytes is flipped:
that adds 128 to signed ones and subtracts it from unsigned ones. What the sums of a row begin with
makes up for it, by 128 times the sum of the row of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile.codegen.llvm_dots import DOT_PRODUCTS, DotProduct, dot_function, wrapping_add
from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index
from tvmtile.tileop.gemm.microkernel import GemmTile, Products, column_panels
from tvmtile.tileop.gemm.packing import ElementSource, Matrix, array, cast_copy, transposing_copy
from tvmtile.tileop.vectors import loop, splat, vector_dtype

_HELD_BY_BFLOAT16 = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)
_OTHER_SIGN = {"int8": "uint8", "uint8": "int8"}
_TOP_BITS = 0x80808080


@dataclass(frozen=True)
class DotInstruction:
    """An instruction for a tile."""

    dot: DotProduct
    """The product that it computes."""
    a: str
    b: str
    """Dtypes in which the operands are multiplied; b after a flip."""
    swapped: bool
    """B is the first operand of the instruction."""
    flips: bool
    """The top bit of B's bytes is flipped."""


def choose(tile: GemmTile, names: Sequence[str]) -> DotInstruction | None:
    """The instruction, of those with the names, for a tile; None where none multiplies its dtypes."""
    a, b = held_dtypes(tile)
    pairs = [(a, b, False)]
    if b in _OTHER_SIGN:
        pairs.append((a, _OTHER_SIGN[b], True))
    for a, b, flips in pairs:
        for dot in (DOT_PRODUCTS[name] for name in names):
            if dot.sums == tile.compute_dtype and (a, b) in ((dot.a, dot.b), (dot.b, dot.a)):
                return DotInstruction(dot, a, b, (a, b) != (dot.a, dot.b), flips)
    return None


def held_dtypes(tile: GemmTile) -> tuple[str, str]:
    """The dtypes in which A and B are multiplied: bfloat16, if it holds both."""
    dtypes = (tile.a.dtype, tile.b.dtype)
    return ("bfloat16", "bfloat16") if set(dtypes) <= set(_HELD_BY_BFLOAT16) else dtypes


@dataclass(frozen=True)
class Words:
    """Words of `depth` neighbours in the rows of a matrix; of the last `count` of them, then zeros."""

    source: Matrix
    element: str
    depth: int
    count: int
    flips: bool = False

    def load(self, row: Index, column: Index, lanes: int = 1, dtype: str | None = None) -> ir.Expr:
        """`lanes` words."""
        del dtype
        first = column * self.depth
        if self.count == self.depth:
            elements = self.source.load(row, first, lanes * self.depth, self.element)
            words = tirx.reinterpret(vector_dtype("uint32", lanes), elements)
            return words ^ splat(tirx.const(_TOP_BITS, "uint32"), lanes) if self.flips else words
        single = [self.source.load(row, first + d, 1, self.element) for d in range(self.count)]
        return _put_together(single, self.element, 1, self.flips)


@dataclass(frozen=True)
class Columns:
    """Words of `depth` neighbours in the columns of a matrix; as `Words`."""

    source: Matrix
    element: str
    depth: int
    count: int
    flips: bool = False

    def load(self, row: Index, column: Index, lanes: int = 1, dtype: str | None = None) -> ir.Expr:
        """`lanes` words, of neighbouring columns."""
        del dtype
        first = row * self.depth
        rows = [self.source.load(first + d, column, lanes, self.element) for d in range(self.count)]
        return _put_together(rows, self.element, lanes, self.flips)


def _put_together(parts: list[ir.Expr], element: str, lanes: int, flips: bool) -> ir.Expr:
    """Words whose bytes are those of the parts, vectors of elements; the first ones are lowest."""
    bits = DataType(element).bits
    stored = [tirx.reinterpret(vector_dtype(f"uint{bits}", lanes), part) for part in parts]
    words = splat(tirx.const(_TOP_BITS if flips else 0, "uint32"), lanes)
    if len(parts) * bits == 32 and lanes > 1:
        # LLVM makes one permutation of it, where conversions and shifts of each part stay apart.
        places = [p * lanes + lane for lane in range(lanes) for p in range(len(parts))]
        order = [tirx.const(place, "int32") for place in places]
        together = tirx.reinterpret(vector_dtype("uint32", lanes), tirx.Shuffle(stored, order))
        return words ^ together if flips else together
    for place, part in enumerate(stored):
        shift = splat(tirx.const(place * bits, "uint32"), lanes)
        words = words ^ (tirx.Cast(vector_dtype("uint32", lanes), part) << shift)
    return words


@dataclass(frozen=True)
class DotProducts(Products):
    """Steps along K that multiply `depth` elements and sum them."""

    choice: DotInstruction
    lanes: int
    imports: list[str]

    @property
    def dtype(self) -> str:
        return "uint32"

    @property
    def depth(self) -> int:
        """Elements of K in a step."""
        return self.choice.dot.depth

    @property
    def steps(self) -> int:
        return -(-self.tile.k // self.depth)

    @cached_property
    def _sums_of_a(self) -> Matrix:
        """The sums that make up for the flipped bits, for each row of A."""
        return array((1, self.tile.m), "int32", "a_sums")

    def packed_a(self) -> tuple[ElementSource, list[tirx.Stmt]]:
        tile, element = self.tile, self.choice.a
        statements = self._sum_a() if self.choice.flips else []
        if not tile.transpose_a and tile.a.dtype == element and tile.k % self.depth == 0:
            return Words(tile.a, element, self.depth, self.depth), statements
        shape = (self.steps, tile.m) if tile.transpose_a else (tile.m, self.steps)
        packed = array(shape, "uint32", "a_packed")
        widths = [w for n, panel in column_panels(tile.m, self.lanes, 1) for w in panel * n]
        copies = self._copies(packed, tile.a, element, False, tile.transpose_a, widths)
        return packed, [*statements, tirx.AllocBuffer(packed.buffer), *copies]

    def packed_b(
        self, first: Index, widths: tuple[int, ...]
    ) -> tuple[ElementSource, list[tirx.Stmt]]:
        tile = self.tile
        source = tile.b.moved(first, 0) if tile.transpose_b else tile.b.moved(0, first)
        element = tile.b.dtype if self.choice.flips else self.choice.b
        packed = array((self.steps, sum(widths)), "uint32", "b_packed")
        flips = self.choice.flips
        if not tile.transpose_b:
            copies = self._copies(packed, source, element, flips, True, widths)
            return packed, [tirx.AllocBuffer(packed.buffer), *copies]
        full, rest = divmod(tile.k, self.depth)
        words = Words(source, element, self.depth, self.depth, flips)
        copies = [transposing_copy(packed, words, full, widths)] if full else []
        if rest:
            tail = Words(source, element, self.depth, rest, flips)
            copies += [loop("j", sum(widths), lambda j: packed.store(full, j, tail.load(j, full)))]
        return packed, [tirx.AllocBuffer(packed.buffer), *copies]

    def _copies(
        self,
        packed: Matrix,
        source: Matrix,
        element: str,
        flips: bool,
        by_columns: bool,
        widths: Sequence[int],
    ) -> list[tirx.Stmt]:
        """Fill words of neighbours in columns, [steps, sum(widths)], or in rows, [m, steps]."""
        full, rest = divmod(self.tile.k, self.depth)
        view = Columns if by_columns else Words
        words = view(source, element, self.depth, self.depth, flips)
        tail = view(source, element, self.depth, rest, flips)
        if not by_columns:
            rows = self.tile.m
            copies = [cast_copy(packed, words, (rows, full))] if full else []
            store = [loop("i", rows, lambda i: packed.store(i, full, tail.load(i, full)))]
            return copies + (store if rest else [])
        offsets = [(sum(widths[:v]), lanes) for v, lanes in enumerate(widths)]

        def row(step: Index, view: ElementSource) -> tirx.Stmt:
            return seq([packed.store(step, o, view.load(step, o, n), n) for o, n in offsets])

        copies = [loop("s", full, lambda step: row(step, words))] if full else []
        return copies + ([row(full, tail)] if rest else [])

    def _sum_a(self) -> list[tirx.Stmt]:
        tile, sums = self.tile, self._sums_of_a
        factor = tirx.const(-128 if tile.b.dtype == "int8" else 128, "int32")
        if not tile.transpose_a and tile.k % (self.depth * self.lanes) == 0:
            row = [loop("i", tile.m, lambda i: self._sum_row(i, factor))]
            return [tirx.AllocBuffer(sums.buffer), *row]

        def add(i: Any, k: Index) -> tirx.Stmt:
            value = (
                tile.a.load(k, i, 1, "int32") if tile.transpose_a else tile.a.load(i, k, 1, "int32")
            )
            return sums.store(0, i, sums.load(0, i) + value * factor)

        clear = loop("i", tile.m, lambda i: sums.store(0, i, tirx.const(0, "int32")))
        if tile.transpose_a:
            total = loop("k", tile.k, lambda k: loop("i", tile.m, lambda i: add(i, k)))
        else:
            total = loop("i", tile.m, lambda i: loop("k", tile.k, lambda k: add(i, k)))
        return [tirx.AllocBuffer(sums.buffer), clear, total]

    def _sum_row(self, i: Any, factor: ir.Expr) -> tirx.Stmt:
        """The sum of a row of A, by the instruction: of products with ones."""
        lanes, ones = self.lanes, tirx.const(0x01010101, "uint32")
        words = Words(self.tile.a, self.choice.a, self.depth, self.depth)
        parts = array((1, lanes), "int32", "parts")

        def add(step: Index) -> tirx.Stmt:
            row = words.load(i, step * lanes, lanes)
            return parts.store(0, 0, self.add(parts.load(0, 0, lanes), row, ones, lanes), lanes)

        total = parts.load(0, 0)
        for lane in range(1, lanes):
            total = total + parts.load(0, lane)
        zero = splat(tirx.const(0, "int32"), lanes)
        return seq(
            [
                tirx.AllocBuffer(parts.buffer),
                parts.store(0, 0, zero, lanes),
                loop("s", self.tile.k // (self.depth * lanes), add),
                self._sums_of_a.store(0, i, total * factor),
            ]
        )

    def start(self, row: Index, column: Index, lanes: int) -> ir.Expr:
        begin = super().start(row, column, lanes)
        if not self.choice.flips:
            return begin
        name, text = wrapping_add(lanes)
        self.imports.append(text)
        correction = splat(self._sums_of_a.load(0, row), lanes)
        return tirx.call_pure_extern(vector_dtype("int32", lanes), name, begin, correction)

    def add(self, sums: Any, a: Any, b: Any, lanes: int) -> ir.Expr:
        operands = (b, a) if self.choice.swapped else (a, b)
        return self._dot(sums, *operands, lanes)

    def _dot(self, sums: ir.Expr, first: ir.Expr, second: ir.Expr, lanes: int) -> ir.Expr:
        """Sums and products of two vectors of words; a single word is that of all lanes."""
        name, texts = dot_function(self.choice.dot.name, lanes)
        self.imports.extend(texts)
        wide = vector_dtype("uint32", lanes)
        words = [w if str(w.ty.dtype) == wide else splat(w, lanes) for w in (first, second)]
        dtype = vector_dtype(self.choice.dot.sums, lanes)
        return tirx.call_pure_extern(dtype, name, sums, *words)
