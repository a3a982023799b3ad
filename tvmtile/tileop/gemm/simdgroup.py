"""`T.gemm` on Apple GPUs: 8x8 matrices that the 32 threads of a simdgroup load and multiply together.

The accumulator's 8x8 matrices are shared out over the simdgroups of a block, as the policy says, and
stay in registers. For each 8 of K, a simdgroup loads a column of matrices of A and a row of matrices
of B, from threadgroup or device memory, and multiplies each with each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.codegen.metal import ELEMENTS_PER_LANE
from tvmtile.errors import VerifyError
from tvmtile.ir.operands import as_region, constant, describe, dtype_of
from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.ir.scopes import SHARED_SCOPE, SIMDGROUP_SCOPE, is_by_matrices, is_global
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, FragmentLayout, layout_of
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.partition import (
    Partition,
    check_fragments,
    constant_extents,
    layouts_of_operands,
    partition,
    readers,
)
from tvmtile.tileop.matrices import PADDED
from tvmtile.tileop.registry import (
    Decline,
    FragmentDemand,
    LoweringContext,
    lowering,
    of_shared_operands,
)

MATRIX = 8
"""Rows and columns of a simdgroup matrix."""

# Which lane holds which element: row = 4 a + 2 b + c and column = 4 d + 2 e + f for lane
# 16 a + 8 d + 4 b + 2 c + e and element f of `thread_elements()`. Apple does not document it; MLX
# (mlx/backend/metal/kernels/steel/gemm/mma.h, BaseMMAFrag::get_coord) and others rely on it.
ROW = (Digit(2, THREAD, 16), Digit(4, THREAD, 2))
COLUMN = (Digit(2, THREAD, 8), Digit(2, THREAD, 1), Digit(2, REGISTER, 1))
"""The digits of the row and of the column of a matrix's element; register 0 or 1 of its lane."""

_DTYPES = ("float16", "bfloat16", "float32")


# Layouts -----------------------------------------------------------------------------------------


def _fits(op: Gemm, context: LoweringContext) -> None:
    for name in ("A", "B", "C"):
        operand = getattr(op, name)
        if dtype_of(operand) not in _DTYPES:
            raise Decline(f"{name} is {describe(operand)}; the matrices hold {', '.join(_DTYPES)}")
        check_rows(operand)
    if op.mixes_halves():
        raise Decline("float16 and bfloat16 matrices are not multiplied together")
    _share(op, context)
    check_fragments(op.A, op.B, op.C)


def check_rows(operand: ir.TensorRegion) -> None:
    """Decline an operand in memory whose rows have gaps between their elements."""
    strides = buffer_of(operand).ty.strides
    if strides and constant(strides[-1]) != 1:
        raise Decline(
            f"{describe(operand)} has a stride of {strides[-1]} between elements of a row"
        )


def _share(op: Gemm, context: LoweringContext) -> Partition:
    m, n, k = constant_extents(op)
    if k % MATRIX:
        raise Decline(f"K = {k} is not a multiple of {MATRIX}")
    groups = context.threads // WARP_SIZE
    return partition(m, n, groups, op.policy, (MATRIX, MATRIX), "simdgroups")


def simdgroup_layouts(op: Gemm, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    """The layouts of operands in registers.

    A simdgroup holds the rows of A, or columns of B, that its share of the accumulator needs.
    """
    steps, matrices = constant_extents(op)[2] // MATRIX, dict.fromkeys("CAB", (ROW, COLUMN))
    return layouts_of_operands(
        op,
        _share(op, context),
        steps,
        matrices,
        context.threads,
        held=is_by_matrices,
    )


# Code --------------------------------------------------------------------------------------------


class Matrices:
    """The 8x8 matrices of one operand that a simdgroup works on: in registers, or in memory."""

    def __init__(self, operand: ir.TensorRegion, transposed: bool = False) -> None:
        self.operand = operand
        self.transposed = transposed
        self.buffer = buffer_of(operand)
        self.in_registers = is_by_matrices(self.buffer)

    def number(self, row: int, column: int) -> ir.Expr:
        """The number of a matrix among those in the registers of a simdgroup."""
        layout = layout_of(self.buffer)
        if layout is None:
            raise VerifyError(f"gemm: {describe(self.operand)} has no layout")
        indices = [MATRIX * row, MATRIX * column]
        if self.transposed:
            indices.reverse()
        places = [0] * (len(layout.axes) - 2) + indices
        return tirx.floordiv(layout.register_of(places), ELEMENTS_PER_LANE)

    def load(self, into: ir.Var, number: int, row: ir.Expr, column: ir.Expr) -> tirx.Stmt:
        """Load a matrix from memory, from a row and a column counted in matrices."""
        address, stride = self._address(MATRIX * row, MATRIX * column)
        return tirx.Evaluate(
            T.metal.simdgroup_load(
                into.data, number, address, stride, MATRIX, MATRIX, self.transposed
            )
        )

    def store(self, source: ir.Var, number: Any, row: Any, column: Any) -> tirx.Stmt:
        """Store a matrix to memory, at a row and a column counted in matrices."""
        return self.store_at(source, number, MATRIX * row, MATRIX * column)

    def store_at(self, source: ir.Var, number: ir.Expr, row: ir.Expr, column: ir.Expr) -> tirx.Stmt:
        """Store a matrix to memory, at a row and a column counted in elements."""
        address, stride = self._address(row, column)
        return tirx.Evaluate(
            T.metal.simdgroup_store(source.data, number, address, stride, MATRIX, MATRIX, False)
        )

    def _address(self, row: ir.Expr, column: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """The element at (row, column), and the stride between rows."""
        *outer, first, second = ranges_of(self.operand)
        offsets = [row, column]
        if self.transposed:
            offsets.reverse()
        indices = [*(r.min for r in outer), first.min + offsets[0], second.min + offsets[1]]
        strides = self.buffer.ty.strides
        stride = strides[-2] if strides else self.buffer.ty.shape[-1]
        return T.address_of(tirx.BufferLoad(self.buffer, indices)), stride


class _MatrixRegisters:
    """Simdgroup matrices that live as long as one product."""

    def __init__(self, dtype: str, count: int, name: str) -> None:
        shape = (count * MATRIX * MATRIX,)
        self.buffer = tirx.decl_buffer(shape, dtype, name=name, scope=SIMDGROUP_SCOPE)
        self.allocation = tirx.AllocBuffer(self.buffer)


@lowering(
    Gemm,
    target="metal",
    variant="simdgroup",
    priority=20,
    unit=WARP_SIZE,
    fits=_fits,
    fragments=FragmentDemand(simdgroup_layouts, scope=SIMDGROUP_SCOPE),
    shared=of_shared_operands(PADDED),
    direct=readers(_share),
)
def gemm_simdgroup(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Multiply 8x8 matrices; each that is loaded is used for a whole row or column of the share.

    An accumulator in memory is loaded before and stored after. Where an operand in device memory may
    reach over the edge of its tensor, it goes through threadgroup memory, filled up with zeros.
    """
    share = _share(op, context)
    direct = _SimdgroupProduct(op, share, context).statement()
    inside = unproven_bounds([op.A, op.B, op.C], context)
    if not inside:
        return direct
    return tirx.IfThenElse(tirx.all(*inside), direct, _through_shared_memory(op, share, context))


def unproven_bounds(operands: Sequence[ir.TensorRegion], context: LoweringContext) -> list[ir.Expr]:
    """The conditions that operands in device memory lie inside their tensors."""
    conditions = []
    for operand in operands:
        if not is_global(buffer_of(operand)):
            continue
        for r, size in zip(ranges_of(operand), buffer_of(operand).ty.shape, strict=True):
            conditions += [r.min >= 0, r.min + r.extent <= size]
    return [c for c in conditions if not context.analyzer.can_prove(c)]


def _through_shared_memory(op: Gemm, share: Partition, context: LoweringContext) -> tirx.Stmt:
    statements: list[tirx.Stmt] = []
    tiles: dict[str, Any] = {}
    for name in ("A", "B", "C"):
        operand = getattr(op, name)
        if not is_global(buffer_of(operand)):
            continue
        extents = [constant(r.extent) for r in ranges_of(operand)]
        tile = tirx.decl_buffer(
            extents, dtype_of(operand), name=f"{buffer_of(operand).name}_tile", scope=SHARED_SCOPE
        )
        tiles[name] = as_region(tile)
        statements += [tirx.AllocBuffer(tile), Copy(operand, tiles[name]).as_loops()]
    statements.append(_SimdgroupProduct(replace(op, **tiles), share, context).statement())
    if "C" in tiles:
        statements.append(Copy(tiles["C"], op.C).as_loops())
    return seq(statements)


class _SimdgroupProduct:
    """The code of one product, for one simdgroup."""

    def __init__(self, op: Gemm, share: Partition, context: LoweringContext) -> None:
        self._op = op
        self._share = share
        self._steps = constant_extents(op)[2] // MATRIX
        self._a = Matrices(op.A, op.transpose_A)
        self._b = Matrices(op.B, op.transpose_B)
        self._c = Matrices(op.C)
        # Where the simdgroup's share of the accumulator begins, in matrices.
        simdgroup = tirx.floordiv(context.thread_index, WARP_SIZE)
        self._row = tirx.floordiv(simdgroup, share.columns) * share.row_matrices
        self._column = tirx.floormod(simdgroup, share.columns) * share.column_matrices

    def statement(self) -> tirx.Stmt:
        """The product, into registers or into memory."""
        c = self._c
        if c.in_registers:
            clear = [_zero(c.buffer, c.number(*p)) for p in self._places if self._op.clear_accum]
            return seq([*clear, self._multiplied(lambda m, n: (c.buffer, c.number(m, n)))])
        held = _MatrixRegisters(dtype_of(self._op.C), len(self._places), "c")
        first, last = [], []
        for number, (m, n) in enumerate(self._places):
            place = (self._row + m, self._column + n)
            load = c.load(held.buffer, number, *place)
            first.append(_zero(held.buffer, number) if self._op.clear_accum else load)
            last.append(c.store(held.buffer, number, *place))
        numbers = {place: number for number, place in enumerate(self._places)}
        middle = self._multiplied(lambda m, n: (held.buffer, numbers[m, n]))
        return seq([held.allocation, *first, middle, *last])

    @property
    def _places(self) -> list[tuple[int, int]]:
        """Row and column of each matrix of the share."""
        share = self._share
        return [(m, n) for m in range(share.row_matrices) for n in range(share.column_matrices)]

    def _multiplied(self, accumulator: _Find) -> tirx.Stmt:
        """The loop over K, into the matrices that `accumulator` finds by row and column."""
        step = tirx.Var("k", "int32")
        left = self._loaded(self._a, self._share.row_matrices, step, "a")
        right = self._loaded(self._b, self._share.column_matrices, step, "b")
        products = []
        for m, n in self._places:
            if m % 2:  # back along the next row, so that a matrix of B is used twice in a row
                n = self._share.column_matrices - 1 - n  # noqa: PLW2901
            target, number = accumulator(m, n)
            a, a_number = left.find(m, step)
            b, b_number = right.find(step, n)
            multiply = T.metal.simdgroup_multiply_accumulate(
                target.data, number, a.data, a_number, b.data, b_number, target.data, number
            )
            products.append(tirx.Evaluate(multiply))
        body = seq([*left.loads, *right.loads, *products])
        loop = for_loop(step, self._steps, body, tirx.ForKind.UNROLLED)
        return seq([*left.allocations, *right.allocations, loop])

    def _loaded(self, matrices: Matrices, count: int, step: ir.Var, name: str) -> _StepMatrices:
        """The matrices of A or B that a step along K needs."""
        if matrices.in_registers:
            return _StepMatrices([], [], lambda m, n: (matrices.buffer, matrices.number(m, n)))
        held = _MatrixRegisters(dtype_of(matrices.operand), count, name)
        if matrices is self._a:
            loads = [matrices.load(held.buffer, i, self._row + i, step) for i in range(count)]
            return _StepMatrices([held.allocation], loads, lambda m, _: (held.buffer, m))
        loads = [matrices.load(held.buffer, i, step, self._column + i) for i in range(count)]
        return _StepMatrices([held.allocation], loads, lambda _, n: (held.buffer, n))


_Find: TypeAlias = Callable[[Any, Any], tuple[ir.Var, Any]]
"""Row and column of a matrix to the array that holds it and its number there."""


@dataclass(frozen=True)
class _StepMatrices:
    """The matrices of an operand that one step along K needs."""

    allocations: list[tirx.Stmt]
    loads: list[tirx.Stmt]
    find: _Find


def _zero(buffer: ir.Var, number: Index) -> tirx.Stmt:
    zero = tirx.const(0, str(buffer.ty.dtype))
    return tirx.Evaluate(
        T.metal.make_filled_simdgroup_matrix(buffer.data, number, zero, MATRIX, MATRIX)
    )
