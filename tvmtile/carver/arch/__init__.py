"""What a model of a device needs to know, as tables; TileLang's names.

A GPU that is in this machine answers for its number of cores and its name; the rest, and a GPU that is
elsewhere, is of the table of its architecture.
"""

from __future__ import annotations

from tvmtile.carver.arch.device import CDNA, CPU, CUDA, METAL, TileDevice
from tvmtile.carver.arch.inference import auto_infer_current_arch, get_arch

__all__ = [
    "CDNA",
    "CPU",
    "CUDA",
    "METAL",
    "TileDevice",
    "auto_infer_current_arch",
    "get_arch",
    "is_cpu_arch",
    "is_cuda_arch",
    "is_metal_arch",
]


def is_cuda_arch(arch: TileDevice) -> bool:
    """Tell whether a device is an NVIDIA GPU."""
    return arch.platform == "CUDA"


def is_metal_arch(arch: TileDevice) -> bool:
    """Tell whether a device is an Apple GPU."""
    return arch.platform == "METAL"


def is_cpu_arch(arch: TileDevice) -> bool:
    """Tell whether a device is a CPU."""
    return arch.platform == "CPU"
