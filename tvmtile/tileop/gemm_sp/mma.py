"""`T.gemm_sp` on NVIDIA GPUs from sm_80 on: `mma.sp`, which the 32 threads of a warp do together.

A, B and C lie as those of `mma.sync`, with A half as wide (PTX ISA, "Matrix fragments for
multiply-accumulate operation with sparse matrix A"). One more word of a lane says where the stored
elements belong; four lanes share two rows of A:

- 32 bits describe a row of an instruction for 16 and 32 bits. The first two lanes hold half of them
  each, of the upper row in their lower bits and of the row eight below in their upper bits.
- 64 bits describe a row for elements of 8 bits. Even lanes hold half of the upper row each, odd lanes
  of the lower one.
"""

from __future__ import annotations

from typing import Any

from tvm import DataType, ir, tirx

from tvmtile.instructions.mma import SPARSE_ATOMS, Atom
from tvmtile.ir.operands import buffer_of, describe, dtype_of
from tvmtile.ir.scopes import is_fragment
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.gemm.mma import SWIZZLED, WarpProduct, atom_of, layouts_of
from tvmtile.tileop.gemm_sp import GemmSp
from tvmtile.tileop.matrices import element_of
from tvmtile.tileop.registry import Decline, LoweringContext, lowering, of_shared_operands

__all__ = ["gemm_sp_mma", "metadata"]

_WORD_BITS = 32
_LOWER_ROW = 8
_LANES_OF_ROWS = 4


def _atom_of(op: GemmSp, context: LoweringContext) -> Atom:
    if is_fragment(buffer_of(op.E)):
        raise Decline(f"{describe(op.E)} is a fragment")
    return atom_of(op, SPARSE_ATOMS, context)


def _layouts(op: GemmSp, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    return layouts_of(op, _atom_of(op, context), context)


@lowering(
    GemmSp,
    target="cuda",
    variant="mma",
    priority=20,
    fits=_layouts,
    unit=WARP_SIZE,
    fragments=_layouts,
    shared=of_shared_operands(SWIZZLED),
    moved=SWIZZLED,
)
def gemm_sp_mma(op: GemmSp, context: LoweringContext) -> tirx.Stmt:
    """Each warp multiplies its share, an instruction's k at a time."""
    return _SparseProduct(op, _atom_of(op, context), context).statement()


class _SparseProduct(WarpProduct):
    """The code of one product, for one warp."""

    def __init__(self, op: GemmSp, atom: Atom, context: LoweringContext) -> None:
        super().__init__(op, atom, context)
        self._sparse = op

    def _also(self, m: int, k: Any) -> list[Any]:
        row = self._row + m * self._atom.m
        return [metadata(self._sparse, self._atom, self._lane, row, k), 0]


def metadata(op: GemmSp, atom: Atom, lane: Any, row: Any, k: Any) -> Any:
    """The word of a lane that says where the stored elements of an instruction belong.

    Parameters
    ----------
    op : GemmSp
        The operator.
    atom : Atom
        Its instruction.
    lane : Expr
        The thread's number in its warp.
    row : Expr
        The first row of the instruction.
    k : Expr
        The number of the instruction along K.
    """
    bits = op.place_bits * atom.stored_k
    lane, row = tirx.floormod(lane, _LANES_OF_ROWS), row + tirx.floordiv(lane, _LANES_OF_ROWS)
    odd, half = tirx.floormod(lane, 2), tirx.floordiv(lane, 2)
    if bits > _WORD_BITS:
        return _bits(op, row + odd * _LOWER_ROW, k * bits + half * _WORD_BITS, _WORD_BITS)
    first = k * bits + odd * (bits // 2)
    upper, lower = (_bits(op, r, first, bits // 2) for r in (row, row + _LOWER_ROW))
    return upper | (lower << tirx.const(bits // 2, "uint32"))


def _bits(op: GemmSp, row: Any, first: Any, count: int) -> Any:
    """So many bits of a row of E."""
    width = int(DataType(dtype_of(op.E)).bits)
    value: Any = tirx.const(0, "uint32")
    for start in range(0, count, width):
        column = tirx.floordiv(first + start, width)
        load = element_of(op.E, op.transpose_E, row, column)
        piece = converted(load, "uint32") & tirx.const((1 << width) - 1, "uint32")
        value = value | (piece << tirx.const(start, "uint32"))
    if count >= width:
        return value
    shift = converted(tirx.floormod(first, width), "uint32")
    return (value >> shift) & tirx.const((1 << count) - 1, "uint32")
