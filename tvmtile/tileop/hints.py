"""Hints to the compiler that stand in a kernel as statements and compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, tirx
from tvm.tirx.layout import Layout as TvmLayout
from tvm.tirx.layout import S, TileLayout
from tvm.tirx.script import builder as T

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import emit
from tvmtile.ir.operands import buffer_of, constant
from tvmtile.ir.operators import TileOp, ValueOp, tile_operator
from tvmtile.ir.scopes import is_fragment
from tvmtile.ir.types import Index
from tvmtile.layout import Layout, Swizzle
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.layout.user_layout import read_user_layout
from tvmtile.tileop.registry import LoweringContext, lowering, needs, no_code

LAUNCH_BOUNDS_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"
"""TVM's attribute of a kernel: the second number of CUDA's `__launch_bounds__`."""


@tile_operator
class UseSwizzle(ValueOp):
    """Visit the blocks of the grid in panels, so that neighbours in time share operands in a cache."""

    name = "use_swizzle"
    orders_blocks = True

    panel_size: int = 10
    order: str = "row"

    def block_order(
        self, blocks: Sequence[ir.Expr], grid: Sequence[ir.Expr]
    ) -> list[ir.Expr] | None:
        if len(blocks) < 2 or any(constant(extent) == 1 for extent in grid[:2]):
            return None  # there is nothing beside a block
        x, y, *rest = blocks
        width, height, *_ = grid
        number = y * width + x
        if self.order == "column":
            y, x = self._in_panels(number, height, width)
        else:
            x, y = self._in_panels(number, width, height)
        return [x, y, *rest]

    def _in_panels(
        self, number: ir.Expr, width: ir.Expr, height: ir.Expr
    ) -> tuple[ir.Expr, ir.Expr]:
        """Column and row of the block that starts as a number: panels of some rows each."""
        size = width * self.panel_size
        panel, offset = tirx.floordiv(number, size), tirx.floormod(number, size)
        rows = tirx.min(self.panel_size, height - panel * self.panel_size)
        column = tirx.floordiv(offset, rows)
        if self.order != "strip":
            is_backward = tirx.floormod(panel, 2) == 1
            column = tirx.Select(is_backward, width - 1 - column, column)
        return column, panel * self.panel_size + tirx.floormod(offset, rows)


def use_swizzle(panel_size: Index, order: str = "row", enable: bool = True) -> None:
    """Visit the blocks of the grid in panels, for reuse in the GPU's cache.

    Parameters
    ----------
    panel_size : int
        Blocks across a panel.
    order : {"row", "column", "strip", "mlx"}
        Along which axis of the grid a panel runs. Every second panel of "row" and "column" is gone
        through backwards; "strip", also called "mlx", is "row" with all panels in one direction,
        which with a panel size of 4 is the order of MLX's matrix products.
    enable : bool
        False leaves the order as it is.

    Notes
    -----
    It changes the order in which blocks run, never a result. A CPU ignores it, and so does a grid of
    one axis.

    Raises
    ------
    InvalidOperand
        If there is no such order, or the panel size is not a positive integer.
    """
    if order not in _ORDERS:
        raise InvalidOperand(
            f"T.use_swizzle: order={order!r}", help='use "row", "column" or "strip"'
        )
    if not isinstance(panel_size, int) or panel_size < 1:
        raise InvalidOperand(
            f"T.use_swizzle: panel_size={panel_size!r}", help="panel_size is a positive integer"
        )
    if enable:
        emit(UseSwizzle(panel_size, _ORDERS[order]))


_ORDERS = {"row": "row", "column": "column", "col": "column", "strip": "strip", "mlx": "strip"}


@tile_operator
class WarpSpecialization(ValueOp):
    """Whether warps of their own copy the tiles of pipelined loops."""

    name = "warp_specialization"

    enable: bool = True

    def splits_roles(self) -> bool | None:
        return bool(self.enable)


def annotate_warp_specialize(enable: bool = True) -> None:
    """Say whether warps of their own copy the tiles of pipelined loops.

    Parameters
    ----------
    enable : bool
        False: all threads copy and compute. True: it is done wherever it can be, and a warning says why
        where it can't. Without the annotation it is done where it pays: on Hopper, where products are
        by `wgmma` and copies can go by tensor maps.

    Notes
    -----
    It changes no result. `T.Kernel(threads=)` counts the threads that compute.
    """
    emit(WarpSpecialization(bool(enable)))


@tile_operator
class Persistence(ValueOp):
    """Whether as many blocks as run at once loop over the blocks of the grid."""

    name = "persistence"

    enable: bool = True

    def persists(self) -> bool | None:
        return bool(self.enable)


def annotate_persistent(enable: bool = True) -> None:
    """Say whether as many blocks as run at once do the work of all blocks of the grid.

    Parameters
    ----------
    enable : bool
        True: where warps of their own copy tiles (`T.annotate_warp_specialize`), they copy those of
        the next block while threads still compute. Other kernels, and a grid that runs at once, stay
        as they are; `kernel.choices` says why.

    Notes
    -----
    It changes no result: which blocks follow each other, and where, is left to the GPU anyway. Leave it
    out for what was found faster.
    """
    emit(Persistence(bool(enable)))


# WarpSpecialize has heeded it.
lowering(Persistence, target=("llvm", "metal", "cuda"), variant="none")(no_code)


@tile_operator
class MinBlocks(ValueOp):
    """How many blocks must fit on a multiprocessor at once."""

    name = "min_blocks"

    count: int = 1

    def least_blocks(self) -> int | None:
        return self.count


def annotate_min_blocks_per_sm(n: Index) -> None:
    """Let a thread use so few registers that `n` blocks fit on a multiprocessor of an NVIDIA GPU.

    Parameters
    ----------
    n : int
        At least 1. It is the second number of CUDA's `__launch_bounds__`; other targets ignore it.
        Blocks that persist (`T.annotate_persistent`) are so many for each multiprocessor, or as many as
        its shared memory has room for, and the roles of a block share the registers that it gets.
        Without it, that number is 1, so that threads may use all registers, for a kernel without matrix
        instructions that has a block for each multiprocessor at most.

    Raises
    ------
    InvalidOperand
        If it is not a positive integer.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidOperand(
            f"T.annotate_min_blocks_per_sm: n={n!r}", help="n is a positive integer"
        )
    emit(MinBlocks(n))


# Only NVIDIA's compiler divides registers by it.
lowering(MinBlocks, target=("llvm", "metal"), variant="none")(no_code)


@lowering(MinBlocks, target="cuda", variant="launch bounds")
def _(op: MinBlocks, context: LoweringContext) -> tirx.Stmt:
    """An attribute of the kernel, which TVM's generator looks for."""
    context.attributes[LAUNCH_BOUNDS_BLOCKS] = tirx.const(op.count, "int32")
    return tirx.Evaluate(tirx.const(0, "int32"))


@tile_operator
class DependentLaunch(ValueOp):
    """An instruction of programmatic dependent launch: `wait` or `launch_dependents`."""

    name = "dependent_launch"

    action: str = "wait"


def pdl_sync() -> None:
    """Wait until the launch before is done, where an NVIDIA GPU from Hopper on overlaps launches.

    A kernel that waits is launched while the one before it in its stream ends: what stands in front of
    this, in every block, touches nothing that the other one reads or writes. Elsewhere launches follow
    each other, and there is nothing to wait for.
    """
    emit(DependentLaunch("wait"))


def pdl_trigger() -> None:
    """Let the next launch begin, where an NVIDIA GPU from Hopper on overlaps launches.

    It does if it has `T.pdl_sync`, once all blocks of this one have come here or ended; without this,
    once they have ended.
    """
    emit(DependentLaunch("launch_dependents"))


# Launches do not overlap.
lowering(DependentLaunch, target=("llvm", "metal", "cuda"), variant="none")(no_code)


_launches_overlap = needs(
    lambda gpu: gpu.overlaps_launches, "launches overlap on GPUs from compute capability 9.0 on"
)


@lowering(
    DependentLaunch,
    target="cuda",
    variant="griddepcontrol",
    priority=10,
    fits=_launches_overlap,
)
def _(op: DependentLaunch, _: LoweringContext) -> tirx.Stmt:
    """An instruction since compute capability 9.0."""
    return tirx.Evaluate(getattr(T.ptx.griddepcontrol, op.action)())


@tile_operator
class AnnotateLayout(TileOp):
    """Fix the layout of a tile instead of letting the compiler choose one."""

    name = "annotate_layout"

    tile: ir.Var
    layout: Any = None

    def fixed_layouts(self) -> dict[ir.Var, Any]:
        return {self.tile: self.layout}

    def with_buffer_copies(self, operands: Sequence[ir.Expr]) -> AnnotateLayout:
        del operands
        return replace(self, layout=_of_each_buffer_copy(self.tile, self.layout))

    def normalized(self) -> AnnotateLayout:
        return self


def _of_each_buffer_copy(tile: ir.Var, layout: Any) -> Any:
    """A layout for all buffer copies of a tile, one after the other."""
    if isinstance(layout, tirx.IndexMap):
        stage = tirx.Var("stage", "int32")
        return tirx.IndexMap(
            [stage, *layout.initial_indices],
            [stage, *layout.final_indices],
            layout.inverse_index_map,
        )
    if isinstance(layout, TvmLayout):
        count, *extents = tile.ty.shape
        outer = [count, *(1 for _ in extents)]
        return layout.tile(TileLayout(S[tuple(outer)]), outer, [1, *extents])
    return layout


def annotate_layout(layout_map: Mapping[Any, Any]) -> None:
    """Fix the layouts of tiles.

    Parameters
    ----------
    layout_map : dict of buffer to layout
        A layout is a `T.Layout`, a `T.Fragment`, what `tvmtile.layout.make_swizzled_layout` returns, a
        `tvm.tirx.layout.Layout`, a `tvm.tirx.IndexMap`, or a function from logical to physical
        indices.

    Notes
    -----
    A layout decides where elements lie, never what they are. A CPU and Metal, whose matrix units read
    plain rows, ignore that of a tile in shared memory.
    """
    for buffer, layout in layout_map.items():
        if not is_buffer_var(buffer):
            raise InvalidOperand("T.annotate_layout: a key is not a buffer")
        emit(AnnotateLayout(buffer, _as_layout(buffer_of(buffer), layout)))


def _as_layout(buffer: ir.Var, layout: Any) -> Any:
    if isinstance(layout, Swizzle):
        return layout.kind
    if isinstance(layout, Layout):
        return layout.index_map
    if isinstance(layout, TvmLayout | tirx.IndexMap):
        return layout
    if isinstance(layout, Callable):  # type: ignore[arg-type]
        return Layout(buffer.ty.shape, layout).index_map
    raise InvalidOperand(
        f"T.annotate_layout: {layout!r} is not a layout of {buffer.name}",
        help="give a TileLayout, an IndexMap or a function of the indices",
    )


# WarpSpecialize has seen it.
lowering(WarpSpecialization, target=("llvm", "metal", "cuda"), variant="none")(no_code)


# SwizzleBlockIdx has done it on a GPU; the order does not matter to a CPU's caches.
lowering(UseSwizzle, target=("llvm", "metal", "cuda"), variant="none")(no_code)


def _of_fragment(op: AnnotateLayout, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    if not is_fragment(op.tile):
        return {}
    try:
        return {op.tile: read_user_layout(op.tile, op.layout, context.threads)}
    except InvalidOperand as error:
        error.location = context.location
        raise


# Tiles in the memory of a CPU, and of a block on Metal, are row-major arrays. InferLayout has
# given fragments on GPUs their layouts, and SwizzleShared shared tiles on CUDA.
lowering(AnnotateLayout, target=("llvm", "metal", "cuda"), variant="none", fragments=_of_fragment)(
    no_code
)
