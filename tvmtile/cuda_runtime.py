"""TVM's CUDA runtime and CUDA's libraries: whether they are there, how they load without a toolkit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import tvm
import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

__all__ = ["has_gpu", "load_beside_others"]

_WHEELS = {"libcudart.so.13": "nvidia-cuda-runtime", "libnvrtc.so.13": "nvidia-cuda-nvrtc"}
"""Where each library is: the wheel that the extra `cuda` brings."""


@lru_cache(maxsize=1)
def has_gpu() -> bool:
    """Tell whether kernels can be run here: an NVIDIA GPU, its driver, and TVM's CUDA runtime."""
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is None:
        _load_runtime()
    return bool(tvm.cuda(0).exist)


def _load_runtime() -> None:
    """Load TVM's CUDA runtime with the `libcudart` of the extra `cuda`.

    TVM loads it when it is imported, if the system's loader finds `libcudart`; a wheel's is not where
    it looks. Once a library is loaded, others find it by name.
    """
    try:
        from cuda import pathfinder
    except ImportError:
        return
    load_beside_others("libcudart.so.13")
    with contextlib.suppress(pathfinder.DynamicLibNotFoundError, OSError, RuntimeError):
        pathfinder.load_nvidia_dynamic_lib("cudart")
        directory = Path(tvm.__file__).parent / "lib"
        load_lib_ctypes(
            package="tvm",
            target_name="tvm_runtime_cuda",
            extra_lib_paths=[directory],
            mode="RTLD_LOCAL",
        )


def load_beside_others(library: str) -> None:
    """Load a library of the extra `cuda`, if it is installed and the process has none of this version.

    `cuda.pathfinder`, and with it `cuda.bindings`, takes what it finds loaded, the newest first: with a
    torch that is built for CUDA 12, torch's, which TVM's runtime and the headers of CUDA 13 do not go
    with. Both versions can be loaded: their symbols have versions.

    Parameters
    ----------
    library : str
        "libcudart.so.13" or "libnvrtc.so.13".
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
        return
    with contextlib.suppress(metadata.PackageNotFoundError, OSError):
        files = metadata.files(_WHEELS[library]) or ()
        for path in (file.locate() for file in files if file.name == library):
            ctypes.CDLL(str(path))
