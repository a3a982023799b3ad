"""Options of a kernel: what its author asks of the compiler, which changes no result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import nodes_in
from tvmtile.ir.annotations import OPTIONS_ANNOTATION
from tvmtile.ir.kernels import is_kernel
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import replace_loop


@dataclass(frozen=True)
class KernelOptions:
    """The options of a kernel; None where it does not say.

    Attributes
    ----------
    panel_size : int or None
        Blocks across a panel, in which the blocks of the grid are visited.
    panel_order : str
        The axis along which a panel runs: "row", "column", or "strip", all panels in one direction.
    specialize_warps : bool or None
        Whether warps of their own copy the tiles of pipelined loops.
    persistent : bool or None
        Whether as many blocks as run at once loop over the blocks of the grid.
    blocks_per_multiprocessor : int or None
        How many blocks must fit on a multiprocessor at once.
    fixed_registers : bool
        Whether each thread keeps the registers that it begins with.
    source : str
        Text in the target's language that stands before the kernel.
    """

    panel_size: int | None = None
    panel_order: str = "row"
    specialize_warps: bool | None = None
    persistent: bool | None = None
    blocks_per_multiprocessor: int | None = None
    fixed_registers: bool = False
    source: str = ""


def options_of(kernel: tirx.For) -> KernelOptions:
    """The options in the annotation of a kernel's outermost loop."""
    given = kernel.annotations.get(OPTIONS_ANNOTATION, {})
    return KernelOptions(
        **{
            item.name: _plain(given[item.name])
            for item in fields(KernelOptions)
            if item.name in given
        }
    )


def _plain(value: Any) -> Any:
    """A number as Python has it; TVMScript reads those in annotations as constants of the IR."""
    if isinstance(value, tirx.IntImm):
        return bool(value) if str(value.ty.dtype) == "bool" else int(value)
    return value.value if isinstance(value, ir.StringImm) else value


def with_options(kernel: tirx.For, options: Mapping[str, object]) -> tirx.For:
    """A kernel whose options are these, by the names of `KernelOptions`' attributes."""
    annotations = {k: v for k, v in kernel.annotations.items() if k != OPTIONS_ANNOTATION}
    if options:
        annotations[OPTIONS_ANNOTATION] = dict(options)
    return replace_loop(kernel, annotations=annotations)


def without_panels(kernel: tirx.For) -> tirx.For:
    """A kernel whose blocks are visited by their numbers."""
    given = kernel.annotations.get(OPTIONS_ANNOTATION, {})
    return with_options(kernel, {k: v for k, v in given.items() if not k.startswith("panel_")})


def sources_in(func: tirx.PrimFunc) -> list[str]:
    """The texts that stand before the kernels of a function, each once."""
    kernels = filter(is_kernel, nodes_in(func.body, tirx.For))
    return list(dict.fromkeys(filter(None, (options_of(kernel).source for kernel in kernels))))


def block_order(
    options: KernelOptions, blocks: Sequence[ir.Expr], grid: Sequence[ir.Expr]
) -> list[Any] | None:
    """The indices of the block whose work a block does; None where the kernel does not say.

    Parameters
    ----------
    options : KernelOptions
        Of the kernel.
    blocks, grid : sequence of Expr
        The indices of the block along x, y and z, as many as the grid has, and its extents.
    """
    size = options.panel_size
    if size is None or len(blocks) < 2 or any(constant(extent) == 1 for extent in grid[:2]):
        return None  # there is nothing beside a block
    x, y, *rest = blocks
    width, height, *_ = grid
    number = y * width + x
    if options.panel_order == "column":
        y, x = _in_panels(number, height, width, size)
    else:
        x, y = _in_panels(number, width, height, size, turns=options.panel_order != "strip")
    return [x, y, *rest]


def _in_panels(
    number: Any, width: Any, height: Any, panel_size: int, turns: bool = True
) -> tuple[Any, Any]:
    """Column and row of the block that starts as a number: panels of some rows each.

    Where it `turns`, every second panel is gone through backwards.
    """
    size = width * panel_size
    panel, offset = tirx.floordiv(number, size), tirx.floormod(number, size)
    rows = tirx.min(panel_size, height - panel * panel_size)
    column = tirx.floordiv(offset, rows)
    if turns:
        is_backward = tirx.floormod(panel, 2) == 1
        column = tirx.Select(is_backward, width - 1 - column, column)
    return column, panel * panel_size + tirx.floormod(offset, rows)
