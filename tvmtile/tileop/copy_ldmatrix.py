"""`T.copy` between shared memory and fragments on NVIDIA GPUs: `ldmatrix` and `stmatrix`.

A fragment that a matrix instruction works on consists of 8x8 matrices, of which lane `l` holds the
elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 in one register, or of column l / 4 where K runs along
columns. The instructions move up to four such matrices, whose rows are 16 bytes each in shared memory
(PTX ISA, "ldmatrix", "stmatrix").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.instructions.matrices import ALONG_COLUMNS, ALONG_ROWS, MATRICES, MATRIX_ROWS
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.operands import bits_of, constant, describe, dtype_of, is_whole
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import is_fragment, is_shared
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import Digit, FragmentLayout, layout_of, with_weights
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.gemm.mma_operands import has_matrix_rows, indices_at
from tvmtile.tileop.registry import Decline, Lacking, LoweringContext, lowering

__all__ = ["MATRICES", "LoadedMatrices", "consists_of_matrices", "load_matrices", "store_matrices"]


def _stores(op: Copy, context: LoweringContext) -> None:
    if not context.gpu.stores_matrices:
        raise Lacking("stmatrix needs sm_90")
    _check_tiles(op.src, op.dst)


def _stores_each_once(op: Copy, _: LoweringContext) -> None:
    if _checked_layout(op.src, op.dst).replicas:
        raise Decline(f"several threads hold copies of {describe(op.src)}")


@lowering(
    Copy,
    target="cuda",
    variant="stmatrix",
    priority=20,
    fits=_stores,
    fits_layouts=_stores_each_once,
)
def store_matrices(op: Copy, context: LoweringContext) -> tirx.Stmt:
    """A fragment into shared memory, converted on the way; every matrix is written once."""
    layout = _checked_layout(op.src, op.dst)
    return LoadedMatrices(op.src, op.dst, layout, context.thread_index).stored()


@lowering(
    Copy,
    target="cuda",
    variant="ldmatrix",
    priority=21,
    fits=lambda op, _: _check_tiles(op.dst, op.src),
    fits_layouts=lambda op, _: _checked_layout(op.dst, op.src),
)
def load_matrices(op: Copy, context: LoweringContext) -> tirx.Stmt:
    """Shared memory into a fragment, converted in registers."""
    layout = _checked_layout(op.dst, op.src)
    return LoadedMatrices(op.dst, op.src, layout, context.thread_index).loaded()


def _check_tiles(fragment: ir.TensorRegion, shared: ir.TensorRegion) -> None:
    """Decline tiles that the instructions can't move, wherever the fragment's elements lie."""
    if not is_fragment(buffer_of(fragment)) or not is_shared(buffer_of(shared)):
        raise Decline("it is no copy between a fragment and shared memory")
    if bits_of(shared) != 16:
        raise Decline(f"{describe(shared)} has no elements of 16 bits")


def _checked_layout(fragment: ir.TensorRegion, shared: ir.TensorRegion) -> FragmentLayout:
    """The layout of a fragment that consists of the instructions' matrices."""
    layout = layout_of(buffer_of(fragment))
    if layout is None or not is_whole(fragment) or len(layout.axes) < 2:
        raise Decline(f"{describe(fragment)} is a part of a fragment, or a vector")
    if not consists_of_matrices(layout):
        raise Decline(f"{describe(fragment)} does not lie as matrix instructions hold it")
    extents = [constant(r.extent) for r in ranges_of(shared)[-2:]]
    if extents != list(layout.shape[-2:]) or not has_matrix_rows(shared):
        raise Decline(f"rows of {describe(shared)} are no whole pieces of 16 bytes")
    return layout


@dataclass(frozen=True)
class _Choice:
    """A digit that says which matrix: of the lane's number in an address, or one of a group's."""

    axis: int
    weight: int
    extent: int


class LoadedMatrices:
    """The matrices of a fragment that a warp holds, and their places in shared memory.

    The fragment is a whole one.
    """

    def __init__(
        self,
        fragment: ir.TensorRegion,
        shared: ir.TensorRegion,
        layout: FragmentLayout,
        thread: Index,
    ) -> None:
        self._fragment = fragment
        self._shared = shared
        self._layout = layout
        self._warp = tirx.floordiv(thread, WARP_SIZE) * WARP_SIZE
        self._lane = tirx.floormod(thread, WARP_SIZE)
        self._trans = layout.axes[-1][-1:] == ALONG_COLUMNS[1]
        self._group, self._others = self._grouped()
        self._of_warp = [self._start_of_warp(axis) for axis in range(2)]

    # Which matrices ------------------------------------------------------------------------------

    def _grouped(self) -> tuple[list[_Choice], list[_Choice]]:
        """The digits of a matrix's number that tell those of one instruction apart, and the others."""
        group: list[_Choice] = []
        others: list[_Choice] = []
        room = MATRICES
        for axis in (1, 0):
            for weight, digit in reversed(self._register_digits(axis)):
                inside = math.gcd(digit.extent, room, self._most_together(axis, weight))
                room //= inside
                group.append(_Choice(axis, weight, inside))
                others.append(_Choice(axis, weight * inside, digit.extent // inside))
        return [c for c in group if c.extent > 1], [c for c in others if c.extent > 1]

    def _most_together(self, axis: int, weight: int) -> int:
        """The most matrices, so many rows or columns apart, that an instruction may move."""
        del axis, weight
        return MATRICES

    def _register_digits(self, axis: int) -> list[tuple[int, Digit]]:
        """The digits that choose a matrix of the warp, with their weights in rows or columns."""
        innermost = (ALONG_COLUMNS if self._trans else ALONG_ROWS)[axis]
        weighted = with_weights(self._layout.axes[-2:][axis])
        return [(w, d) for w, d in weighted[: -len(innermost)] if not d.is_thread]

    @property
    def _per_instruction(self) -> int:
        return math.prod(choice.extent for choice in self._group)

    def origins(self) -> Iterator[list[Index]]:
        """Row and column of the first matrix of each instruction, without the warp's own part."""
        for values in itertools.product(*(range(choice.extent) for choice in self._others)):
            yield _at(self._others, values)

    def _in_group(self, number: Index) -> list[Index]:
        """Row and column of a matrix in its group."""
        values = []
        for choice in self._group:
            values.append(tirx.floormod(number, choice.extent))
            number = tirx.floordiv(number, choice.extent)
        return _at(self._group, values)

    def _start_of_warp(self, axis: int) -> Index:
        """The start of the warp's matrices."""
        place: Index = 0
        for weight, digit in with_weights(self._layout.axes[-2:][axis]):
            if digit.is_thread and digit.stride >= WARP_SIZE:
                place = place + digit.value_in(self._warp, self._layout.threads) * weight
        return place

    # Code ----------------------------------------------------------------------------------------

    def stored(self, origins: Iterable[list[Any]] | None = None) -> tirx.Stmt:
        """The statements that store all matrices, or those of some instructions."""
        instruction = f"stmatrix.sync.aligned.m8n8.x{self._per_instruction}{self._suffix}"
        dtype = dtype_of(self._shared)

        def move(words: ir.Var, elements: ir.Var, origin: list[Index]) -> Iterator[tirx.Stmt]:
            for number, indices in enumerate(self._elements(origin)):
                value = converted(tirx.BufferLoad(buffer_of(self._fragment), indices), dtype)
                yield tirx.BufferStore(elements, value, [number])
            yield tirx.Evaluate(ptx(instruction)(self._address(origin), *self._loads(words)))

        return self._all(move, self.origins() if origins is None else origins)

    def loaded(self) -> tirx.Stmt:
        """The statements that load all matrices."""
        instruction = f"ldmatrix.sync.aligned.m8n8.x{self._per_instruction}{self._suffix}"
        dtype = dtype_of(self._fragment)

        def move(words: ir.Var, elements: ir.Var, origin: list[Index]) -> Iterator[tirx.Stmt]:
            yield tirx.Evaluate(ptx(instruction)(*self._loads(words), self._address(origin)))
            for number, indices in enumerate(self._elements(origin)):
                value = converted(tirx.BufferLoad(elements, [number]), dtype)
                yield tirx.BufferStore(buffer_of(self._fragment), value, indices)

        return self._all(move, self.origins())

    @property
    def _suffix(self) -> str:
        return f"{'.trans' if self._trans else ''}.shared.b16"

    def _all(self, move: Any, origins: Iterable[list[Any]]) -> tirx.Stmt:
        count = self._per_instruction
        statements: list[tirx.Stmt] = []
        for origin in origins:
            words = tirx.decl_buffer((count,), "uint32", name="matrices", scope="local")
            elements = tirx.decl_buffer(
                (2 * count,), dtype_of(self._shared), name="matrix_elements", scope="local"
            )
            statements += [
                tirx.AllocBuffer(words),
                tirx.DeclBuffer(elements, data=words.data),
                *move(words, elements, origin),
            ]
        return seq(statements)

    def _loads(self, words: ir.Var) -> list[ir.TensorLoad]:
        return [tirx.BufferLoad(words, [number]) for number in range(self._per_instruction)]

    def _address(self, origin: list[Index]) -> ir.Call:
        """The lane's operand of the instruction: the address of a row of a matrix."""
        matrix = tirx.floormod(tirx.floordiv(self._lane, MATRIX_ROWS), self._per_instruction)
        row, column = self._place(origin, self._in_group(matrix))
        row = row + tirx.floormod(self._lane, MATRIX_ROWS)
        indices = self.indices_of(row, column)
        return T.address_of(tirx.BufferLoad(buffer_of(self._shared), indices))

    def indices_of(self, row: ir.Expr, column: ir.Expr) -> list[ir.Expr]:
        """The place of an element of the fragment in shared memory."""
        return indices_at(self._shared, row, column)

    def _elements(self, origin: list[Index]) -> Iterator[list[ir.Expr]]:
        """The indices of the elements that the lane holds, in the order of the registers."""
        pair, single = tirx.floormod(self._lane, 4) * 2, tirx.floordiv(self._lane, 4)
        for number in range(self._per_instruction):
            row, column = self._place(origin, self._in_group(number))
            fixed = column + single if self._trans else row + single
            for element in range(2):
                along = pair + element
                place = (row + along, fixed) if self._trans else (fixed, column + along)
                yield indices_at(self._fragment, *place)

    def _place(self, origin: Sequence[Any], within: Sequence[Index]) -> list[ir.Expr]:
        return [self._of_warp[axis] + origin[axis] + within[axis] for axis in range(2)]


def consists_of_matrices(layout: FragmentLayout) -> bool:
    """Tell whether a fragment's rows and columns are those of the instructions' matrices."""
    rows, columns = layout.axes[-2:]
    for inner_rows, inner_columns in (ALONG_ROWS, ALONG_COLUMNS):
        height, width = len(inner_rows), len(inner_columns)
        if rows[-height:] == inner_rows and columns[-width:] == inner_columns:
            rest = (*rows[:-height], *columns[:-width])
            return all(not d.is_thread or d.stride >= WARP_SIZE for d in rest)
    return False


def _at(choices: Sequence[_Choice], values: Sequence[Index]) -> list[Index]:
    place: list[Index] = [0, 0]
    for choice, value in zip(choices, values, strict=True):
        place[choice.axis] = place[choice.axis] + value * choice.weight
    return place
