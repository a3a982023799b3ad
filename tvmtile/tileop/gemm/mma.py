"""`T.gemm` on NVIDIA GPUs from sm_80 on: `mma.sync`, which the 32 threads of a warp do together.

An instruction is a row of `tvmtile.instructions.mma.ATOMS`; how operands come into registers is in
`mma_operands`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import buffer_of
from tvmtile.instructions.mma import ATOMS, Atom
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.operands import constant, dtype_of
from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.ir.scopes import is_fragment
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.mma_operands import MmaOperand, Runs, in_runs, indices_at, place_of
from tvmtile.tileop.gemm.partition import (
    Axis,
    Partition,
    check_precision,
    constant_extents,
    layouts_of_operands,
    partition,
    registers_of,
)
from tvmtile.tileop.registry import (
    Decline,
    LoweringContext,
    SharedDemand,
    SharedTile,
    lowering,
    of_shared_operands,
)

if TYPE_CHECKING:
    from tvmtile.tileop.gemm_sp import GemmSp

Product: TypeAlias = "Gemm | GemmSp"
SWIZZLED = SharedTile(swizzle=128)
"""`ldmatrix` takes 16 bytes of each of eight rows, which lie in different banks then."""


# Where it fits -----------------------------------------------------------------------------------


def atom_of(
    op: Product, atoms: Mapping[tuple[str, str], tuple[Atom, ...]], context: LoweringContext
) -> Atom:
    """The instruction of a table for a product.

    Raises
    ------
    Decline
        If there is none, or the product is not made of whole instructions.
    """
    dtypes = (dtype_of(op.A), dtype_of(op.B))
    if dtypes not in atoms:
        raise Decline(f"no instruction multiplies {dtypes[0]} and {dtypes[1]}")
    fitting = (a for a in atoms[dtypes] if constant(tirx.floormod(op.k, a.k)) == 0)
    atom = next(fitting, atoms[dtypes][-1])
    for dtype in dtypes:
        lacking = context.gpu.why_no_factors(dtype)
        if lacking is not None:
            raise Decline(lacking)
    if dtype_of(op.C) not in _INTO[atom.sums]:
        raise Decline(f"{atom.sums} sums are not kept in {dtype_of(op.C)}")
    constant_extents(op)
    if constant(tirx.floormod(op.k, atom.k)) != 0:
        raise Decline(f"K = {op.k} is not a multiple of {atom.k}")
    return atom


_INTO = {
    "float32": ("float32", "float16", "bfloat16"),
    "int32": ("int32",),
    "float64": ("float64",),
}


def _share(op: Product, atom: Atom, context: LoweringContext) -> Partition:
    m, n, _ = constant_extents(op)
    # What is repeated may be held by several threads, but in memory it would be added twice.
    repeats = is_fragment(buffer_of(op.C))
    warps, size = context.threads // WARP_SIZE, (atom.m, atom.n)
    return partition(m, n, warps, op.policy, size, "warps", repeats=repeats)


def _packed(op: Product, atom: Atom) -> int:
    """The number of instructions along K whose elements a lane holds side by side.

    Any order of K is right that both operands have. That of the instruction suits `ldmatrix`.
    """
    if not any(is_fragment(buffer_of(operand)) for operand in (op.A, op.B)):
        return 1
    return math.gcd(op.k_pack, constant_extents(op)[2] // atom.k)


def layouts_of(op: Product, atom: Atom, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    """The layouts of operands in registers."""
    packed = _packed(op, atom)
    matrices = {"C": atom.c, "A": in_runs(atom.a, 1, packed), "B": in_runs(atom.b, 0, packed)}
    steps = constant_extents(op)[2] // (atom.k * packed)
    return layouts_of_operands(op, _share(op, atom, context), steps, matrices, context.threads)


def _mma_layouts(op: Gemm, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    check_precision(op)
    return layouts_of(op, atom_of(op, ATOMS, context), context)


# Code --------------------------------------------------------------------------------------------


@lowering(
    Gemm,
    target="cuda",
    variant="mma",
    priority=20,
    fits=_mma_layouts,
    unit=WARP_SIZE,
    fragments=_mma_layouts,
    shared=SharedDemand(of_shared_operands(SWIZZLED), moved=SWIZZLED),
)
def gemm_mma(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Each warp multiplies its share, an instruction's k at a time; what it loads it uses in full."""
    return WarpProduct(op, atom_of(op, ATOMS, context), context).statement()


class WarpProduct:
    """The code of one product, for one warp."""

    def __init__(self, op: Product, atom: Atom, context: LoweringContext) -> None:
        share = _share(op, atom, context)
        self._packed = _packed(op, atom)
        self._op = op
        self._atom = atom
        self._share = share
        warp = tirx.floordiv(context.thread_index, WARP_SIZE)
        self._lane = tirx.floormod(context.thread_index, WARP_SIZE)
        # Where the warp's share of the accumulator begins.
        row, column = share.place(warp)
        self._row = row * (share.row_matrices * atom.m)
        self._column = column * (share.column_matrices * atom.n)
        self._sums = tirx.decl_buffer(
            (share.row_matrices * share.column_matrices * registers_of(atom.c),),
            atom.sums,
            name="sums",
            scope="local",
        )
        # PTX has integer sums in registers without a sign.
        self._registers = (
            tirx.decl_buffer(self._sums.ty.shape, "uint32", name="sums_registers", scope="local")
            if atom.sums == "int32"
            else self._sums
        )

    def statement(self) -> tirx.Stmt:
        """The product, into the accumulator."""
        op, atom, share = self._op, self._atom, self._share
        k = tirx.Var("k", "int32")
        packed = self._packed
        a = self._operand(op.A, atom.a, share.row_matrices, "a", op.transpose_A, 1)
        b = self._operand(op.B, atom.b, share.column_matrices, "b", op.transpose_B, 0)
        loads = [
            *a.loads(lambda m: (self._row + m * atom.m, k * (atom.stored_k * packed)), self._lane),
            *b.loads(lambda n: (k * (atom.k * packed), self._column + n * atom.n), self._lane),
        ]
        products = (self._multiplied(a, b, k, step) for step in range(packed))
        body = seq([*loads, *itertools.chain.from_iterable(products)])
        steps = constant_extents(op)[2] // (atom.k * packed)
        return seq(
            [
                tirx.AllocBuffer(self._sums),
                *self._view(),
                *self._accumulators(self._taken),
                *a.allocations,
                *b.allocations,
                for_loop(k, steps, body, tirx.ForKind.UNROLLED),
                *self._accumulators(self._left),
            ]
        )

    def _operand(
        self,
        region: ir.TensorRegion,
        axes: tuple[Axis, Axis],
        count: int,
        name: str,
        transposed: bool,
        k_axis: int,
    ) -> MmaOperand:
        if self._packed == 1:
            return MmaOperand(region, axes, count, name, transposed=transposed, k_axis=k_axis)
        packed = self._packed
        return Runs(region, axes, count, name, transposed=transposed, k_axis=k_axis, packed=packed)

    def _view(self) -> list[tirx.Stmt]:
        if self._registers.same_as(self._sums):
            return []
        return [tirx.DeclBuffer(self._registers, data=self._sums.data)]

    def _also(self, m: int, k: ir.Expr) -> list[ir.Expr]:
        """Further operands of the instructions for a matrix of A."""
        del m, k
        return []

    def _multiplied(
        self, a: MmaOperand, b: MmaOperand, k: ir.Expr, step: int
    ) -> Iterator[tirx.Stmt]:
        size = registers_of(self._atom.c)
        for m in range(self._share.row_matrices):
            also = self._also(m, k)
            for n in range(self._share.column_matrices):
                first = (m * self._share.column_matrices + n) * size
                sums = [tirx.BufferLoad(self._registers, [first + e]) for e in range(size)]
                multiply = ptx(self._atom.instruction)(
                    *sums, *a.registers_of(m, step), *b.registers_of(n, step), *sums, *also
                )
                yield tirx.Evaluate(multiply)

    # The accumulator -----------------------------------------------------------------------------

    def _accumulators(self, move: Callable[[Any, list[Any]], tirx.Stmt]) -> Iterator[tirx.Stmt]:
        """One statement for each element of the accumulator that the thread holds."""
        atom, share = self._atom, self._share
        size = registers_of(atom.c)
        for m in range(share.row_matrices):
            for n in range(share.column_matrices):
                for element in range(size):
                    row, column = place_of(atom.c, self._lane, element)
                    number = (m * share.column_matrices + n) * size + element
                    place = [self._row + m * atom.m + row, self._column + n * atom.n + column]
                    yield move(number, indices_at(self._op.C, *place))

    def _taken(self, number: int, indices: list[ir.Expr]) -> tirx.Stmt:
        value: ir.Expr = tirx.const(0, self._atom.sums)
        if not self._op.clear_accum:
            held = tirx.BufferLoad(buffer_of(self._op.C), indices)
            value = converted(held, self._atom.sums)
        return tirx.BufferStore(self._sums, value, [number])

    def _left(self, number: int, indices: list[ir.Expr]) -> tirx.Stmt:
        value = converted(tirx.BufferLoad(self._sums, [number]), dtype_of(self._op.C))
        return tirx.BufferStore(buffer_of(self._op.C), value, indices)
