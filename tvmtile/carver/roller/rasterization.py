"""The order in which the blocks of a grid run, as a hint says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rasterization:
    """An order of blocks."""

    panel_width: int = 1
    """Rows or columns of blocks that run together."""


class NoRasterization(Rasterization):
    """Row by row."""


class Rasterization2DRow(Rasterization):
    """Panels of rows, which `T.use_swizzle(panel_width)` asks for."""


class Rasterization2DColumn(Rasterization):
    """Panels of columns."""
