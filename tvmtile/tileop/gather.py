"""`T.gather4`, `T.gather_rows` and their scatters: move rows of a tensor that indices name.

They stand for elementwise loops, which take their place before anything else is decided: pipelines run
them ahead, and NVIDIA's GPUs copy asynchronously, as for `T.copy`. Of rows that a scatter names twice
the last one is written: the others get an index outside of the tensor, where nothing is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, ranges_of
from tvmtile.errors import InvalidOperand, ShapeMismatch, UnsupportedDtype
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.frontend.values import as_expr
from tvmtile.ir.operands import as_region, constant, describe, dtype_of, extents_of, same_extents
from tvmtile.ir.operators import VARARGS, OperatorEffects, TileOp, tile_operator
from tvmtile.ir.rewriting import for_loop, nest, seq
from tvmtile.ir.scopes import SHARED_SCOPE, is_global
from tvmtile.ir.types import Index, TileOperand
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.matrices import element_of, oriented

_INDICES = ("int32", "int64")


def gather4(src: TileOperand, dst: TileOperand, col: Index, rows: Sequence[Index]) -> None:
    """Copy parts of four rows of a tensor into a tile.

    Parameters
    ----------
    src : buffer
        A tensor in global memory, (M, K).
    dst : buffer or region
        A tile of (4, n).
    col : int or Expr
        The first column. Columns beyond K read zeros.
    rows : sequence of int or Expr
        The four rows, mostly loaded from a tensor. A row out of range, such as -1, reads zeros.

    Raises
    ------
    ShapeMismatch
        If the tile has not as many rows as there are indices.
    InvalidOperand
        If `src` is no matrix in global memory.
    UnsupportedDtype
        If an index is neither int32 nor int64.
    """
    _emit("gather4", src, dst, col, _four("gather4", rows), scatter=False)


def scatter4(src: TileOperand, dst: TileOperand, col: Index, rows: Sequence[Index]) -> None:
    """Copy a tile of four rows into rows of a tensor; see `gather4`.

    A row out of range is not written, nor are columns beyond K. Of a row that is named twice the last
    one is written, whole.

    Parameters
    ----------
    src : buffer or region
        A tile of (4, n).
    dst : buffer
        A tensor in global memory, (M, K).
    col, rows
        As of `gather4`.
    """
    _emit("scatter4", dst, src, col, _four("scatter4", rows), scatter=True)


def gather_rows(src: Any, dst: Any, rows: Any, col: Any = 0) -> None:
    """Copy parts of rows of a tensor into a tile of as many rows as there are indices.

    Parameters
    ----------
    src : buffer
        A tensor in global memory, (M, K).
    dst : buffer or region
        A tile of (m, n).
    rows : buffer or region
        The m indices, of a tile or a tensor. A row out of range, such as -1, reads zeros.
    col : int or Expr
        The first column. Columns beyond K read zeros.

    Raises
    ------
    ShapeMismatch, InvalidOperand, UnsupportedDtype
        As of `gather4`.
    """
    _emit("gather_rows", src, dst, col, [_index_tile("gather_rows", rows)], scatter=False)


def scatter_rows(src: Any, dst: Any, rows: Any, col: Any = 0) -> None:
    """Copy the rows of a tile into rows of a tensor; see `gather_rows` and `scatter4`.

    Parameters
    ----------
    src : buffer or region
        A tile of (m, n).
    dst : buffer
        A tensor in global memory, (M, K).
    rows, col
        As of `gather_rows`.
    """
    _emit("scatter_rows", dst, src, col, [_index_tile("scatter_rows", rows)], scatter=True)


def _four(name: str, rows: Sequence[Index]) -> list[ir.Expr]:
    if not isinstance(rows, list | tuple) or len(rows) != 4:
        raise ShapeMismatch(
            f"{name}: rows is {describe(rows)}",
            help=f"give four indices; T.{name.removesuffix('4')}_rows takes a tile of any number",
        )
    return [as_expr(row) for row in rows]


def _index_tile(name: str, rows: Any) -> ir.Expr:
    if not isinstance(rows, ir.TensorRegion) and not is_buffer_var(rows):
        raise InvalidOperand(
            f"{name}: rows is {describe(rows)}, not a tile of indices",
            help="give a buffer or a region `indices[i0:i1]`",
        )
    return check_operand(name, "rows", rows)


def _emit(name: str, tensor: Any, tile: Any, col: Any, rows: list[Any], scatter: bool) -> None:
    tensor, tile = check_operand(name, "tensor", tensor), check_operand(name, "tile", tile)
    emit(MoveRows(tensor, tile, as_expr(col), tuple(rows), written=name, scatter=scatter))


@tile_operator
class MoveRows(TileOp):
    """Copy rows of a tensor into a tile, or those of a tile into a tensor."""

    name = "move_rows"

    tensor: ir.TensorRegion
    tile: ir.TensorRegion
    col: ir.Expr
    rows: tuple[ir.Expr, ...] = field(metadata=VARARGS)
    written: str = ""
    scatter: bool = False

    @property
    def _index(self) -> Any:
        """The tile of indices; None where they are expressions."""
        first = self.rows[0]
        is_tile = isinstance(first, ir.TensorRegion) or is_buffer_var(first)
        return first if len(self.rows) == 1 and is_tile else None

    def effects(self) -> OperatorEffects:
        index = [] if self._index is None else [self._index]
        source, target = (self.tensor, self.tile)[:: -1 if self.scatter else 1]
        return OperatorEffects([source, *index], [target])

    def normalized(self) -> MoveRows:
        rows = self.rows if self._index is None else (as_region(self._index),)
        return replace(self, tensor=as_region(self.tensor), tile=as_region(self.tile), rows=rows)

    def check(self) -> None:
        if not is_buffer_var(self.tensor) or len(self.tensor.ty.shape) != 2:
            self._refuse(self.tensor, "a whole tensor of two axes")
        if not is_global(buffer_of(self.tensor)):
            self._refuse(self.tensor, "a tensor in global memory")
        extents = extents_of(self.tile)
        if extents is None or len(extents) < 2 or any(constant(e) != 1 for e in extents[:-2]):
            self._refuse(self.tile, "a tile of two axes")
        count: Any = len(self.rows)
        if self._index is not None:
            moving = [e for e in extents_of(self._index) or [] if constant(e) != 1]
            count = moving[0] if len(moving) == 1 else 0 if moving else 1
        if not same_extents(oriented(self.tile)[0], count):
            raise ShapeMismatch(
                f"{self.written}: {describe(self.tile)} has {oriented(self.tile)[0]} rows\n"
                f"  rows: {', '.join(map(describe, self.rows))}",
                help=f"there are {count} indices: the tile has as many rows",
            )
        for row in self.rows:
            dtype = str(row.ty.dtype) if self._index is None else dtype_of(row)
            if dtype not in _INDICES:
                raise UnsupportedDtype(
                    f"{self.written}: the index {describe(row)} is of {dtype}",
                    help=f"indices are of {' or '.join(_INDICES)}",
                )

    def _refuse(self, operand: ir.Expr, wanted: str) -> None:
        raise InvalidOperand(
            f"{self.written}: {describe(operand)} is not {wanted}", help=f"give {wanted}"
        )

    # What it stands for ------------------------------------------------------------------------------

    def expanded(self, target: Target | None) -> tirx.Stmt:
        del target
        before, row_of = self._named_rows() if self._index is None else self._rows_of_tile()

        def move(variables: list[ir.Var]) -> tirx.Stmt:
            i, j = variables
            inside = element_of(self.tile, False, i, j)
            place = [row_of(i), self.col + j]
            if self.scatter:
                value = converted(inside, dtype_of(self.tensor))
                return tirx.BufferStore(buffer_of(self.tensor), value, place)
            value = converted(tirx.BufferLoad(buffer_of(self.tensor), place), dtype_of(self.tile))
            return tirx.BufferStore(buffer_of(inside), value, indices_of(inside))

        return seq([*before, nest(list(oriented(self.tile)), move)])

    def _named_rows(self) -> tuple[list[tirx.Stmt], Any]:
        """Names of the rows, and which one a row of the tile is."""
        dtype = "int64" if any(str(row.ty.dtype) == "int64" for row in self.rows) else "int32"
        names = [tirx.Var(f"row{number}", dtype) for number in range(len(self.rows))]
        binds: list[tirx.Stmt] = [
            tirx.Bind(name, converted(row, dtype))
            for name, row in zip(names, self.rows, strict=True)
        ]

        def last(number: int) -> Any:
            again = [later == names[number] for later in names[number + 1 :]]
            if not self.scatter or not again:
                return names[number]
            return tirx.Select(tirx.any(*again), tirx.const(-1, dtype), names[number])

        def row_of(i: ir.Expr) -> ir.Expr:
            chosen = last(len(names) - 1)
            for number in reversed(range(len(names) - 1)):
                chosen = tirx.Select(i == number, last(number), chosen)
            return chosen

        return binds, row_of

    def _rows_of_tile(self) -> tuple[list[tirx.Stmt], Any]:
        """The same of a tile of indices."""

        def load(i: ir.Var) -> Any:
            indices = [
                r.min + (0 if constant(r.extent) == 1 else i) for r in ranges_of(self._index)
            ]
            return tirx.BufferLoad(buffer_of(self._index), indices)

        if not self.scatter:
            return [], load
        count, dtype = oriented(self.tile)[0], dtype_of(self._index)
        kept = tirx.decl_buffer((count,), dtype, name="rows_kept", scope=SHARED_SCOPE)

        def keep(variables: list[ir.Var]) -> tirx.Stmt:
            (i,), t = variables, tirx.Var("t", "int32")
            again = tirx.all(t > i, load(t) == load(i))
            held = tirx.BufferLoad(kept, [i])
            drop = tirx.Select(again, tirx.const(-1, dtype), held)
            later = for_loop(t, count, tirx.BufferStore(kept, drop, [i]))
            return seq([tirx.BufferStore(kept, load(i), [i]), later])

        choose = nest([count], keep)
        return [tirx.AllocBuffer(kept), choose], lambda i: tirx.BufferLoad(kept, [i])
