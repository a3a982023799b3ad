"""Tile operators: each module holds one, from its user-facing function to its lowerings.

Importing this package registers them all, with their lowerings.
"""

from tvmtile.tileop import copy, fill, gemm, hints
from tvmtile.tileop.gemm import cpu as _gemm_cpu  # noqa: F401 - its lowerings register themselves

__all__ = ["copy", "fill", "gemm", "hints"]
