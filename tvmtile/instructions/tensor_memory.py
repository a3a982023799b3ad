"""Tensor memory of Blackwell: what `tcgen05` takes, and where elements of matrices lie in it.

A block has 512 columns of 128 lanes of 32 bits. Shapes and descriptors are those of the PTX ISA
("TensorCore 5th Generation Family Instructions"); lanes of the transfers are those of CUTLASS's
`copy_traits_sm100.hpp`, and of sums and scales those of its `mma_traits_sm100.hpp`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from tvmtile.ir.threads import WARP_SIZE

COLUMNS, LANES = 512, 128
_PARTS = LANES // WARP_SIZE
_WORDS = 128
"""Registers of a transfer at most."""


@dataclass(frozen=True)
class Transfer:
    """A shape of `tcgen05.ld` and `tcgen05.st`."""

    name: str
    """As PTX has it."""
    columns: int
    """That one repetition takes; the second half of `16x32bx2` has its own."""
    places: tuple[tuple[tuple[int, int], ...], ...]
    """Lane and column of each register, by thread of the warp and register of a repetition."""

    @property
    def is_split(self) -> bool:
        """Tell whether the upper half of the threads takes other columns, behind the first."""
        return self.name.endswith("x2")

    @property
    def repetitions(self) -> Iterator[int]:
        """The numbers of times that the shape may be taken at once."""
        return (n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n * len(self.places[0]) <= _WORDS)


def _transfers() -> Iterator[Transfer]:
    threads = range(WARP_SIZE)
    yield Transfer("32x32b", 1, tuple(((t, 0),) for t in threads))
    yield Transfer("16x64b", 2, tuple(((t % 2 * 8 + t // 4, t // 2 % 2),) for t in threads))
    yield Transfer(
        "16x128b", 4, tuple(tuple((t // 4 + 8 * r, t % 4) for r in range(2)) for t in threads)
    )
    yield Transfer(
        "16x256b",
        8,
        tuple(tuple((t // 4 + r // 2 * 8, t % 4 * 2 + r % 2) for r in range(4)) for t in threads),
    )
    yield Transfer("16x32bx2", 1, tuple(((t % 16, t // 16),) for t in threads))


TRANSFERS = {transfer.name: transfer for transfer in _transfers()}
"""By name."""


@dataclass(frozen=True)
class TensorCopy:
    """A shape of `tcgen05.cp`, from rows of shared memory to lanes."""

    name: str
    """As PTX has it, with what says which warps' lanes get the rows."""
    rows: int
    bits: int
    """Rows, and bits of each."""
    lanes: tuple[tuple[int, ...], ...]
    """By row, the lanes that get it."""


def _copies() -> Iterator[TensorCopy]:
    for bits in (128, 256):
        yield TensorCopy(f"128x{bits}b", LANES, bits, tuple((row,) for row in range(LANES)))
    yield TensorCopy("4x256b", _PARTS, 256, tuple((WARP_SIZE * row,) for row in range(_PARTS)))
    half = LANES // 2
    # Pairs of warps have the same rows: those two apart, or those next to each other.
    apart = tuple((row, row + half) for row in range(half))
    beside = tuple(
        (row // 32 * 64 + row % 32, row // 32 * 64 + row % 32 + 32) for row in range(half)
    )
    yield TensorCopy("64x128b.warpx2::02_13", half, 128, apart)
    yield TensorCopy("64x128b.warpx2::01_23", half, 128, beside)
    every = tuple(tuple(range(row, LANES, WARP_SIZE)) for row in range(WARP_SIZE))
    yield TensorCopy("32x128b.warpx4", WARP_SIZE, 128, every)


COPIES = tuple(_copies())


@dataclass(frozen=True)
class Datapath:
    """The place of a block's part of a sum: PTX's layouts A to G."""

    rows: int
    """Rows that a block has."""
    chunk: int = WARP_SIZE
    """Rows that lie in lanes next to each other; the next ones begin 32 lanes on."""
    parts: int = 1
    apart: int = 0
    """Parts of the columns, which lie so many lanes apart."""

    def place(self, row: int, column: int, columns: int) -> tuple[int, int]:
        """Lane and column of an element of a sum of so many columns."""
        width = columns // self.parts
        lane = row // self.chunk * WARP_SIZE + row % self.chunk
        return lane + column // width * self.apart, column % width


DATAPATHS = {
    (128, 1, False): Datapath(128),  # D
    (128, 1, True): Datapath(128),
    (64, 1, False): Datapath(64, chunk=16),  # F
    (64, 1, True): Datapath(64, parts=2, apart=64),  # E
    (32, 1, True): Datapath(32, parts=4, apart=32),  # G
    (256, 2, False): Datapath(128),  # A
    (128, 2, False): Datapath(64, parts=2, apart=64),  # B
}
"""By M, the blocks that multiply together, and whether it is `.ws`."""


@dataclass(frozen=True)
class MmaKind:
    """A kind of `tcgen05.mma`."""

    name: str
    """As PTX has it."""
    k: int
    """Extent along K."""
    formats: dict[int, str]
    sums: dict[int, str]
    """Types of the operands and of the sum, by their number in the instruction's descriptor."""
    scales: dict[str, int] = field(default_factory=dict)
    """Scales of a row along K, by how PTX spells that; empty without."""
    scale_types: dict[int, str] = field(default_factory=dict)
    """Types of these, by their number."""
    transposes: bool = True
    negates: bool = True
    saturates: bool = False
    stationary: bool = True
    """Whether it may take operands along M or N, negate them, saturate its sums, be `.ws`."""

    def extents(self, blocks: int, stationary: bool) -> Iterator[tuple[int, int, int, int]]:
        """M, and the first, the last and the step of the N that go with it."""
        for m, together, is_stationary in DATAPATHS:
            if (together, is_stationary) != (blocks, stationary) or (self.scales and m == 64):
                continue
            if stationary:
                yield from ((m, n, n, 1) for n in (64, 128, 256))
            elif self.saturates:
                yield from ((m, 32, 256, 32),) if blocks == 2 else ((m, 8, 24, 8), (m, 32, 256, 16))
            else:
                yield m, 8 * blocks, 256, 8 * blocks


_FLOATS = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_BLOCK32, _BLOCK16 = ("", ".block32"), (".scale_vec::4X", ".block16")
KINDS = (
    MmaKind("f16", 16, {0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}),
    # Its operands lie transposed under a swizzle of their own only.
    MmaKind("tf32", 8, {2: "tf32"}, {1: "f32"}, transposes=False),
    MmaKind("f8f6f4", 32, _FLOATS, {0: "f16", 1: "f32"}),
    MmaKind("i8", 32, {0: "u8", 1: "s8"}, {2: "s32"}, negates=False, saturates=True),
    MmaKind(
        "mxf8f6f4", 32, _FLOATS, {1: "f32"}, dict.fromkeys((*_BLOCK32, ".scale_vec::1X"), 1),
        {1: "ue8m0"}, stationary=False,
    ),
    MmaKind(
        "mxf4", 64, {1: "e2m1"}, {1: "f32"}, dict.fromkeys((*_BLOCK32, ".scale_vec::2X"), 2),
        {1: "ue8m0"}, transposes=False, stationary=False,
    ),
    MmaKind(
        "mxf4nvf4", 64, {1: "e2m1"}, {1: "f32"},
        dict.fromkeys((".block32", ".scale_vec::2X"), 2) | dict.fromkeys(_BLOCK16, 4),
        {0: "ue4m3", 1: "ue8m0"}, transposes=False, stationary=False,
    ),
)  # fmt: skip


def _check() -> None:
    """Each lane of a transfer has one register, each of a copy one row, each element a place."""
    for transfer in TRANSFERS.values():
        held = sorted(itertools.chain.from_iterable(transfer.places))
        lanes = int(transfer.name.partition("x")[0])
        columns = transfer.columns * (1 + transfer.is_split)
        if held != [(i, j) for i in range(lanes) for j in range(columns)]:
            raise ValueError(f"threads do not hold what {transfer.name} transfers")
    for copy in COPIES:
        lanes_of = sorted(itertools.chain.from_iterable(copy.lanes))
        if (
            len(set(lanes_of)) != len(lanes_of)
            or lanes_of[-1] >= LANES
            or copy.rows != len(copy.lanes)
        ):
            raise ValueError(f"{copy.name} writes a lane twice")
    for key, path in DATAPATHS.items():
        places = {path.place(i, j, 64) for i in range(path.rows) for j in range(64)}
        if len(places) != path.rows * 64 or max(places)[0] >= LANES:
            raise ValueError(f"elements of a sum of {key} share a place")
    for kind in KINDS:
        if max(kind.formats) > 7 or max(kind.sums) > 3 or max((0, *kind.scale_types)) > 1:
            raise ValueError(f"types of {kind.name} do not fit their fields")


_check()
