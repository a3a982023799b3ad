"""`T.gemm_sp` on NVIDIA GPUs from sm_80 on: `mma.sp`, which the 32 threads of a warp do together.

A, B and C lie as those of `mma.sync`, with A half as wide (PTX ISA, "Matrix fragments for
multiply-accumulate operation with sparse matrix A"). One more word of a lane says where the stored
elements belong (`tvmtile.instructions.mma.metadata_of`).
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of
from tvmtile.instructions.mma import SPARSE_ATOMS, Atom, metadata_of
from tvmtile.ir.operands import bits_of, describe
from tvmtile.ir.scopes import is_fragment
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.gemm.mma import SWIZZLED, WarpProduct, atom_of, layouts_of
from tvmtile.tileop.gemm_sp import GemmSp
from tvmtile.tileop.matrices import element_of
from tvmtile.tileop.registry import (
    Decline,
    LoweringContext,
    SharedDemand,
    lowering,
    of_shared_operands,
)


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
    shared=SharedDemand(of_shared_operands(SWIZZLED), moved=SWIZZLED),
)
def gemm_sp_mma(op: GemmSp, context: LoweringContext) -> tirx.Stmt:
    """Each warp multiplies its share, an instruction's k at a time."""
    return _SparseProduct(op, _atom_of(op, context), context).statement()


class _SparseProduct(WarpProduct):
    """The code of one product, for one warp."""

    def __init__(self, op: GemmSp, atom: Atom, context: LoweringContext) -> None:
        super().__init__(op, atom, context)
        self._sparse = op

    def _also(self, m: int, k: Index) -> list[ir.Expr]:
        row = self._row + m * self._atom.m
        return [metadata(self._sparse, self._atom, self._lane, row, k), 0]


def metadata(op: GemmSp, atom: Atom, lane: Any, row: Index, k: Index) -> Any:
    """The word of a lane that says where the stored elements of an instruction belong.

    `row` is the first row of the instruction, `k` its number along K.
    """
    words = []
    for piece in metadata_of(atom, lane):
        word = _bits(op, row + piece.row, k * atom.metadata_bits + piece.first, piece.bits)
        words.append(word << tirx.const(piece.shift, "uint32") if piece.shift else word)
    return functools.reduce(operator.or_, words)


def _bits(op: GemmSp, row: Any, first: Index, count: int) -> ir.Expr:
    """So many bits of a row of E."""
    width = bits_of(op.E)
    value: ir.Expr = tirx.const(0, "uint32")
    for start in range(0, count, width):
        column = tirx.floordiv(first + start, width)
        load = element_of(op.E, op.transpose_E, row, column)
        piece = converted(load, "uint32") & tirx.const((1 << width) - 1, "uint32")
        value = value | (piece << tirx.const(start, "uint32"))
    if count >= width:
        return value
    shift = converted(tirx.floormod(first, width), "uint32")
    return (value >> shift) & tirx.const((1 << count) - 1, "uint32")
