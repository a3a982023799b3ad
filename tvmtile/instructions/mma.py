"""`mma.sync` and `mma.sp`: what they multiply, and which lane of a warp holds which element.

The lane maps are those of the PTX ISA, "Matrix fragments for mma" and "... for sparse matrix A".
Lowering takes layouts from them, and the emulator the meaning of the instructions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import DataType

from tvmtile.ir.threads import WARP_SIZE
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, with_weights

Axis: TypeAlias = tuple[Digit, ...]
_WORD_BITS = 32
_GROUPS = 8  # of four lanes
_LANES_OF_ROWS = WARP_SIZE // _GROUPS


def _lane(extent: int, stride: int) -> Digit:
    return Digit(extent, THREAD, stride)


def _register(extent: int, stride: int) -> Digit:
    return Digit(extent, REGISTER, stride)


@dataclass(frozen=True)
class Atom:
    """One `mma.sync` instruction, and where its elements lie."""

    dtypes: tuple[str, str]
    """Of A and B, as PTX names them."""
    sums: str
    """Dtype of the accumulator in the instruction."""
    m: int
    n: int
    k: int
    """Extents."""
    a: tuple[Axis, Axis]
    b: tuple[Axis, Axis]
    c: tuple[Axis, Axis]
    """The digits of the indices (m, k), (k, n) and (m, n): lane and element in its registers."""
    sparse: bool = False
    """Half of A is left out: it is (m, k / 2), and one more register says which half."""

    @property
    def stored_k(self) -> int:
        """Extent of A along K."""
        return self.k // 2 if self.sparse else self.k

    @property
    def place_bits(self) -> int:
        """Bits of metadata for a stored element: one of four in 2 bits, or one of two halves twice."""
        return 4 if self.dtypes[0] == "tf32" else 2

    @property
    def metadata_bits(self) -> int:
        """Bits of metadata for a row of A."""
        return self.place_bits * self.stored_k

    @property
    def instruction(self) -> str:
        """The PTX instruction."""
        shape = f"m{self.m}n{self.n}k{self.k}"
        sums = _PTX[self.sums]
        mma = "mma.sp::ordered_metadata" if self.sparse else "mma"
        return f"{mma}.sync.aligned.{shape}.row.col.{sums}.{'.'.join(self.dtypes)}.{sums}"


_PTX = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "int32": "s32",
    "int8": "s8",
    "uint8": "u8",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
_FACTORS = {"float32": "tf32"}
_C_16 = ((_register(2, 2), _lane(8, 4)), (_lane(4, 1), _register(2, 1)))


def m16n8(a: str, b: str, sums: str, pieces: int = 2, *, sparse: bool = False) -> Atom:
    """The instruction of 16 x 8 whose lanes hold so many words of a row of A.

    `pieces` are words of a row of A that a lane holds; a word of each lane of four makes a piece of the
    row. `sparse`: half of A is left out, so that a lane holds twice as many words of B.
    """
    packed = 32 // int(DataType(a).bits)
    pieces_of_b = 2 * pieces if sparse else pieces

    def row(count: int, stride: int) -> Axis:
        digits = (_register(count, stride), _lane(4, 1), _register(packed, 1))
        return tuple(digit for digit in digits if digit.is_thread or digit.extent > 1)

    return Atom(
        (_FACTORS.get(a) or _PTX[a], _FACTORS.get(b) or _PTX[b]),
        sums,
        16,
        8,
        4 * packed * pieces_of_b,
        ((_register(2, packed), _lane(8, 4)), row(pieces, 2 * packed)),
        (row(pieces_of_b, packed), (_lane(8, 4),)),
        _C_16,
        sparse,
    )


_F64 = Atom(
    ("f64", "f64"),
    "float64",
    8,
    8,
    4,
    ((_lane(8, 4),), (_lane(4, 1),)),
    ((_lane(4, 1),), (_lane(8, 4),)),
    ((_lane(8, 4),), (_lane(4, 1), _register(2, 1))),
)

PAIRS_OF_BYTES = [
    (a, b, sums)
    for dtypes, sums in (
        (("int8", "uint8"), "int32"),
        (("float8_e4m3fn", "float8_e5m2"), "float32"),
    )
    for a in dtypes
    for b in dtypes
]
"""Dtypes of A and B of a byte each that are multiplied, and of their sums."""
ATOMS: dict[tuple[str, str], tuple[Atom, ...]] = {
    ("float16", "float16"): (m16n8("float16", "float16", "float32"),),
    ("bfloat16", "bfloat16"): (m16n8("bfloat16", "bfloat16", "float32"),),
    ("float32", "float32"): (m16n8("float32", "float32", "float32"),),
    **{
        (a, b): tuple(m16n8(a, b, sums, pieces) for pieces in (2, 1))
        for a, b, sums in PAIRS_OF_BYTES
    },
    ("float64", "float64"): (_F64,),
}
"""The instructions for dtypes of A and B, that with the largest k first."""
SPARSE_ATOMS: dict[tuple[str, str], tuple[Atom, ...]] = {
    **{
        (dtype, dtype): (m16n8(dtype, dtype, "float32", sparse=True),)
        for dtype in ("float16", "bfloat16", "float32")
    },
    **{(a, b): (m16n8(a, b, sums, sparse=True),) for a, b, sums in PAIRS_OF_BYTES},
}
"""The instructions whose A has two of four elements, for dtypes of A and B."""


@dataclass(frozen=True)
class MetadataPiece:
    """Bits of a row's metadata in the word of a lane.

    The metadata of a row of A says where its stored elements belong, the first in the lowest bits.
    """

    lane: Any
    row: Any
    first: Any
    """The row of the instruction, and the first of its bits."""
    shift: int
    bits: int
    """How far up in the word, and how many."""


def metadata_of(atom: Atom, lane: int) -> list[MetadataPiece]:
    """The parts of a lane's word, of a sparse instruction with the sparsity selector 0.

    Four lanes share two rows of A, eight apart. A row of elements of 16 or 32 bits has 32 bits of
    metadata: the first two lanes hold half of them each, of the upper row in their lower bits. The
    other two hold the same, and nothing reads it. A row of elements of 8 bits has 64: even lanes hold
    half of the upper row each, odd lanes of the lower one.
    """
    group, number = lane // _LANES_OF_ROWS, lane % _LANES_OF_ROWS
    odd = number % 2
    if atom.metadata_bits > _WORD_BITS:
        first = number // 2 * _WORD_BITS
        return [MetadataPiece(lane, group + odd * _GROUPS, first, 0, _WORD_BITS)]
    bits = atom.metadata_bits // 2
    return [
        MetadataPiece(lane, group + lower * _GROUPS, odd * bits, lower * bits, bits)
        for lower in range(2)
    ]


def metadata_map(atom: Atom) -> list[MetadataPiece]:
    """The places of all metadata of a sparse instruction."""
    found: dict[tuple[int, int], MetadataPiece] = {}
    for lane in range(WARP_SIZE):
        for piece in metadata_of(atom, lane):
            found.setdefault((piece.row, piece.first), piece)
    return list(found.values())


def lane_map(axes: tuple[Axis, Axis]) -> list[list[tuple[int, int]]]:
    """Row and column of each element that a lane holds, by lane and by element."""
    registers = math.prod(d.extent for axis in axes for d in axis if not d.is_thread)
    return [
        [_place(axes, lane, register) for register in range(registers)] for lane in range(WARP_SIZE)
    ]


def _place(axes: tuple[Axis, Axis], lane: int, register: int) -> tuple[int, int]:
    row, column = (
        sum(
            (lane if digit.is_thread else register) // digit.stride % digit.extent * weight
            for weight, digit in with_weights(axis)
        )
        for axis in axes
    )
    return row, column


def _check(atom: Atom) -> None:
    """Every element of a matrix is in one register of one lane."""
    extents = ((atom.m, atom.stored_k), (atom.k, atom.n), (atom.m, atom.n))
    for axes, (rows, columns) in zip((atom.a, atom.b, atom.c), extents, strict=True):
        held = sorted(place for places in lane_map(axes) for place in places)
        if held != [(i, j) for i in range(rows) for j in range(columns)]:
            raise ValueError(f"{atom.instruction}: lanes do not hold {rows} x {columns} elements")
    if atom.sparse:
        bits = sorted((p.row, p.first + b) for p in metadata_map(atom) for b in range(p.bits))
        if bits != [(i, b) for i in range(atom.m) for b in range(atom.metadata_bits)]:
            raise ValueError(f"{atom.instruction}: lanes do not hold the metadata of {atom.m} rows")


for _atoms in (*ATOMS.values(), *SPARSE_ATOMS.values()):
    for _atom in _atoms:
        _check(_atom)
