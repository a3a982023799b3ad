"""`T.fill` and `T.copy` of an accumulator on Apple GPUs: whole 8x8 matrices at once."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.codegen.metal import ELEMENTS_PER_LANE
from tvmtile.ir.operands import constant, describe, dtype_of, is_whole
from tvmtile.ir.operators import TileOp
from tvmtile.ir.rewriting import for_loop
from tvmtile.ir.scopes import is_by_matrices, is_fragment
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import FragmentLayout, layout_of, with_weights
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.gemm.simdgroup import COLUMN, ROW, Matrices, check_rows, unproven_bounds
from tvmtile.tileop.registry import Decline, LoweringContext, lowering


def _fits_fragment(op: TileOp, _: LoweringContext) -> None:
    (tile,) = op.writes()
    if not is_fragment(buffer_of(tile)):
        raise Decline(f"{describe(tile)} is not held in simdgroup matrices")


def _fits_layout(op: TileOp, _: LoweringContext) -> None:
    _check_held(*op.writes())


def _check_held(tile: ir.TensorRegion) -> FragmentLayout:
    """The layout of a whole fragment of simdgroup matrices; another tile is declined."""
    layout = layout_of(buffer_of(tile))
    if not is_by_matrices(buffer_of(tile)) or layout is None:
        raise Decline(f"{describe(tile)} is not held in simdgroup matrices")
    if not is_whole(tile):
        raise Decline(f"{describe(tile)} is a part of its fragment")
    return layout


@lowering(
    "fill",
    target="metal",
    variant="matrices",
    priority=10,
    fits=_fits_fragment,
    fits_layouts=_fits_layout,
)
def fill_matrices(op: Any, _: LoweringContext) -> tirx.Stmt:
    """Make new simdgroup matrices, all of whose elements are the value."""
    tile = buffer_of(op.buffer)
    layout = layout_of(tile)
    assert layout is not None
    matrix = tirx.Var("matrix", "int32")
    value = converted(op.value, dtype_of(tile))
    filled = T.metal.make_filled_simdgroup_matrix(tile.data, matrix, value, 8, 8)
    count = layout.registers // ELEMENTS_PER_LANE
    return for_loop(matrix, count, tirx.Evaluate(filled), tirx.ForKind.UNROLLED)


def _fits(op: Copy, _: LoweringContext) -> None:
    target = buffer_of(op.dst)
    if not is_fragment(buffer_of(op.src)):
        raise Decline(f"{describe(op.src)} is not held in simdgroup matrices")
    if is_fragment(target) or dtype_of(op.src) != dtype_of(op.dst):
        raise Decline(f"{describe(op.dst)} is a fragment, or of another dtype")
    check_rows(op.dst)


def _fits_layouts(op: Copy, _: LoweringContext) -> None:
    layout = _check_held(op.src)
    rows, columns = layout.axes[-2:]
    if rows[-len(ROW) :] != ROW or columns[-len(COLUMN) :] != COLUMN:
        raise Decline(f"{describe(op.src)} is held transposed")
    if [constant(r.extent) for r in ranges_of(op.dst)[-2:]] != list(layout.shape[-2:]):
        raise Decline(f"the matrices are not the last axes of {describe(op.dst)}")


@lowering(
    Copy,
    target="metal",
    variant="matrices",
    priority=20,
    fits=_fits,
    fits_layouts=_fits_layouts,
)
def copy_matrices(op: Copy, context: LoweringContext) -> tirx.Stmt:
    """Store each matrix of a simdgroup with one instruction.

    Of the simdgroups that hold the same matrices the first one stores them. A tile that may reach over
    the edge of its tensor is stored element by element there.
    """
    layout = layout_of(buffer_of(op.src))
    assert layout is not None
    loops, indices = _places(layout, context)
    store = Matrices(op.dst).store_at(buffer_of(op.src), *indices)
    first_lane = _first_lane(context)
    first = [d.value_in(first_lane, layout.threads) == 0 for d in layout.replicas]
    if first:  # inside of the loops, which all threads go through together
        store = tirx.IfThenElse(tirx.all(*first), store, None)
    for variable, extent in reversed(loops):
        store = for_loop(variable, extent, store, tirx.ForKind.UNROLLED)
    inside = unproven_bounds([op.dst], context)
    return tirx.IfThenElse(tirx.all(*inside), store, op.as_loops()) if inside else store


def _places(
    layout: FragmentLayout, context: LoweringContext
) -> tuple[list[tuple[ir.Var, int]], tuple[Any, Any, Any]]:
    """Loops over a simdgroup's matrices; the number of each, its row and its column."""
    first_lane = _first_lane(context)
    loops: list[tuple[ir.Var, int]] = []
    number: Any = 0
    places: list[Index] = []
    for digits in layout.axes[-2:]:
        place: Index = 0
        for weight, digit in with_weights(digits):
            if digit.is_thread:
                value = (
                    digit.value_in(first_lane, layout.threads) if digit.stride >= WARP_SIZE else 0
                )
            elif weight == 1:
                value = 0  # the two elements that a lane holds
            else:
                value = tirx.Var("m", "int32")
                loops.append((value, digit.extent))
                number = number + value * (digit.stride // 2)
            place = place + value * weight
        places.append(place)
    return loops, (number, *places)


def _first_lane(context: LoweringContext) -> ir.Expr:
    """The lane of a simdgroup that holds the first element of its matrices."""
    return tirx.floordiv(context.thread_index, WARP_SIZE) * WARP_SIZE
