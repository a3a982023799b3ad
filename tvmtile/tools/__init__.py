"""Looking at layouts, under the name that TileLang's kernels import it by."""

from tvmtile.layout.plot import plot_layout

__all__ = ["plot_layout"]
