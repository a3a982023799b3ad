"""The CPU's matrix multiplication by instructions that multiply pairs of rows and pairs of columns.

`bfmmla`, `smmla` and their kin of ARM take 64 bits of K of two rows of A and of two columns of B, and
add the four sums of products to a vector of 2 x 2 sums. So the micro-kernel works on pairs: a row of
its is two rows, four neighbours in it are 2 x 2 elements of C, and in the place of a broadcast of A
stands a vector that serves all columns. Both operands are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx

from tvmtile.codegen.llvm_dots import MATRIX_PRODUCTS, DotProduct, dot_function
from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index
from tvmtile.target import cpu
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.cpu import check_blocks, check_vectors, reads_in_place, tile_of
from tvmtile.tileop.gemm.dots import Columns, Words, held_dtypes
from tvmtile.tileop.gemm.microkernel import GemmTile, Products, emit_gemm
from tvmtile.tileop.gemm.packing import ElementSource, Matrix, array
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.vectors import loop


def _instruction(tile: GemmTile, context: LoweringContext) -> DotProduct:
    dtypes = (*held_dtypes(tile), tile.compute_dtype)
    for name in cpu(context.target).matrices:
        product = MATRIX_PRODUCTS[name]
        if (product.a, product.b, product.sums) == dtypes:
            return product
    raise Decline(f"no product of pairs of rows of {dtypes[0]} and {dtypes[1]} into {dtypes[2]}")


def _fits(op: Gemm, context: LoweringContext) -> None:
    check_vectors(op, context)
    tile = tile_of(op)
    check_blocks(tile, 2, 2, 2 * _instruction(tile, context).depth)


@lowering(Gemm, target="llvm", variant="mmla", priority=25, fits=_fits, direct=reads_in_place)
def gemm_mmla(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Register blocks of 2 x 2 sums."""
    tile = tile_of(op)
    product = _instruction(tile, context)
    sums = _Pairs(tile.c.buffer, tile.c.origin)
    pairs = replace(tile, c=sums, m=tile.m // 2, n=tile.n * 2)
    return emit_gemm(pairs, cpu(context.target), MatrixProducts(pairs, product, context.imports))


@dataclass(frozen=True)
class _Pairs(Matrix):
    """A matrix as pairs of rows, in which four neighbours are 2 x 2 elements."""

    def load(self, row: Index, column: Index, lanes: int = 4, dtype: str | None = None) -> ir.Expr:
        """The elements of a pair of columns."""
        assert lanes == 4
        rows = [super(_Pairs, self).load(row * 2 + r, _half(column), 2, dtype) for r in (0, 1)]
        return _shuffled(rows, range(4))

    def store(self, row: Any, column: Any, value: ir.Expr, lanes: int = 4) -> tirx.Stmt:
        """Store them."""
        assert lanes == 4
        halves = [_shuffled([value], (2 * r, 2 * r + 1)) for r in (0, 1)]
        return seq(
            [
                super(_Pairs, self).store(row * 2 + r, _half(column), half, 2)
                for r, half in enumerate(halves)
            ]
        )


def _half(column: Index) -> Any:
    return tirx.floordiv(column, 2)


def _shuffled(vectors: list[Any], places: Sequence[int]) -> ir.Expr:
    return tirx.Shuffle(vectors, [tirx.const(place, "int32") for place in places])


@dataclass(frozen=True)
class _Quads:
    """Vectors of four words of a packed matrix."""

    packed: Matrix

    def load(self, row: Index, column: Index, lanes: int = 1, dtype: str | None = None) -> Any:
        """The load of a pair of rows and a step."""
        del lanes, dtype
        return self.packed.load(row, column * 4, 4)


@dataclass(frozen=True)
class MatrixProducts(Products):
    """Steps along K that multiply 64 bits of pairs of rows and columns."""

    product: DotProduct
    imports: list[str]

    @property
    def dtype(self) -> str:
        return "uint32"

    @property
    def dtype_of_a(self) -> str:
        return "uint32x4"

    @property
    def steps(self) -> int:
        return self.tile.k // (2 * self.product.depth)

    def packed_a(self) -> tuple[ElementSource, list[tirx.Stmt]]:
        packed = array((self.tile.m, 4 * self.steps), "uint32", "a_packed")
        words = self._words(self.tile.a, self.product.a)

        def pair(p: ir.Expr) -> tirx.Stmt:
            return loop(
                "s",
                self.steps,
                lambda s: seq(
                    [
                        packed.store(p, s * 4 + 2 * r, words.load(p * 2 + r, s * 2, 2), 2)
                        for r in (0, 1)
                    ]
                ),
            )

        return _Quads(packed), [tirx.AllocBuffer(packed.buffer), loop("p", self.tile.m, pair)]

    def packed_b(
        self, first: Index, widths: tuple[int, ...]
    ) -> tuple[ElementSource, list[tirx.Stmt]]:
        packed = array((self.steps, sum(widths)), "uint32", "b_packed")

        def step(s: ir.Expr) -> tirx.Stmt:
            return seq(
                [
                    packed.store(s, 4 * pair, self._columns(s, _half(first) + 2 * pair), 4)
                    for pair in range(len(widths))
                ]
            )

        return packed, [tirx.AllocBuffer(packed.buffer), loop("s", self.steps, step)]

    def _columns(self, step: Index, column: Index) -> ir.Expr:
        """64 bits of K of a column of B, and of the next one."""
        b = self.tile.b
        if self.tile.transpose_b:
            words = self._words(b, self.product.b)
            return _shuffled([words.load(column + c, step * 2, 2) for c in (0, 1)], range(4))
        depth = self.product.depth
        neighbours = Columns(b, self.product.b, depth, depth)
        halves = [neighbours.load(step * 2 + h, column, 2) for h in (0, 1)]
        return _shuffled(halves, (0, 2, 1, 3))

    def _words(self, matrix: Matrix, element: str) -> Words:
        return Words(matrix, element, self.product.depth, self.product.depth)

    def add(self, sums: Any, a: Any, b: Any, lanes: int) -> ir.Expr:
        name, texts = dot_function(self.product.name, lanes)
        self.imports.extend(texts)
        return tirx.call_pure_extern(f"{self.product.sums}x{lanes}", name, sums, a, b)
