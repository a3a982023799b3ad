"""From a target to its device."""

from __future__ import annotations

import sys

from tvmtile.carver.arch.device import CPU, CUDA, METAL, TileDevice
from tvmtile.cuda_runtime import has_gpu
from tvmtile.target import TargetLike, resolve

__all__ = ["auto_infer_current_arch", "get_arch"]

_DEVICES = {"cuda": CUDA, "metal": METAL, "llvm": CPU}


def get_arch(target: TargetLike = "cuda") -> TileDevice:
    """The device of a target."""
    resolved = resolve(target)
    return _DEVICES[resolved.kind.name](resolved)


def auto_infer_current_arch() -> TileDevice:
    """The GPU of this machine, or its CPU where it has none."""
    if has_gpu():
        return CUDA("cuda")
    return METAL() if sys.platform == "darwin" else CPU()
