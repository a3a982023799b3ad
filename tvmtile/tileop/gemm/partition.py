"""How groups of 32 threads, warps or simdgroups, share the accumulator of a product."""

from __future__ import annotations

from dataclasses import dataclass

from tvmtile.errors import InvalidOperand
from tvmtile.tileop.gemm import GemmWarpPolicy

__all__ = ["Partition", "partition"]

_LANES = 32


@dataclass(frozen=True)
class Partition:
    """How the groups of a block share an accumulator.

    Attributes
    ----------
    rows, columns : int
        Groups along M and along N.
    row_matrices, column_matrices : int
        The instruction's matrices that a group has along M and along N.
    """

    rows: int
    columns: int
    row_matrices: int
    column_matrices: int


def partition(
    m: int, n: int, groups: int, policy: int, matrix: tuple[int, int], noun: str
) -> Partition:
    """Share an accumulator of [m, n] out over groups of threads.

    Parameters
    ----------
    m, n : int
        Extents of the accumulator.
    groups : int
        How many groups of 32 threads a block has.
    policy : GemmWarpPolicy
        FullRow puts as many groups as can be along M, FullCol along N; Square makes the share of a
        group as square as can be.
    matrix : tuple of int
        Rows and columns of the accumulator of one instruction.
    noun : str
        What a group is called in messages: "simdgroups", "warps".

    Raises
    ------
    InvalidOperand
        If the extents are not multiples of the matrix, or the groups can't share the matrices evenly.
    """
    height, width = matrix
    size = f"{height}x{width}"
    if m % height or n % width:
        raise InvalidOperand(
            f"gemm: an accumulator of [{m}, {n}] does not consist of {size} matrices",
            help=f"use multiples of {height} and {width}, such as "
            f"[{_up(m, height)}, {_up(n, width)}]",
        )
    rows, columns = m // height, n // width
    ways = _ways(rows, columns, groups)
    if not ways:
        threads = [count * _LANES for count in range(1, 33) if _ways(rows, columns, count)]
        raise InvalidOperand(
            f"gemm: {groups} {noun} ({groups * _LANES} threads) can't share an accumulator of "
            f"[{m}, {n}], which is {rows} x {columns} matrices of {size}",
            help=f"use threads={' or '.join(map(str, threads[-4:]))}, or a tile whose extents are "
            f"multiples of {height * groups} along M or {width * groups} along N",
        )
    if policy == GemmWarpPolicy.FullRow:
        return max(ways, key=lambda way: way.rows)
    if policy == GemmWarpPolicy.FullCol:
        return max(ways, key=lambda way: way.columns)
    return min(
        ways,
        key=lambda way: (way.row_matrices * height + way.column_matrices * width, way.columns),
    )


def _ways(rows: int, columns: int, groups: int) -> list[Partition]:
    return [
        Partition(along, groups // along, rows // along, columns * along // groups)
        for along in range(1, groups + 1)
        if groups % along == 0 and rows % along == 0 and columns % (groups // along) == 0
    ]


def _up(extent: int, step: int) -> int:
    return -(-extent // step) * step
