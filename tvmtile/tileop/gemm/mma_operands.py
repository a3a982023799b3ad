"""The operands of `mma.sync` in registers, and how they come there.

`ldmatrix` loads up to four matrices of 8 rows of 16 bytes; lane `l` gets word `l % 4` of row `l // 4`
(PTX ISA, "ldmatrix"). That is where an instruction wants its elements if they follow each other along K
in memory, whatever their width; `.trans` does the same for elements of 16 bits that follow each other
along M or N. What it can't load comes element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.instructions.matrices import MATRICES, MATRIX_ROWS
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.operands import bits_of, constant, dtype_of
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import REGISTER, Digit, with_weights
from tvmtile.layout.shared import contiguous_run, has_plain_rows
from tvmtile.tileop.gemm.partition import Axis, registers_of
from tvmtile.tileop.vectors import ramp

_WORD_BITS = 32
_ROW_BITS = 128


class MmaOperand:
    """The registers of A or B that one step along K needs.

    It is in shared memory or a fragment. The axes say where the elements of one instruction lie: the
    digits of rows and of columns; a warp does `count` instructions side by side along M (of A) or N (of
    B). K is along rows (0) or columns (1), and a transposed operand is stored as columns of rows.
    """

    def __init__(
        self,
        operand: ir.TensorRegion,
        axes: tuple[Axis, Axis],
        count: int,
        name: str,
        *,
        transposed: bool,
        k_axis: int,
    ) -> None:
        self._operand = operand
        self._axes = axes
        self._count = count
        self._transposed = transposed
        self._k_axis = k_axis
        self._bits = bits_of(operand)
        self._size = registers_of(axes)
        self._per_word = max(1, _WORD_BITS // self._bits)
        words, dtype = count * self._size // self._per_word, dtype_of(operand)
        self._words = tirx.decl_buffer(
            (words,), "uint32" if self._bits < 64 else dtype, name=name, scope="local"
        )
        self._elements = tirx.decl_buffer(
            (count * self._size,), dtype, name=f"{name}_elements", scope="local"
        )
        view = tirx.DeclBuffer(self._elements, data=self._words.data)
        self.allocations: list[tirx.Stmt] = [tirx.AllocBuffer(self._words), view]

    @property
    def _words_of_one(self) -> int:
        """Registers of one instruction."""
        return self._size // self._per_word

    @property
    def _follows_k(self) -> bool:
        """Tell whether neighbours in memory are neighbours along K."""
        return self._transposed == (self._k_axis == 0)

    def registers_of(self, number: int, step: int = 0) -> list[ir.Expr]:
        """The registers of one instruction, of the `step`-th of those along K that were loaded."""
        assert step == 0, "one instruction along K at a time"
        first = number * self._words_of_one
        return [tirx.BufferLoad(self._words, [first + w]) for w in range(self._words_of_one)]

    def loads(
        self, origin: Callable[[int], tuple[ir.Expr, ir.Expr]], lane: ir.Expr
    ) -> Iterator[tirx.Stmt]:
        """The statements that load all of them.

        `origin` gives row and column of the first element of an instruction, by its number.
        """
        if not self._comes_by_matrices():
            for number in range(self._count):
                yield from self._by_elements(number, origin(number), lane)
            return
        together = max(1, MATRICES // self._words_of_one)
        number = 0
        while number < self._count:
            count = together if number + together <= self._count else 1
            yield self._by_matrices(number, count, origin(number), lane)
            number += count

    def _by_elements(
        self, number: int, first: tuple[ir.Expr, ir.Expr], lane: ir.Expr
    ) -> Iterator[tirx.Stmt]:
        for element in range(self._size):
            row, column = place_of(self._axes, lane, element)
            indices = self._indices(first[0] + row, first[1] + column)
            load = tirx.BufferLoad(buffer_of(self._operand), indices)
            yield tirx.BufferStore(self._elements, load, [number * self._size + element])

    def _comes_by_matrices(self) -> bool:
        """Tell whether the rows of all matrices are 16 bytes side by side, from such an address on."""
        if not is_shared(buffer_of(self._operand)) or self._bits > _WORD_BITS:
            return False
        return (self._bits == 16 or self._follows_k) and has_matrix_rows(self._operand)

    def _by_matrices(
        self, number: int, count: int, first: tuple[ir.Expr, ir.Expr], lane: ir.Expr
    ) -> tirx.Stmt:
        """One `ldmatrix`: the lanes of each group of eight give the addresses of a matrix's rows.

        The matrices follow each other as the registers do: along M (of A) or K (of B) first.
        """
        words = count * self._words_of_one
        matrix = tirx.floormod(tirx.floordiv(lane, MATRIX_ROWS), words)
        instruction = tirx.floordiv(matrix, self._words_of_one)
        matrix = tirx.floormod(matrix, self._words_of_one)
        outer = 1 - self._k_axis
        extent = math.prod(digit.extent for digit in self._axes[outer])
        beside = extent // MATRIX_ROWS
        place: list[Index] = [0, 0]
        place[outer] = instruction * extent + tirx.floormod(matrix, beside) * MATRIX_ROWS
        place[self._k_axis] = tirx.floordiv(matrix, beside) * (_ROW_BITS // self._bits)
        # The lane's row of the matrix is a row in memory.
        along = outer if self._follows_k else self._k_axis
        place[along] = place[along] + tirx.floormod(lane, MATRIX_ROWS)
        indices = self._indices(first[0] + place[0], first[1] + place[1])
        address = T.address_of(tirx.BufferLoad(buffer_of(self._operand), indices))
        start = number * self._words_of_one
        registers = [tirx.BufferLoad(self._words, [start + w]) for w in range(words)]
        trans = "" if self._follows_k else ".trans"
        load = ptx(f"ldmatrix.sync.aligned.m8n8.x{words}{trans}.shared.b16")
        return tirx.Evaluate(load(*registers, address))

    def _indices(self, row: ir.Expr, column: ir.Expr) -> list[ir.Expr]:
        place = (column, row) if self._transposed else (row, column)
        return indices_at(self._operand, *place)


class Runs(MmaOperand):
    """The registers that several steps along K need: a lane's elements are neighbours along K."""

    def __init__(
        self,
        operand: ir.TensorRegion,
        axes: tuple[Axis, Axis],
        count: int,
        name: str,
        *,
        transposed: bool,
        k_axis: int,
        packed: int,
    ) -> None:
        runs = in_runs(axes, k_axis, packed)
        super().__init__(operand, runs, count, name, transposed=transposed, k_axis=k_axis)
        self._of_one = axes
        self._held = _held(axes[k_axis])
        self._run = self._held * packed

    def registers_of(self, number: int, step: int = 0) -> list[ir.Expr]:
        registers: list[ir.Expr] = []
        for element in range(0, registers_of(self._of_one), self._per_word):
            along, beside = (
                _number(self._of_one[axis], element) for axis in (self._k_axis, 1 - self._k_axis)
            )
            place = number * self._size + beside * self._run + step * self._held + along
            registers.append(tirx.BufferLoad(self._words, [place // self._per_word]))
        return registers

    def loads(
        self, origin: Callable[[int], tuple[ir.Expr, ir.Expr]], lane: ir.Expr
    ) -> Iterator[tirx.Stmt]:
        if not self._comes_by_vectors():
            for number in range(self._count):
                yield from self._by_elements(number, origin(number), lane)
            return
        view = _as_words(buffer_of(self._operand), self._per_word)
        yield tirx.DeclBuffer(view, data=buffer_of(self._operand).data)
        together = math.gcd(self._run, _ROW_BITS // self._bits)
        for number in range(self._count):
            for first in range(0, self._size, together):
                yield self._by_vector(view, number, first, together, origin(number), lane)

    def _comes_by_vectors(self) -> bool:
        """Tell whether neighbours along K are so in memory, as whole words."""
        if not is_shared(buffer_of(self._operand)) or self._bits > _WORD_BITS:
            return False
        return self._follows_k and has_matrix_rows(self._operand)

    def _by_vector(
        self,
        view: ir.Var,
        number: int,
        first: int,
        count: int,
        origin: tuple[ir.Expr, ir.Expr],
        lane: ir.Expr,
    ) -> tirx.Stmt:
        """The load of `count` neighbours, from a lane's element `first` on."""
        row, column = place_of(self._axes, lane, first)
        *outer, last = self._indices(origin[0] + row, origin[1] + column)
        words = count // self._per_word
        source = tirx.BufferLoad(view, [*outer, ramp(tirx.floordiv(last, self._per_word), words)])
        place = (number * self._size + first) // self._per_word
        return tirx.BufferStore(self._words, source, [ramp(place, words)])


def _as_words(buffer: ir.Var, per_word: int) -> ir.Var:
    """A view of a tile in words."""
    *outer, last = buffer.ty.shape
    return tirx.decl_buffer(
        [*outer, tirx.floordiv(last, per_word)],
        "uint32",
        name=f"{buffer.name}_words",
        scope=buffer.ty.storage_scope,
        layout=buffer.ty.layout.pack(per_word) if not has_plain_rows(buffer) else "default",
    )


def in_runs(axes: tuple[Axis, Axis], k_axis: int, packed: int) -> tuple[Axis, Axis]:
    """The places of the elements of `packed` instructions in a lane, with neighbours along K.

    The axes say where the elements of one instruction lie; K is along rows (0) or columns (1).
    """
    if packed == 1:
        return axes
    run = _held(axes[k_axis]) * packed
    along = [*(d for d in axes[k_axis] if d.is_thread), Digit(run, REGISTER, 1)]
    beside: list[Digit] = []
    stride = run
    for digit in reversed(axes[1 - k_axis]):
        beside.insert(0, digit if digit.is_thread else Digit(digit.extent, REGISTER, stride))
        stride *= 1 if digit.is_thread else digit.extent
    placed = (tuple(beside), tuple(along))
    return placed if k_axis == 1 else placed[::-1]


def _held(axis: Axis) -> int:
    """Elements along an axis that a lane holds."""
    return math.prod(digit.extent for digit in axis if not digit.is_thread)


def _number(axis: Axis, element: int) -> int:
    """The place along an axis, of the lane's own ones, that an element of its registers has."""
    own = tuple(digit for digit in axis if not digit.is_thread)
    return sum(weight * (element // d.stride % d.extent) for weight, d in with_weights(own))


def has_matrix_rows(region: ir.TensorRegion) -> bool:
    """Tell whether rows of a tile in shared memory are pieces of 16 bytes, each at a multiple of 16."""
    buffer = buffer_of(region)
    row = _ROW_BITS // bits_of(buffer)
    run = contiguous_run(buffer)
    starts = [ranges_of(region)[-1].min, buffer.ty.shape[-1] if run is None else run]
    if run is None and buffer.ty.strides:
        starts += list(buffer.ty.strides[:-1])
    return all(constant(tirx.floormod(start, row)) == 0 for start in starts)


def place_of(axes: tuple[Axis, Axis], lane: ir.Expr, element: int) -> list[ir.Expr]:
    """Row and column of an element that a lane holds."""
    place = []
    for digits in axes:
        index: ir.Expr = tirx.const(0, "int32")
        for weight, digit in with_weights(digits):
            if digit.is_thread:
                index = index + digit.value_in(lane, WARP_SIZE) * weight
            else:
                index = index + element // digit.stride % digit.extent * weight
        place.append(index)
    return place


def indices_at(operand: ir.TensorRegion, row: Index, column: Index) -> list[ir.Expr]:
    """The indices of an element of an operand."""
    *outer, rows, columns = ranges_of(operand)
    return [*(r.min for r in outer), rows.min + row, columns.min + column]
