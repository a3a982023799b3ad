"""`wgmma`: products that the 128 threads of a warpgroup start together, and where their elements lie.

A warp has 16 of the 64 rows; within it the sums, and A where that is in registers, lie as those of
`mma.sync` (PTX ISA, "Register fragments and shared memory matrix layouts" of `wgmma.mma_async`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvmtile.instructions.mma import ATOMS, PAIRS_OF_BYTES, Axis
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP, registers_of_each
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, with_weights

__all__ = [
    "FAMILIES",
    "LEAST_BESIDE_SUMS",
    "LEAST_REGISTERS",
    "OPERAND_BYTES",
    "ROWS",
    "WARPGROUP",
    "Family",
    "Wgmma",
    "sum_map",
]

ROWS = 64
_MAX_COLUMNS = 256
_LEAST_COLUMNS = 16
"""Of instructions side by side, whose rows of 16 bits fill the narrowest swizzled panel."""
OPERAND_BYTES = 32
"""Bytes along K of an instruction's operands."""
LEAST_BESIDE_SUMS = 26
"""Registers of a thread beside its sums; with fewer ptxas refuses an instruction (C7602)."""
LEAST_REGISTERS = LEAST_BESIDE_SUMS + ROWS * _LEAST_COLUMNS // WARPGROUP
"""Of a thread, for any instruction that is used."""
_PTX = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "tf32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
}
_ITEM = {"float16": 2, "bfloat16": 2, "float32": 4}
_SUMS = {"float32": "f32", "int32": "s32"}


@dataclass(frozen=True)
class Wgmma:
    """An instruction."""

    n: int
    """Columns: 8 to 256."""
    dtypes: tuple[str, str]
    """Of A and B."""
    sums: str = "float32"
    """Of the accumulator."""

    @property
    def k(self) -> int:
        """Extent along K."""
        return OPERAND_BYTES // _ITEM.get(self.dtypes[0], 1)

    @property
    def names(self) -> tuple[str, str]:
        """The dtypes of A and B, as PTX names them."""
        return _PTX[self.dtypes[0]], _PTX[self.dtypes[1]]

    @property
    def instruction(self) -> str:
        """The PTX instruction."""
        types = ".".join((_SUMS[self.sums], *self.names))
        return f"wgmma.mma_async.sync.aligned.m{ROWS}n{self.n}k{self.k}.{types}"

    @property
    def registers(self) -> int:
        """Sums that a thread holds."""
        return ROWS * self.n // WARPGROUP

    @property
    def c(self) -> tuple[Axis, Axis]:
        """The digits of rows and of columns of a sum: thread of the warpgroup, and register."""
        columns = (Digit(self.n // 8, REGISTER, 4), Digit(4, THREAD, 1), Digit(2, REGISTER, 1))
        rows = (_WARPS, Digit(2, REGISTER, 2), Digit(8, THREAD, 4))
        return rows, columns

    @property
    def a(self) -> tuple[Axis, Axis]:
        """The same of an element of A, where that is in registers."""
        warp = next(atom for atom in ATOMS[self.dtypes] if atom.k == self.k)
        return (_WARPS, *warp.a[0]), warp.a[1]


_WARPS = Digit(WARPGROUP // WARP_SIZE, THREAD, WARP_SIZE)


@dataclass(frozen=True)
class Family:
    """The instructions for dtypes of A and B, which differ in their extent along N."""

    dtypes: tuple[str, str]
    sums: str
    """As of `Wgmma`."""
    columns: tuple[int, ...]
    """Their extents along N."""
    transposes: bool
    """Rows of an operand in shared memory may run along M or N; otherwise they run along K."""

    @property
    def k(self) -> int:
        """Their extent along K."""
        return Wgmma(_MAX_COLUMNS, self.dtypes, self.sums).k

    def largest(self, n: int, threads: int = WARPGROUP) -> Wgmma:
        """The instruction with most columns of which `n` columns consist, and whose sums fit.

        One of 16 columns is taken also where they do not.

        Parameters
        ----------
        n : int
        threads : int
            Of the blocks that share the registers of a multiprocessor.

        Raises
        ------
        ValueError
            If there is none.
        """
        most = registers_of_each(threads) - LEAST_BESIDE_SUMS
        rows = [row for row in self if n % row.n == 0]
        fewest = min(rows, key=lambda row: (row.n < _LEAST_COLUMNS, row.n))
        return max(
            (row for row in rows if row.registers <= max(most, fewest.registers)),
            key=lambda row: row.n,
        )

    def __iter__(self) -> Iterator[Wgmma]:
        return (Wgmma(columns, self.dtypes, self.sums) for columns in self.columns)


_FLOAT_COLUMNS = tuple(range(8, _MAX_COLUMNS + 1, 8))
# The PTX ISA has 240 and 256 columns of integers, too, and TVM's table of instructions has not.
_INTEGER_COLUMNS = (8, 16, 24, *range(32, 225, 16))


def _families() -> Iterator[Family]:
    for dtype in ("float16", "bfloat16"):
        yield Family((dtype, dtype), "float32", _FLOAT_COLUMNS, transposes=True)
    yield Family(("float32", "float32"), "float32", _FLOAT_COLUMNS, transposes=False)
    for a, b, sums in PAIRS_OF_BYTES:
        columns = _INTEGER_COLUMNS if sums == "int32" else _FLOAT_COLUMNS
        yield Family((a, b), sums, columns, transposes=False)


FAMILIES = {family.dtypes: family for family in _families()}
"""By the dtypes of A and B (PTX ISA, "wgmma.mma_async")."""


def sum_map(instruction: Wgmma) -> list[list[tuple[int, int]]]:
    """Row and column of each register that a thread holds, by thread and by register."""
    rows, columns = (list(with_weights(axis)) for axis in instruction.c)

    def part(number: int, *, of_thread: bool) -> tuple[int, int]:
        """The part of a thread, or of a register, in the row and in the column."""
        row, column = (
            sum(
                number // d.stride % d.extent * weight
                for weight, d in axis
                if d.is_thread == of_thread
            )
            for axis in (rows, columns)
        )
        return row, column

    registers = [part(r, of_thread=False) for r in range(instruction.registers)]
    return [
        [(first + row, left + column) for row, column in registers]
        for first, left in (part(t, of_thread=True) for t in range(WARPGROUP))
    ]


for _n in (8, 256):
    _held = sorted(p for places in sum_map(Wgmma(_n, ("float16", "float16"))) for p in places)
    if _held != [(i, j) for i in range(ROWS) for j in range(_n)]:
        raise ValueError(f"threads do not hold {ROWS} x {_n} sums")
