"""`wgmma`: products that the 128 threads of a warpgroup start together, and where their sums lie.

A warp has 16 of the 64 rows; within it the sums lie as those of `mma.sync` (PTX ISA, "Register
fragments and shared memory matrix layouts" of `wgmma.mma_async`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmtile.instructions.mma import Axis
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, with_weights

__all__ = ["ROWS", "WARPGROUP", "Wgmma", "sum_map"]

WARPGROUP = 128
"""Threads that do it together."""
ROWS = 64


@dataclass(frozen=True)
class Wgmma:
    """An instruction whose sums are float32.

    Attributes
    ----------
    n : int
        Columns: 8 to 256.
    k : int
        32 bytes of elements.
    dtypes : (str, str)
        Of A and B, as PTX names them.
    """

    n: int
    k: int
    dtypes: tuple[str, str]

    @property
    def instruction(self) -> str:
        """The PTX instruction."""
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.f32.{'.'.join(self.dtypes)}"

    @property
    def sums(self) -> tuple[Axis, Axis]:
        """The digits of rows and of columns: thread of the warpgroup, and register."""
        rows = (Digit(4, THREAD, 32), Digit(2, REGISTER, 2), Digit(8, THREAD, 4))
        columns = (Digit(self.n // 8, REGISTER, 4), Digit(4, THREAD, 1), Digit(2, REGISTER, 1))
        return rows, columns


def sum_map(instruction: Wgmma) -> list[list[tuple[int, int]]]:
    """Row and column of each register that a thread holds, by thread and by register."""

    def place(thread: int, register: int) -> tuple[int, int]:
        row, column = (
            sum(
                (thread if d.is_thread else register) // d.stride % d.extent * weight
                for weight, d in with_weights(axis)
            )
            for axis in instruction.sums
        )
        return row, column

    return [[place(t, r) for r in range(instruction.n // 2)] for t in range(WARPGROUP)]


for _n in (8, 256):
    _held = sorted(p for places in sum_map(Wgmma(_n, 16, ("f16", "f16"))) for p in places)
    if _held != [(i, j) for i in range(ROWS) for j in range(_n)]:
        raise ValueError(f"threads do not hold {ROWS} x {_n} sums")
