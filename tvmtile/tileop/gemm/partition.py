"""Partitions of a product among groups of threads, as warps: layouts, and what they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.operands import constant, describe, is_whole
from tvmtile.ir.scopes import is_fragment
from tvmtile.ir.threads import MAX_THREADS, WARP_SIZE
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, FragmentLayout
from tvmtile.tileop.gemm import Gemm, GemmWarpPolicy
from tvmtile.tileop.matrices import MatrixProduct
from tvmtile.tileop.registry import Decline, LoweringContext

Axis: TypeAlias = tuple[Digit, ...]
"""The digits of an index, most significant first."""


@dataclass(frozen=True)
class Partition:
    """The shares of a block's groups in an accumulator."""

    rows: int
    columns: int
    """Groups along M and along N."""
    row_matrices: int
    column_matrices: int
    """The instruction's matrices that a group has along M and along N."""
    unit: int = WARP_SIZE
    """Threads of a group."""

    def place(self, group: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """The number of a group along M and along N."""
        row = tirx.floormod(tirx.floordiv(group, self.columns), self.rows)
        return row, tirx.floormod(group, self.columns)

    def along_m(self) -> Axis:
        """The number of a matrix along M: the group, and which of its matrices."""
        return Digit(self.rows, THREAD, self.columns * self.unit), Digit(
            self.row_matrices, REGISTER, 1
        )

    def along_n(self, per_matrix: int = 1) -> Axis:
        """The number of a matrix along N, or of what a matrix has `per_matrix` of."""
        count = per_matrix * self.column_matrices
        return Digit(self.columns, THREAD, self.unit), Digit(count, REGISTER, 1)


def along_k(matrices: int) -> Axis:
    """The number of a matrix along K, all of which a group has."""
    return (Digit(matrices, REGISTER, 1),)


def registers_of(matrix: tuple[Axis, Axis]) -> int:
    """Elements of a matrix that a lane holds."""
    return math.prod(d.extent for axis in matrix for d in axis if not d.is_thread)


def layout_of_matrices(
    numbers: tuple[Axis, Axis],
    matrix: tuple[Axis, Axis],
    threads: int,
    *,
    transposed: bool = False,
    rank: int = 2,
) -> FragmentLayout:
    """The layout of a fragment that consists of an instruction's matrices.

    `numbers` are those of a matrix along rows and along columns, `matrix` the row and column of an
    element in it. Of the fragment's axes, columns and rows where it is `transposed`, those before the
    last two have extent 1.

    Notes
    -----
    Registers are counted within a matrix first, then matrix by matrix of a row, then row by row.
    """
    rows, columns = numbers
    size = registers_of(matrix)
    per_row = math.prod(digit.extent for digit in columns if not digit.is_thread)
    axes = [_counted(rows, size * per_row) + matrix[0], _counted(columns, size) + matrix[1]]
    if transposed:
        axes.reverse()
    whole = [tuple(digit for digit in digits if digit.extent > 1) for digits in axes]
    return FragmentLayout(threads, (*[()] * (rank - 2), *whole))


def layouts_of_operands(
    op: MatrixProduct,
    share: Partition,
    k: int,
    matrices: Mapping[str, tuple[Axis, Axis]],
    threads: int,
    *,
    columns: Axis | None = None,
    held: Callable[[ir.Var], bool] = is_fragment,
) -> dict[ir.Var, FragmentLayout]:
    """The layouts of the operands that are `held` in registers, of an instruction's matrices.

    `matrices` says of an operand, C, A or B, which lane holds which element of its matrix; there are
    `k` of them along K. `columns` are the numbers of matrices along N where these are not the share's.

    Raises
    ------
    Decline
        If an operand is a part of its fragment.
    """
    rows, columns, steps = share.along_m(), columns or share.along_n(), along_k(k)
    numbers = {"C": (rows, columns), "A": (rows, steps), "B": (steps, columns)}
    found = {}
    for name, matrix in matrices.items():
        operand: ir.TensorRegion = getattr(op, name)
        if held(buffer_of(operand)):
            check_fragments(operand)
            found[buffer_of(operand)] = layout_of_matrices(
                numbers[name],
                matrix,
                threads,
                transposed=getattr(op, f"transpose_{name}", False),
                rank=len(ranges_of(operand)),
            )
    return found


def _counted(digits: Axis, stride: int) -> Axis:
    return tuple(d if d.is_thread else Digit(d.extent, REGISTER, stride) for d in digits)


def partition(
    m: int,
    n: int,
    groups: int,
    policy: int,
    matrix: tuple[int, int],
    noun: str,
    *,
    repeats: bool = False,
    unit: int = WARP_SIZE,
    cost: Callable[[Partition], int] | None = None,
) -> Partition:
    """Share an accumulator of [m, n] out over groups of threads.

    A group, which messages call by the `noun`, has `unit` threads. Of a GemmWarpPolicy FullRow puts as
    many groups as can be along M, FullCol along N; Square makes the share of a group as square as can
    be, or of the least `cost`. `matrix` is the accumulator of one instruction. With `repeats`, where
    the groups are too many to share the matrices evenly, the first of them do, as many as can, and the
    others repeat what these do.

    Raises
    ------
    Decline
        If the extents are not multiples of the matrix, or the groups can't share the matrices evenly.
    """
    height, width = matrix
    size = f"{height}x{width}"
    if m % height or n % width:
        raise Decline(
            f"an accumulator of [{m}, {n}] does not consist of {size} matrices "
            f"(one of [{_up(m, height)}, {_up(n, width)}] does)"
        )
    rows, columns = m // height, n // width
    ways = _ways(rows, columns, groups)
    if repeats and groups > 0:
        ways = next(filter(None, (_ways(rows, columns, n) for n in _divisors(groups))))
    if not ways:
        most = MAX_THREADS // unit
        threads = [count * unit for count in range(1, most + 1) if _ways(rows, columns, count)]
        raise Decline(
            f"{groups} {noun} ({groups * unit} threads) can't share an accumulator of [{m}, {n}], "
            f"which is {rows} x {columns} matrices of {size} "
            f"({' or '.join(map(str, threads[-4:]))} threads can)"
        )
    ways = [replace(way, unit=unit) for way in ways]
    if policy == GemmWarpPolicy.FullRow:
        return max(ways, key=lambda way: way.rows)
    if policy == GemmWarpPolicy.FullCol:
        return max(ways, key=lambda way: way.columns)
    extent = cost or (lambda way: way.row_matrices * height + way.column_matrices * width)
    return min(ways, key=lambda way: (extent(way), way.columns))


def _ways(rows: int, columns: int, groups: int) -> list[Partition]:
    return [
        Partition(along, groups // along, rows // along, columns * along // groups)
        for along in range(1, groups + 1)
        if groups % along == 0 and rows % along == 0 and columns % (groups // along) == 0
    ]


def _divisors(number: int) -> Iterator[int]:
    """The largest first."""
    return (n for n in range(number, 0, -1) if number % n == 0)


def _up(extent: int, step: int) -> int:
    return -(-extent // step) * step


def readers(
    share: Callable[[Gemm, LoweringContext], Partition],
) -> Callable[[Gemm, LoweringContext], dict[str, int]]:
    """The number of groups that read each element of A and of B, by the shares of a product."""

    def of_product(op: Gemm, context: LoweringContext) -> dict[str, int]:
        found = share(op, context)
        return {"A": found.columns, "B": found.rows}

    return of_product


# What an implementation requires -------------------------------------------------------------------


def constant_extents(op: MatrixProduct) -> tuple[int, int, int]:
    """M, N and K; decline a product of which they are not constants."""
    found = []
    for name, extent in (("M", op.m), ("N", op.n), ("K", op.k)):
        if constant(extent) is None:
            raise Decline(f"{name} = {extent} is not a constant")
        found.append(constant(extent) or 0)
    m, n, k = found
    return m, n, k


def check_fragments(*operands: ir.TensorRegion) -> None:
    """Decline a part of a fragment: matrices are laid out over all of one."""
    for operand in operands:
        if is_fragment(buffer_of(operand)) and not is_whole(operand):
            raise Decline(f"{describe(operand)} is a part of a fragment")


def check_precision(op: Gemm) -> None:
    """Decline a product of float32, all bits of it, on behalf of tensor cores."""
    if op.excludes_tf32():
        raise Decline('tensor cores multiply float32 as TF32, and precision="ieee" excludes that')
