"""Modules of torch by tile kernels: `tvmtile.torch.replace(model, *inputs)`."""

from tvmtile.torch.replace import replace
from tvmtile.torch.report import Entry, Report

__all__ = ["Entry", "Report", "replace"]
