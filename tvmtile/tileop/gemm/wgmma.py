"""`T.gemm` on Hopper: `wgmma`, which the 128 threads of a warpgroup start together.

B is read from shared memory, A from there or from registers, as `tvmtile.instructions.wgmma` says. What
lies in shared memory is swizzled in panels, in which the hardware finds the elements by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.instructions.wgmma import (
    FAMILIES,
    LEAST_REGISTERS,
    OPERAND_BYTES,
    ROWS,
    WARPGROUP,
    Family,
    Wgmma,
)
from tvmtile.ir.asynchronous import WGMMA, Product, multiply, signal, wait
from tvmtile.ir.operands import bits_of, constant, describe, dtype_of
from tvmtile.ir.options import options_of
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import is_fragment, is_shared
from tvmtile.ir.threads import registers_of_each
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, FragmentLayout, with_weights
from tvmtile.layout.shared import SWIZZLES
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.mma import SWIZZLED
from tvmtile.tileop.gemm.mma_operands import indices_at
from tvmtile.tileop.gemm.partition import (
    Axis,
    Partition,
    check_fragments,
    check_precision,
    constant_extents,
    layouts_of_operands,
    partition,
)
from tvmtile.tileop.registry import (
    Decline,
    FragmentDemand,
    Lacking,
    LoweringContext,
    SharedDemand,
    SharedTile,
    lowering,
)

_ATOM_ROWS = 8
"""Rows after which a swizzle repeats in a panel."""


# Where it fits -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _WarpgroupPlan:
    """The plan of a product."""

    family: Family
    """The instructions for its dtypes."""
    share: Partition
    """How the warpgroups share it, in matrices of 64 rows and as few columns as there can be."""
    threads: int
    """Of the blocks that share a multiprocessor at least: by these ptxas reckons registers, however
    many are moved to some of them.
    """
    panels: dict[ir.Var, int]
    """The tiles in shared memory, with bytes of the widest panel."""

    @property
    def rows(self) -> int:
        """The rows of a warpgroup."""
        return self.share.row_matrices * ROWS

    @property
    def columns(self) -> int:
        """The columns of a warpgroup."""
        return self.share.column_matrices * self.family.columns[0]

    @property
    def row(self) -> Wgmma:
        """The instruction."""
        return self.family.largest(self.columns, self.threads)


def _plan(op: Gemm, context: LoweringContext) -> _WarpgroupPlan:
    """The plan of a product, if its operands begin where instructions can."""
    if not context.gpu.has_warpgroup_products:
        raise Lacking(f"{context.gpu.name} has no wgmma")
    family = _family(op)
    blocks = options_of(context.launch.blocks[0]).blocks_per_multiprocessor or 1
    threads = context.launch.num_threads * blocks
    if registers_of_each(threads) < LEAST_REGISTERS:
        raise Decline(
            f"{blocks} blocks of {context.launch.num_threads} threads leave one "
            f"{registers_of_each(threads)} registers; an instruction takes {LEAST_REGISTERS}"
        )
    plan = _WarpgroupPlan(family, _share(op, family, threads, context), threads, {})
    for operand, follows_k, step in _operands(op, plan):
        panel = _panel(operand, family, 0 if follows_k else step, follows_k=follows_k)
        known = plan.panels.get(buffer_of(operand), panel)
        plan.panels[buffer_of(operand)] = min(known, panel)
    return plan


def _operands(op: Gemm, plan: _WarpgroupPlan) -> Iterator[tuple[ir.TensorRegion, bool, int]]:
    """The operands in shared memory.

    With each, whether its rows run along K, and how many elements instructions begin apart along M or
    N; 0 where there is one.
    """
    columns = plan.row.n
    if is_shared(buffer_of(op.A)):
        yield op.A, not op.transpose_A, ROWS
    yield op.B, op.transpose_B, columns if plan.share.columns * plan.columns > columns else 0


def _check(op: Gemm, context: LoweringContext) -> None:
    """Decline a product also where its operands do not begin where instructions can."""

    def is_multiple(value: ir.Expr, of: int) -> bool:
        return bool(context.analyzer.can_prove_equal(tirx.floormod(value, of), 0))

    plan = _plan(op, context)
    if is_fragment(buffer_of(op.A)) and (reason := context.why_plain(buffer_of(op.A), ())):
        raise Decline(reason)
    for operand, follows_k, _ in _operands(op, plan):
        widest = plan.panels[buffer_of(operand)]
        panels = [panel for panel in SWIZZLES.values() if panel <= widest]
        reason = context.why_plain(buffer_of(operand), panels)
        if reason is not None:
            raise Decline(reason)
        row, column = (axis.min for axis in ranges_of(operand)[-2:])
        elements = widest // _bytes_of(operand)
        if not is_multiple(row, _ATOM_ROWS):
            raise Decline(f"{describe(operand)} does not begin at a multiple of {_ATOM_ROWS} rows")
        start = plan.family.k if follows_k else elements
        if not is_multiple(column, start):
            raise Decline(f"{describe(operand)} does not begin at a multiple of {start} columns")


def _family(op: Gemm) -> Family:
    a, b, c = (dtype_of(operand) for operand in (op.A, op.B, op.C))
    family = FAMILIES.get((a, b))
    if family is None:
        raise Decline(f"no wgmma multiplies {a} and {b}")
    check_precision(op)
    if c != family.sums:
        raise Decline(f"wgmma has {family.sums} sums, {describe(op.C)} does not hold them")
    if constant_extents(op)[2] % family.k:
        raise Decline(f"K = {op.k} is not a multiple of {family.k}")
    if not is_shared(buffer_of(op.B)):
        raise Decline(f"{describe(op.B)} is not in shared memory")
    if op.k_pack > 1 and is_fragment(buffer_of(op.A)):
        raise Decline(f"k_pack = {op.k_pack} is of fragments that mma takes")
    if not is_shared(buffer_of(op.A)) and not is_fragment(buffer_of(op.A)):
        raise Decline(f"{describe(op.A)} is neither in shared memory nor a fragment")
    if not is_fragment(buffer_of(op.C)):
        raise Decline(f"{describe(op.C)} is not a fragment")
    check_fragments(op.A, op.C)
    return family


def _share(op: Gemm, family: Family, threads: int, context: LoweringContext) -> Partition:
    m, n, _ = constant_extents(op)
    groups, size = context.threads // WARPGROUP, (ROWS, family.columns[0])
    rows = ROWS if is_shared(buffer_of(op.A)) else 0

    def operands(share: Partition) -> int:
        """Rows of A and of B that a warpgroup reads from shared memory, each as long as a step of K."""
        columns = share.column_matrices * family.columns[0]
        wide = family.largest(columns, threads).n
        return share.row_matrices * columns // wide * (rows + wide)

    return partition(m, n, groups, op.policy, size, "warpgroups", unit=WARPGROUP, cost=operands)


def _panel(operand: ir.TensorRegion, family: Family, step: int, *, follows_k: bool) -> int:
    """Bytes of the widest panel in which instructions find an operand.

    Where rows run along M or N, every instruction begins with a panel; there are such instructions for
    16 bits only. `step` is how many elements of a row lie from one instruction to the next that begins
    with a panel; with `follows_k` rows run along K.
    """
    if not follows_k and not family.transposes:
        raise Decline(
            f"rows of {describe(operand)} do not run along K, as wgmma needs it of {dtype_of(operand)}"
        )
    rows, length = (constant(extent) for extent in buffer_of(operand).ty.shape[-2:])
    column = None if follows_k else constant(ranges_of(operand)[-1].min)
    if rows is None or length is None or rows % _ATOM_ROWS:
        raise Decline(f"{describe(buffer_of(operand))} has no multiple of {_ATOM_ROWS} rows")
    for panel in SWIZZLES.values():
        elements = panel // _bytes_of(operand)
        if all(n % elements == 0 for n in (length, step, column or 0)):
            return panel
    raise Decline(
        f"instructions would not begin at multiples of {OPERAND_BYTES} bytes in rows of "
        f"{describe(operand)}, of {length} elements"
    )


def _bytes_of(operand: ir.TensorRegion) -> int:
    return bits_of(operand) // 8


def _layouts(op: Gemm, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    plan = _plan(op, context)
    share, row = plan.share, plan.row
    across = (Digit(share.columns, THREAD, WARPGROUP), Digit(plan.columns // row.n, REGISTER, 1))
    steps, matrices = constant_extents(op)[2] // row.k, {"C": row.c, "A": row.a}
    return layouts_of_operands(op, share, steps, matrices, context.threads, columns=across)


def _tiles(op: Gemm, context: LoweringContext) -> dict[ir.Var, SharedTile]:
    panels = _plan(op, context).panels
    return {tile: SharedTile(panel, required=True) for tile, panel in panels.items()}


# Code --------------------------------------------------------------------------------------------


@lowering(
    Gemm,
    target="cuda",
    variant="wgmma",
    priority=30,
    fits=_check,
    unit=WARPGROUP,
    fragments=FragmentDemand(_layouts, agrees=True),
    shared=SharedDemand(_tiles, moved=SWIZZLED),
    completion=WGMMA,
)
def gemm_wgmma(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Each warpgroup starts the instructions of its share; without a token it waits for them."""
    plan = _plan(op, context)
    share, row = plan.share, plan.row
    group = tirx.floordiv(context.thread_index, WARPGROUP)
    row_number, column_number = share.place(group)
    first_row, first_column = row_number * plan.rows, column_number * plan.columns
    thread = tirx.floormod(context.thread_index, WARPGROUP)

    def first_held(
        operand: ir.TensorRegion, matrix: Any, column: Index, transposed: bool
    ) -> ir.TensorLoad:
        """The first element of a fragment that the thread holds."""
        place = (first_row + _first(matrix[0], thread), column + _first(matrix[1], thread))
        indices = indices_at(operand, *(reversed(place) if transposed else place))
        return tirx.BufferLoad(buffer_of(operand), indices)

    def address(operand: ir.TensorRegion, row: Index, column: Index, transposed: bool) -> ir.Expr:
        indices = indices_at(operand, *((column, row) if transposed else (row, column)))
        return T.address_of(tirx.BufferLoad(buffer_of(operand), indices))

    product = Product(
        context.token or WGMMA.name,
        first_held(op.C, row.c, first_column, False),
        first_held(op.A, row.a, 0, op.transpose_A)
        if is_fragment(buffer_of(op.A))
        else address(op.A, first_row, 0, op.transpose_A),
        address(op.B, 0, first_column, op.transpose_B),
        plan.rows,
        plan.columns,
        constant_extents(op)[2],
        row.n,
        op.transpose_A,
        op.transpose_B,
        op.clear_accum,
    )
    issued = multiply(product)
    if context.token is not None:
        return issued
    waits = [wait(WGMMA.name, op.wg_wait)] if op.wg_wait >= 0 else []
    return seq([issued, signal(WGMMA.name), *waits])


def _first(digits: Axis, thread: ir.Expr) -> ir.Expr:
    """The first row, or column, that a thread of the warpgroup holds."""
    parts = [
        d.value_in(thread, WARPGROUP) * weight for weight, d in with_weights(digits) if d.is_thread
    ]
    return sum(parts, tirx.const(0, "int32"))
