"""Statements that compute nothing: layouts, values outside, registers, launches that overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, tirx
from tvm.tirx.layout import Layout as TvmLayout
from tvm.tirx.layout import S, TileLayout
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import emit
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.annotations import LAUNCH_BOUNDS_BLOCKS
from tvmtile.ir.operands import dtype_of
from tvmtile.ir.operators import TileOp, ValueOp, tile_operator
from tvmtile.ir.scopes import is_fragment, is_global
from tvmtile.layout import Layout, Swizzle
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.layout.user_layout import read_user_layout
from tvmtile.tileop.registry import LoweringContext, lowering, needs, no_code


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
    role = "layout"

    tile: ir.Var
    layout: Any = None

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


def _of_fragment(op: AnnotateLayout, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    if not is_fragment(op.tile):
        return {}
    try:
        return {op.tile: read_user_layout(op.tile, op.layout, context.threads)}
    except InvalidOperand as error:
        error.location = context.location
        raise


# Tiles in the memory of a CPU, and of a block on Metal, are row-major arrays. InferLayout has
# given fragments on GPUs their layouts, and LayOutSharedTiles shared tiles on CUDA.
lowering(AnnotateLayout, target=("llvm", "metal", "cuda"), variant="none", fragments=_of_fragment)(
    no_code
)


# Values outside of tensors ---------------------------------------------------------------------


def annotate_safe_value(safe_value_map: Mapping[Any, Any]) -> None:
    """Say what reads outside tensors in global memory give, in place of zero.

    Parameters
    ----------
    safe_value_map : dict of buffer to number
        For each tensor the value, of the tensor's dtype. It holds for `T.copy` and for every other
        read in the kernel, wherever the annotation stands in it.

    Raises
    ------
    InvalidOperand
        If a key is not a tensor in global memory, or a value is not a number.
    """
    for buffer, value in safe_value_map.items():
        if not is_buffer_var(buffer) or not is_global(buffer):
            raise InvalidOperand(
                f"T.annotate_safe_value: {getattr(buffer, 'name', buffer)} is not a tensor in global "
                "memory",
                help="only accesses to those are checked",
            )
        emit(SafeValue(buffer, value))


@tile_operator
class SafeValue(TileOp):
    """Reads outside `tensor` give `value`. InsertBoundsGuards takes it out of the program."""

    name = "annotate_safe_value"
    role = "values outside"
    is_tile = False

    tensor: ir.Var
    value: Any

    def __post_init__(self) -> None:
        if isinstance(self.value, bool | int | float):
            object.__setattr__(self, "value", tirx.const(self.value, dtype_of(self.tensor)))

    def check(self) -> None:
        if not isinstance(self.value, tirx.IntImm | tirx.FloatImm):
            raise InvalidOperand(
                f"T.annotate_safe_value: {self.value} is not a number",
                help="the value is known while tracing",
            )
        if str(self.value.ty.dtype) != dtype_of(self.tensor):
            raise InvalidOperand(
                f"T.annotate_safe_value: {self.value} is {self.value.ty.dtype}, the tensor holds "
                f"{dtype_of(self.tensor)}",
                help="pass a Python number",
            )


# Registers -------------------------------------------------------------------------------------


_COUNTS = range(24, 257, 8)
"""PTX ISA, "Miscellaneous Instructions: setmaxnreg"."""


def set_max_nreg(reg_count: int, is_inc: int | bool) -> None:
    """Set how many registers a thread of this warpgroup may use, on NVIDIA's Hopper.

    Parameters
    ----------
    reg_count : int
        24 to 256, a multiple of 8.
    is_inc : bool
        True: not fewer than now; wait until others have given as many back. False: not more.

    Notes
    -----
    All warps of a warpgroup come here: `with T.ws(0): T.set_max_nreg(240, 1)`. Other targets have
    nothing to do.

    Raises
    ------
    InvalidOperand
        If there is no such count.
    """
    if isinstance(reg_count, bool) or reg_count not in _COUNTS:
        raise InvalidOperand(
            f"T.set_max_nreg: reg_count={reg_count!r}",
            help=f"give a multiple of {_COUNTS.step} from {_COUNTS.start} to {_COUNTS[-1]}",
        )
    emit(SetMaxRegisters(reg_count, bool(is_inc)))


def inc_max_nreg(reg_count: int) -> None:
    """The same as `T.set_max_nreg(reg_count, True)`."""
    set_max_nreg(reg_count, True)


def dec_max_nreg(reg_count: int) -> None:
    """The same as `T.set_max_nreg(reg_count, False)`."""
    set_max_nreg(reg_count, False)


@tile_operator
class SetMaxRegisters(ValueOp):
    """Set how many registers a thread of a warpgroup may use."""

    name = "set_max_registers"
    role = "registers"

    count: int = 0
    more: bool = False


# The registers of a thread are fixed.
lowering(SetMaxRegisters, target=("llvm", "metal", "cuda"), variant="none")(no_code)


_moves_registers = needs(
    lambda gpu: gpu.has_warpgroup_products,
    "the registers of a thread are fixed when a block begins",
)


@lowering(SetMaxRegisters, target="cuda", variant="setmaxnreg", priority=10, fits=_moves_registers)
def _(op: SetMaxRegisters, context: LoweringContext) -> tirx.Stmt:
    """One instruction. It needs a launch whose registers are known: one that says how many blocks."""
    context.attributes.setdefault(LAUNCH_BOUNDS_BLOCKS, tirx.const(1, "int32"))
    name = f"setmaxnreg.{'inc' if op.more else 'dec'}.sync.aligned.u32"
    return tirx.Evaluate(ptx(name)(op.count))
