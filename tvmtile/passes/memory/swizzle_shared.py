"""SwizzleShared: decide where the elements of shared tiles lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx.layout import ComposeLayout, Layout

from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.errors import InvalidOperand
from tvmtile.ir.kernels import target_of, with_kernels
from tvmtile.ir.operands import bits_of, constant, describe
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.layout.shared import SWIZZLES, layout_of_places, period_of, swizzled
from tvmtile.passes.memory.shared_tiles import SharedTiles

__all__ = ["SwizzleShared", "layout_of_map"]


@prim_func_pass(
    "SwizzleShared", requires=(Property.PIPELINED,), establishes=(Property.SHARED_LAYOUTS,)
)
def SwizzleShared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give the types of shared tiles a layout, a `tvm.tirx.layout.ComposeLayout` or `TileLayout`.

    It is the one that `T.annotate_layout` asks for, or, for tiles that an implementation wants
    swizzled and in kernels with such tiles for those that are moved to or from fragments, the widest
    swizzle that a row allows. Tiles that are seen through views, or whose address is taken, have
    plain rows.
    Indices stay those of the elements; FlattenShared computes places from them.

    Raises
    ------
    InvalidOperand
        If a user layout can't be represented, gives two elements one place, or is one
        of a tile that is seen through views.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float16")):
        T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_80"})})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                tile = T.alloc_buffer((32, 32), "float16", scope="shared.dyn")
                acc = T.alloc_buffer((32, 32), "float32", scope="local.fragment")
                T.tile.copy(A[0:32, 0:32], tile[0:32, 0:32])
                T.tile.gemm(tile[0:32, 0:32], tile[0:32, 0:32], acc[0:32, 0:32], impl="mma")
    ```

    After
    -----
    ```
                tile = T.alloc_buffer(
                    (32, 32),
                    "float16",
                    scope="shared.dyn",
                    layout=T.ComposeLayout(3, 2, 3, T.TileLayout(T.S[(32, 1, 32):(32, 1024, 1)])),
                )
                acc = T.alloc_buffer((32, 32), "float32", scope="local.fragment")
                T.tile.copy(A[0:32, 0:32], tile[0:32, 0:32])
                T.tile.gemm(tile[0:32, 0:32], tile[0:32, 0:32], acc[0:32, 0:32], impl="mma")
    ```
    """
    target = target_of(func)
    return with_kernels(func, lambda kernel: _with_layouts(kernel, target))


def _with_layouts(kernel: tirx.For, target: Target) -> tirx.For:
    tiles = SharedTiles.of(kernel, target)
    layouts: dict[ir.Var, Layout | None] = {}
    for tile in tiles.with_rows:
        widest = tiles.form_of(tile).swizzle
        layouts[tile] = swizzled(_shape(tile), str(tile.ty.dtype), widest=widest)
    for tile, (layout, location) in tiles.user_layouts.items():
        try:
            widest = tiles.form_of(tile).swizzle or max(SWIZZLES.values())
            layouts[tile] = _user_layout(tile, layout, widest, is_viewed=tile in tiles.viewed)
        except InvalidOperand as error:
            error.location = location
            raise
    return substitute(
        kernel,
        {
            tile: _laid_out(tile, layout, aligned=tiles.form_of(tile).required)
            for tile, layout in layouts.items()
            if layout
        },
    )


def _laid_out(tile: ir.Var, layout: Layout, *, aligned: bool) -> ir.Var:
    """A tile with a layout; one in which the hardware finds elements begins where its swizzle does."""
    if not aligned or not isinstance(layout, ComposeLayout):
        return retyped(tile, layout=layout)
    alignment = max(int(tile.ty.data_alignment), period_of(layout, str(tile.ty.dtype)))
    return retyped(tile, layout=layout, data_alignment=alignment)


def _shape(tile: ir.Var) -> list[int]:
    return [constant(extent) or 0 for extent in tile.ty.shape]


# User layouts ------------------------------------------------------------------------------------


def _user_layout(tile: ir.Var, layout: Any, widest: int, *, is_viewed: bool) -> Layout | None:
    if layout == "linear" or (is_viewed and layout == "auto"):
        return None
    if is_viewed:
        raise _refused(tile, "it is seen through a view, or its address is taken")
    dtype = str(tile.ty.dtype)
    if layout == "auto":
        return swizzled(_shape(tile), dtype, widest=widest)
    if isinstance(layout, str):
        found = swizzled(_shape(tile), dtype, SWIZZLES[layout])
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
    indices = np.indices(_shape(tile), np.int64).reshape(len(tile.ty.shape), -1)
    points = dict(zip(layout.initial_indices, indices, strict=True))
    try:
        results = [
            np.broadcast_to(evaluate(e, points, lambda _: False, 0).numbers, indices.shape[1:])
            for e in layout.final_indices
        ]
    except NotSeparable:
        raise _refused(tile, f"{layout} is no function of the indices alone") from None
    places = _row_major(results).reshape(_shape(tile))
    if len(np.unique(places)) < places.size:
        raise _refused(tile, "two elements would lie in one place")
    found = layout_of_places(places, bits_of(tile))
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
