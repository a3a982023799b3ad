"""Operands of a CPU's matrix multiplication, packed: converted, and transposed where need be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import ir, tirx

from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.vectors import loop, ramp, vector_dtype


class ElementSource(Protocol):
    """A source of elements, by row and column."""

    def load(self, row: Index, column: Index, lanes: int = 1, dtype: str | None = None) -> Any:
        """`lanes` neighbours in a row, converted to `dtype`."""


@dataclass(frozen=True)
class Matrix:
    """The last two axes of `buffer`, from `origin` on."""

    buffer: ir.Var
    """A buffer."""
    origin: Sequence[Index]
    """One index for each axis of the buffer."""

    @property
    def dtype(self) -> str:
        """Dtype of the elements."""
        return str(self.buffer.ty.dtype)

    def moved(self, rows: Index, columns: Index) -> Matrix:
        """The matrix that begins so many rows and columns further on."""
        *outer, row, column = self.origin
        return Matrix(self.buffer, [*outer, row + rows, column + columns])

    def load(self, row: Index, column: Index, lanes: int = 1, dtype: str | None = None) -> ir.Expr:
        """`lanes` neighbours in a row, converted to `dtype`."""
        value = tirx.BufferLoad(self.buffer, self._at(row, column, lanes))
        return converted(value, dtype or self.dtype)

    def store(self, row: Index, column: Index, value: ir.Expr, lanes: int = 1) -> tirx.Stmt:
        """Store `lanes` neighbours in a row, converted to the matrix's dtype."""
        indices = self._at(row, column, lanes)
        return tirx.BufferStore(self.buffer, converted(value, self.dtype), indices)

    def _at(self, row: Index, column: Index, lanes: int) -> list[Index]:
        *outer, first_row, first_column = self.origin
        return [*outer, first_row + row, ramp(first_column + column, lanes)]


def cast_copy(dst: Matrix, src: ElementSource, shape: tuple[int, int]) -> tirx.Stmt:
    """`dst[i, j] = cast(src[i, j])`, which LLVM vectorises by itself."""
    rows, columns = shape
    return loop("i", rows, lambda i: loop("j", columns, lambda j: _element(dst, src, i, j, i, j)))


def _element(
    dst: Matrix, src: ElementSource, i: ir.Expr, j: ir.Expr, source_i: ir.Expr, source_j: ir.Expr
) -> tirx.Stmt:
    return dst.store(i, j, src.load(source_i, source_j, 1, dst.dtype))


def transposing_copy(dst: Matrix, src: ElementSource, k: int, widths: tuple[int, ...]) -> tirx.Stmt:
    """`dst[i, j] = cast(src[j, i])` for `k` rows i: squares of a vector's lanes, then single elements.

    One by one, the elements would cost a tenth (256 x 256) to a third (64 x 64) of the whole gemm.
    """
    body: list[tirx.Stmt] = []
    column = 0
    for lanes in widths:
        squares, rest = divmod(k, lanes)
        if squares:
            body.append(loop("s", squares, _square_emitter(dst, src, column, lanes)))
        if rest:
            body.append(_remainder(dst, src, k - rest, rest, column, lanes))
        column += lanes
    return seq(body)


def _square_emitter(
    dst: Matrix, src: ElementSource, column: int, lanes: int
) -> Callable[[ir.Var], tirx.Stmt]:
    return lambda square: _transposed_square(dst, src, square * lanes, column, lanes)


def _remainder(
    dst: Matrix, src: ElementSource, row: int, rows: int, column: int, columns: int
) -> tirx.Stmt:
    def element(i: Any, j: ir.Var) -> tirx.Stmt:
        return _element(dst, src, row + i, column + j, column + j, row + i)

    return loop("i", rows, lambda i: loop("j", columns, lambda j: element(i, j)))


def _transposed_square(
    dst: Matrix, src: ElementSource, row: Index, column: Index, size: int
) -> tirx.Stmt:
    """`dst[row + i, column + j] = src[column + j, row + i]` for a square, a power of two wide.

    Eklundh's method in registers: log2(size) rounds, of which round s exchanges, between rows that
    are s apart, the columns with bit s and those without.
    """
    body: list[tirx.Stmt] = []

    def bind(value: ir.Expr) -> ir.Var:
        var = tirx.Var("t", vector_dtype(dst.dtype, size))
        body.append(tirx.Bind(var, value))
        return var

    # A cast from bfloat16 must not stand in a Bind: TVM 0.27's BF16ComputeLegalize overlooks it
    # there, and LLVM converts the bits as if they were an integer. So it goes through an array that
    # is a register.
    loaded = [array((1, size), dst.dtype, f"row{j}") for j in range(size)]
    for j, register in enumerate(loaded):
        body.append(tirx.AllocBuffer(register.buffer))
        body.append(register.store(0, 0, src.load(column + j, row, size, dst.dtype), size))
    rows = [bind(register.load(0, 0, size)) for register in loaded]
    distance = size // 2
    while distance:
        upper, lower = _exchange(size, distance)
        for i in (i for i in range(size) if not i & distance):
            pair = [rows[i], rows[i + distance]]
            rows[i], rows[i + distance] = (
                bind(tirx.Shuffle(pair, upper)),
                bind(tirx.Shuffle(pair, lower)),
            )
        distance //= 2
    body += [dst.store(row + i, column, rows[i], size) for i in range(size)]
    return seq(body)


def _exchange(size: int, distance: int) -> tuple[list[Any], list[Any]]:
    """The origins of two rows' columns, as positions in the two rows put together."""
    upper = [size + j - distance if j & distance else j for j in range(size)]
    lower = [size + j if j & distance else j + distance for j in range(size)]
    return [tirx.const(i, "int32") for i in upper], [tirx.const(i, "int32") for i in lower]


def array(shape: tuple[int, int], dtype: str, name: str) -> Matrix:
    """A new array of the host; its allocation is a statement of the caller's."""
    return Matrix(tirx.decl_buffer(shape, dtype, name=name, scope="local"), (0, 0))
