"""`T.fill` and `T.clear`: set all elements of a tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of
from tvmtile.codegen.metal import ELEMENTS_PER_LANE
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.ir.operands import check_bounds, describe, dtype_of, is_whole
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.rewriting import for_loop
from tvmtile.ir.scopes import SIMDGROUP_SCOPE, is_fragment
from tvmtile.ir.types import TileOperand
from tvmtile.layout.fragment import layout_of
from tvmtile.tileop.elementwise import converted, element, over_region
from tvmtile.tileop.registry import Decline, LoweringContext, as_loops, lowering


def fill(buffer: Any, value: Any, annotations: Mapping[str, object] | None = None) -> None:
    """Set every element of a tile to `value`.

    Parameters
    ----------
    buffer : buffer, region or element
        The tile.
    value : number or Expr
        Converted to the tile's dtype.
    annotations : dict, optional
        Accepted with a warning.
    """
    from tvmtile.frontend.dtypes import cast
    from tvmtile.frontend.values import as_expr

    warn_ignored("T.fill", annotations=annotations)
    buffer = check_operand("fill", "buffer", buffer)
    emit(Fill(buffer, cast(as_expr(value), dtype_of(buffer)) if _is_expr(value) else value))


def _is_expr(value: ir.Expr | int) -> bool:
    return not isinstance(value, bool | int | float)


def clear(buffer: TileOperand, annotations: Mapping[str, object] | None = None) -> None:
    """Set every element of a tile to zero.

    Parameters
    ----------
    buffer : buffer, region or element
        The tile.
    annotations : dict, optional
        Accepted with a warning.
    """
    fill(buffer, 0, annotations)


@tile_operator
class Fill(TileOp):
    """Set every element of a tile to a value."""

    name = "fill"
    outputs = ("dst",)

    dst: ir.TensorRegion
    value: Any

    def __post_init__(self) -> None:
        if isinstance(self.value, bool | int | float):
            object.__setattr__(self, "value", tirx.const(self.value, dtype_of(self.dst)))

    def filled(self) -> tuple[ir.TensorRegion, ir.Expr]:
        return self.dst, self.value

    def check(self) -> None:
        check_bounds(self.name, self.dst)
        if not ir.is_prim_expr(self.value):
            raise InvalidOperand("fill: the value is not a number or an expression")

    def as_loops(self) -> tirx.Stmt:
        value = converted(self.value, dtype_of(self.dst))
        return over_region(
            self.dst,
            lambda offsets: tirx.BufferStore(
                buffer_of(self.dst), value, element(self.dst, offsets)
            ),
        )


def reference(tile: np.ndarray, value: float) -> np.ndarray:
    """A tile of the same shape and dtype, all elements `value`."""
    return np.full_like(tile, value)


def _fits(op: Fill, _: LoweringContext) -> None:
    if not is_fragment(buffer_of(op.dst)):
        raise Decline(f"{describe(op.dst)} is not held in simdgroup matrices")


def _fits_layouts(op: Fill, _: LoweringContext) -> None:
    if buffer_of(op.dst).ty.storage_scope != SIMDGROUP_SCOPE:
        raise Decline(f"{describe(op.dst)} is not held in simdgroup matrices")
    if not is_whole(op.dst):
        raise Decline(f"{describe(op.dst)} is a part of its fragment")


@lowering(
    Fill,
    target="metal",
    variant="matrices",
    priority=10,
    fits=_fits,
    fits_layouts=_fits_layouts,
)
def fill_matrices(op: Fill, _: LoweringContext) -> tirx.Stmt:
    """Make new simdgroup matrices, all of whose elements are the value."""
    layout = layout_of(buffer_of(op.dst))
    assert layout is not None
    value = converted(op.value, dtype_of(op.dst))
    matrix = tirx.Var("matrix", "int32")
    filled = T.metal.make_filled_simdgroup_matrix(buffer_of(op.dst).data, matrix, value, 8, 8)
    count = layout.registers // ELEMENTS_PER_LANE
    return for_loop(matrix, count, tirx.Evaluate(filled), tirx.ForKind.UNROLLED)


lowering(Fill, target=("llvm", "metal", "cuda"), variant="elements")(as_loops)
