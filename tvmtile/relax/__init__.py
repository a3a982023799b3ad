"""Tile kernels in models of Relax."""

from tvmtile.relax.use_tile_kernels import Choice, UseTileKernels

__all__ = ["Choice", "UseTileKernels"]
