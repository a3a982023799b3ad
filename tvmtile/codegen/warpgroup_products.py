"""A product of matrices as `wgmma` instructions, with the descriptors of what lies in shared memory.

A descriptor holds an address, the swizzle, and two distances between atoms of 8 rows of a panel (PTX
ISA, "Matrix Descriptor Format"). Where rows run along K, the atoms of a panel follow each other at
the *stride*, and an instruction takes 32 bytes of rows. Where they run along M or N, panels lie side by
side at the *leading* distance, and the atoms of a panel along K at the stride.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.layout import ComposeLayout
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, indices_of, mapped
from tvmtile.errors import VerifyError
from tvmtile.instructions.ptx import ptx
from tvmtile.instructions.wgmma import FAMILIES, ROWS, WARPGROUP, Wgmma
from tvmtile.ir.asynchronous import Product
from tvmtile.ir.calls import takes_address
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.rewriting import seq
from tvmtile.layout.shared import panel_of

_ATOM_ROWS = 8
_UNIT = 16
"""Bytes that addresses and distances in a descriptor count."""
_MODES = {128: 3, 64: 2, 32: 1}
"""How TVM numbers the swizzles, by the bytes of a panel."""
_WORD_BITS = 32


def instructions_of(
    product: Product, analyzer: Analyzer, *, fenced: bool, has_words: bool
) -> tirx.Stmt:
    """The statements that issue a product.

    The product's fragments are registers already, and its tiles have their layouts. `fenced`: threads
    wrote an operand, which the matrix unit reads by another way than they do. `has_words`: a product
    before it has put A's registers together; while that reads them, nothing may write them.
    """
    emitter = _ProductEmitter(product, analyzer)
    return seq(list(emitter.statements(fenced=fenced, has_words=has_words)))


class _ProductEmitter:
    def __init__(self, product: Product, analyzer: Analyzer) -> None:
        self._product = product
        family = FAMILIES[_dtype_of(product.a), _dtype_of(product.b)]
        self._row = Wgmma(product.columns, family.dtypes, family.sums)
        self._has_signs = family.sums == "float32"
        self._names_orders = family.transposes
        self._sums = _Registers(
            product.sums, "sums", product.m * product.n // WARPGROUP, as_words=not self._has_signs
        )
        held = product.m * product.k // WARPGROUP
        self._b = _Tile(product.b, "b", analyzer, along_k=product.b_transposed)
        self._a: _Tile | _Registers = (
            _Tile(product.a, "a", analyzer, along_k=not product.a_transposed)
            if takes_address(product.a)
            else _Registers(product.a, "a", held, as_words=True)
        )

    def statements(self, *, fenced: bool, has_words: bool) -> Iterator[tirx.Stmt]:
        yield from (*self._sums.declarations, *self._a.declarations, *self._b.declarations)
        if fenced:
            yield tirx.Evaluate(ptx("fence.proxy.async.shared::cta")())
        if isinstance(self._a, _Registers) and not has_words:
            yield from self._a.put_together()
        yield tirx.Evaluate(ptx("wgmma.fence.sync.aligned")())
        for step in range(self._product.k // self._row.k):
            for m in range(self._product.m // ROWS):
                for n in range(self._product.n // self._row.n):
                    yield tirx.Evaluate(self._instruction(m, n, step))

    def _instruction(self, m: int, n: int, step: int) -> ir.Expr:
        product, row = self._product, self._row
        number = m * (product.n // row.n) + n
        sums = self._sums.loads(number * row.registers, row.registers)
        adds = T.ptx.pred(tirx.const(int(step > 0 or not product.clear), "int32"))
        b = self._b.descriptor(n * row.n, step * row.k)
        return ptx(row.instruction)(*sums, *self._a_of(m, step), b, adds, *self._options())

    def _a_of(self, m: int, step: int) -> list[ir.Expr]:
        """The operand A of an instruction."""
        row = self._row
        if isinstance(self._a, _Tile):
            return [self._a.descriptor(m * ROWS, step * row.k)]
        held = ROWS * row.k // WARPGROUP
        number = m * (self._product.k // row.k) + step
        return self._a.loads(number * held, held)

    def _options(self) -> list[int]:
        """Signs of A and B, and of each tile whether its rows run along M or N."""
        signs = [1, 1] if self._has_signs else []
        tiles = [each for each in (self._a, self._b) if isinstance(each, _Tile)]
        return signs + [int(not tile.along_k) for tile in tiles if self._names_orders]


def _dtype_of(operand: Any) -> str:
    load = operand.args[0] if takes_address(operand) else operand
    return str(buffer_of(load).ty.dtype)


class _Registers:
    """The elements of a fragment that a thread holds, from one on.

    With `as_words` they are bits to the instructions.
    """

    def __init__(self, first: ir.TensorLoad, name: str, count: int, *, as_words: bool) -> None:
        self._array = buffer_of(first)
        self._count = count
        start = constant(indices_of(first)[0])
        if start is None:
            raise VerifyError(
                f"the registers of {describe(buffer_of(first))} depend on the thread",
                help="this is a defect of tvmtile: please report it with the kernel",
            )
        self._first = start
        self._per_word = _WORD_BITS // int(DataType(str(self._array.ty.dtype)).bits)
        self.declarations: list[tirx.Stmt] = []
        if as_words:
            count = -(-int(self._array.ty.shape[0]) // self._per_word)
            view = tirx.decl_buffer((count,), "uint32", name=f"{name}_words", scope="local")
            self.declarations.append(tirx.DeclBuffer(view, data=self._array.data))
            self._array = view

    def put_together(self) -> Iterator[tirx.Stmt]:
        """Put the words of smaller elements together before the fence.

        Between the instructions that read them, as NVRTC has it at times, ptxas adds a fence (C7519).
        """
        words = self.loads(0, self._count)
        move = ptx("mov.b32")(words[0], words[0])  # TVM takes long to check each operand

        def moved(word: ir.Expr) -> tirx.Stmt:
            return tirx.Evaluate(mapped(move, (ir.TensorLoad, lambda _: word)))

        yield from map(moved, words if self._per_word > 1 else ())

    def loads(self, start: int, count: int) -> list[ir.Expr]:
        """The registers that hold some elements."""
        first = (self._first + start) // self._per_word
        return [tirx.BufferLoad(self._array, [first + i]) for i in range(count // self._per_word)]


class _Tile:
    """A matrix in shared memory.

    Its rows run along K, or along M or N. The address is that of the first element.
    """

    def __init__(self, address: ir.Call, name: str, analyzer: Analyzer, *, along_k: bool) -> None:
        (load,) = address.args
        self._buffer, self._origin = buffer_of(load), list(indices_of(load))
        self._dtype = str(self._buffer.ty.dtype)
        self._item = int(DataType(self._dtype).bits) // 8
        self._analyzer = analyzer
        self.along_k = along_k
        layout = self._buffer.ty.layout
        if not isinstance(layout, ComposeLayout) or panel_of(layout, self._dtype) not in _MODES:
            raise VerifyError(
                f"{describe(self._buffer)} does not lie as wgmma finds elements",
                help="this is a defect of tvmtile: please report it with the kernel",
            )
        self._layout = layout
        self._units: dict[tuple[int, int], ir.Expr] = {}
        self._words = tirx.decl_buffer((1,), "uint64", name=f"{name}_descriptor", scope="local")
        self.declarations: list[tirx.Stmt] = [tirx.AllocBuffer(self._words), self._encoded()]

    def descriptor(self, outer: int, k: int) -> ir.Expr:
        """A descriptor of the part of the matrix that begins at `outer` and `k`.

        What two of them differ by is added last, where it is a constant: all else is computed once.
        """
        words = tirx.BufferLoad(self._words, [0])
        start, place = self._start, self._units_at(outer, k)
        apart = constant(self._analyzer.simplify(place - start))
        if not apart or constant(start) is not None:
            return words + tirx.Cast("uint64", place)
        return words + tirx.Cast("uint64", start) + tirx.const(apart, "uint64")

    @cached_property
    def _start(self) -> ir.Expr:
        return self._units_at(0, 0)

    def _units_at(self, outer: int, k: int) -> ir.Expr:
        """The place of an element of the matrix, in the unit of addresses."""
        if (outer, k) not in self._units:
            place = self._place(*((outer, k) if self.along_k else (k, outer)))
            self._units[outer, k] = self._analyzer.simplify(place * self._item // _UNIT)
        return self._units[outer, k]

    def _encoded(self) -> tirx.Stmt:
        """The descriptor of the first element of the memory that the tile has."""
        panel = panel_of(self._layout, self._dtype)
        leading = _UNIT if self.along_k else int(self._buffer.ty.shape[-2]) * panel
        encode = T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(tirx.BufferLoad(self._words, [0])),
            T.address_of(tirx.BufferLoad(self._buffer, [0] * len(self._origin))),
            leading // _UNIT,
            _ATOM_ROWS * panel // _UNIT,
            _MODES[panel],
        )
        return tirx.Evaluate(encode)

    def _place(self, rows: int, columns: int) -> ir.Expr:
        """The place of an element of the matrix, without the swizzle, which the hardware adds."""
        *outer, row, column = self._origin
        indices = [*outer, row + rows, column + columns]
        place = self._layout.tile_layout.apply(*indices, shape=self._buffer.ty.shape)["m"]
        return self._analyzer.simplify(place)
