"""Proposals, under the names that TileLang's kernels import them by."""

from tvmtile.carver.roller.hint import Hint
from tvmtile.carver.roller.rasterization import (
    NoRasterization,
    Rasterization,
    Rasterization2DColumn,
    Rasterization2DRow,
)

__all__ = [
    "Hint",
    "NoRasterization",
    "Rasterization",
    "Rasterization2DColumn",
    "Rasterization2DRow",
]
