"""The layouts of shared tiles that users fix, as TVM has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.tirx.layout import Layout

from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.errors import InvalidOperand
from tvmtile.ir.operands import bits_of, describe, static_shape
from tvmtile.ir.rewriting import retyped
from tvmtile.layout.shared import SWIZZLES, has_plain_rows, layout_of_places, swizzle_of, swizzled


def user_layout(tile: ir.Var, layout: Any, widest: int, *, is_viewed: bool) -> Layout | None:
    """The layout that `T.annotate_layout` asks for; None where rows are plain.

    Parameters
    ----------
    tile : Var
        A shared tile.
    layout : str, Layout or IndexMap
        As the operator holds it.
    widest : int
        Bytes of a panel, where the user leaves that to the compiler.
    is_viewed : bool
        Whether it is seen through views, or its address is taken.

    Raises
    ------
    InvalidOperand
        If it can't be represented, or the tile is seen through views, which show plain rows.
    """
    if layout == "linear" or (is_viewed and layout == "auto"):
        return None
    if not is_viewed:
        return _fixed(tile, layout, widest)
    fixed = None if isinstance(layout, str) else _fixed(tile, layout, widest)
    if fixed is None or not has_plain_rows(retyped(tile, layout=fixed)):
        raise _refused(tile, "it is seen through a view, or its address is taken")
    return None


def _fixed(tile: ir.Var, layout: Any, widest: int) -> Layout | None:
    dtype = str(tile.ty.dtype)
    if layout == "auto":
        return swizzled(static_shape(tile), dtype, widest=widest)
    if isinstance(layout, str):
        found = swizzled(static_shape(tile), dtype, SWIZZLES[layout])
        if found is None:
            raise _refused(tile, f"its rows do not consist of pieces of {SWIZZLES[layout]} bytes")
        return found
    if isinstance(layout, Layout):
        return layout
    return layout_of_map(tile, layout)


def layout_of_map(tile: ir.Var, layout: tirx.IndexMap) -> Layout:
    """The layout of an index map, whose results are the indices of a row-major array.

    Raises
    ------
    InvalidOperand
        If it can't be represented, or gives two elements one place.
    """
    indices = np.indices(static_shape(tile), np.int64).reshape(len(tile.ty.shape), -1)
    points = dict(zip(layout.initial_indices, indices, strict=True))
    try:
        results = [
            np.broadcast_to(evaluate(e, points, lambda _: False, 0).numbers, indices.shape[1:])
            for e in layout.final_indices
        ]
    except NotSeparable:
        raise _refused(tile, f"{layout} is no function of the indices alone") from None
    places = _row_major(results).reshape(static_shape(tile))
    if len(np.unique(places)) < places.size:
        raise _refused(tile, "two elements would lie in one place")
    dtype = str(tile.ty.dtype)
    found = swizzle_of(places, dtype) or layout_of_places(places, bits_of(tile))
    if found is None:
        raise _refused(
            tile,
            "a place is neither a sum of digits of the indices, nor such a sum with pieces of 16 bytes "
            "swizzled by XOR",
        )
    return found


def _row_major(indices: Sequence[np.ndarray]) -> np.ndarray:
    places = np.zeros_like(indices[0])
    for index in indices:
        places = places * (int(index.max()) + 1) + index
    return places


def _refused(tile: ir.Var, reason: str) -> InvalidOperand:
    return InvalidOperand(
        f"T.annotate_layout: the layout of the shared tile {describe(tile)} can't be used: {reason}",
        help="use tvmtile.layout.make_swizzled_layout(tile), which knows the banks of the target, or "
        "leave the layout to the compiler",
    )
