"""The order in which the blocks of a grid are visited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile.ir.operands import constant
from tvmtile.ir.options import KernelOptions


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
