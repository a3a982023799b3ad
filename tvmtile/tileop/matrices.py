"""Operands that are matrices: the last two axes of a tile, whose others have extent 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, indices_of, ranges_of
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.values import as_condition
from tvmtile.ir.operands import check_bounds, constant, describe, dtype_of, extents_of
from tvmtile.ir.operators import OperatorEffects, TileOp
from tvmtile.ir.rewriting import for_loop, nest, seq
from tvmtile.ir.types import Value
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.moves import clear
from tvmtile.tileop.registry import SharedTile

PADDED = SharedTile(padding=16)
"""Tiles of Metal, as MLX pads them (mlx/backend/metal/kernels/steel/gemm/gemm.h, `tgp_padding_a`).

A matrix of 8x8 takes a piece of each of eight rows. Where rows are a power of two of bytes long the
pieces lie in the same banks of threadgroup memory, and are read one after the other.
"""


class MatrixProduct(TileOp):
    """A base of operators that add the product of two matrices to a third one."""

    outputs = ("C",)
    role = "product"
    shares: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Options by which warps share the work along rows, and by which they do along columns."""

    A: ir.TensorRegion
    B: ir.TensorRegion
    C: ir.TensorRegion
    """The accumulator, `[m, n]`."""
    transpose_B: bool
    clear_accum: bool

    def effects(self) -> OperatorEffects:
        effects = super().effects()
        sums = [] if self.clear_accum else effects.writes
        return effects._replace(reads=[*effects.reads, *sums])

    @property
    def m(self) -> ir.Expr:
        """Rows of the accumulator."""
        return oriented(self.C)[0]

    @property
    def n(self) -> ir.Expr:
        """Columns of the accumulator."""
        return oriented(self.C)[1]

    @property
    def k(self) -> ir.Expr:
        """Elements of a sum."""
        raise NotImplementedError

    def check_matrices(self, *names: str) -> None:
        """Refuse operands, by name, that are no matrices or reach outside of their buffers."""
        for name in names:
            _check_matrix(self.name, name, getattr(self, name))
            check_bounds(self.name, getattr(self, name))

    def summed(
        self,
        number: ir.Var,
        count: ir.Expr,
        factors: Callable[[ir.Var, ir.Var, ir.Var], tuple[ir.Expr, ir.Expr]],
    ) -> tirx.Stmt:
        """Loops in which each element of the accumulator is a sum, of `count` products by `number`.

        `factors` gives two of them, for a row, a column and a number.
        """
        wide = SUMMED_IN.get(dtype_of(self.C), dtype_of(self.C))
        total = tirx.decl_buffer((1,), wide, name="total", scope="local")
        held = tirx.BufferLoad(total, [0])

        def element(variables: list[ir.Var]) -> tirx.Stmt:
            i, j = variables
            target = element_of(self.C, False, i, j)
            a, b = (converted(factor, wide) for factor in factors(i, j, number))
            start = tirx.const(0, wide) if self.clear_accum else converted(target, wide)
            result = converted(held, dtype_of(self.C))
            return seq(
                [
                    tirx.AllocBuffer(total),
                    tirx.BufferStore(total, start, [0]),
                    for_loop(number, count, tirx.BufferStore(total, held + a * b, [0])),
                    tirx.BufferStore(buffer_of(target), result, indices_of(target)),
                ]
            )

        return nest([self.m, self.n], element)


SUMMED_IN = {"float16": "float32", "bfloat16": "float32"}


def _check_matrix(operator: str, name: str, operand: ir.Expr) -> None:
    """Refuse an operand that is no matrix.

    Raises
    ------
    InvalidOperand
        If it has no extents, or more than two that are not 1.
    """
    extents = extents_of(operand)
    if extents is None:
        raise InvalidOperand(
            f"{operator}: {name} is the element {describe(operand)}, which has no extents",
            help="give a whole buffer or a region, `A[i0:i1, j0:j1]`",
        )
    if len(extents) < 2 or any(constant(extent) != 1 for extent in extents[:-2]):
        raise InvalidOperand(
            f"{operator}: {name} is {describe(operand)}, which is not a matrix",
            help="the last two axes are the matrix; others must have extent 1: slice a region of them",
        )


def begins_from_zero(clear_accum: Value, accumulator: ir.TensorRegion) -> bool:
    """Tell whether a product clears its accumulator; where only the kernel knows, a branch does."""
    condition = as_condition(clear_accum)
    if isinstance(condition, bool):
        return condition
    with T.If(condition), T.Then():
        clear(accumulator)
    return False


def oriented(operand: ir.Expr, transposed: bool = False) -> tuple[ir.Expr, ir.Expr]:
    """The rows and columns of a matrix, or of its transpose."""
    rows, columns = (extents_of(operand) or [])[-2:]
    return (columns, rows) if transposed else (rows, columns)


def element_of(
    operand: ir.TensorRegion, transposed: bool, row: ir.Expr, column: ir.Expr
) -> ir.TensorLoad:
    """The element of a matrix, or of its transpose, at a row and a column."""
    if transposed:
        row, column = column, row
    *outer, rows, columns = ranges_of(operand)
    indices = [*(axis.min for axis in outer), rows.min + row, columns.min + column]
    return tirx.BufferLoad(buffer_of(operand), indices)
