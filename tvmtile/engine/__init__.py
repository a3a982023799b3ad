"""Names of TileLang's package `engine`."""

from __future__ import annotations

from tvmtile.engine.callback import register_cuda_postproc, register_cuda_postproc_callback
from tvmtile.jit.lowering import lower

__all__ = ["lower", "register_cuda_postproc", "register_cuda_postproc_callback"]
