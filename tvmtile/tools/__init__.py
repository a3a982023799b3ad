"""Looking at layouts and programs, under the names that TileLang's kernels import."""

from tvmtile.layout.plot import plot_layout
from tvmtile.tools.analyzer import AnalysisResult, Analyzer

__all__ = ["AnalysisResult", "Analyzer", "plot_layout"]
