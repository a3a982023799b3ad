"""TVM's CUDA runtime: whether it is there, and how it comes to load without a toolkit."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from pathlib import Path

import tvm
import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

__all__ = ["has_gpu"]


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
    with contextlib.suppress(pathfinder.DynamicLibNotFoundError, OSError, RuntimeError):
        pathfinder.load_nvidia_dynamic_lib("cudart")
        directory = Path(tvm.__file__).parent / "lib"
        load_lib_ctypes(
            package="tvm",
            target_name="tvm_runtime_cuda",
            extra_lib_paths=[directory],
            mode="RTLD_LOCAL",
        )
