"""Names of TileLang's package `contrib` that kernels import."""

from tvmtile.contrib import cc, nvcc

__all__ = ["cc", "nvcc"]
