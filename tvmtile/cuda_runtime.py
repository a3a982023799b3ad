"""TVM's CUDA runtime, CUDA's libraries and headers: where they are, how they load without a toolkit."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import tvm
import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

from tvmtile.errors import MissingDependency, packages_of

__all__ = ["has_gpu", "include_directories", "load_beside_others"]

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


@lru_cache(maxsize=1)
def include_directories() -> tuple[Path, ...]:
    """The directories with CUDA's headers: those of the extra `cuda`, or of a toolkit.

    `cuda_fp16.h` and `nv/target` are found in them; they may come from different wheels.

    Raises
    ------
    MissingDependency
        If no place has both.
    """
    for root in _roots():
        found = tuple(d for d in (root, root / "cccl") if d.is_dir())
        if all(any((d / name).is_file() for d in found) for name in ("cuda_fp16.h", "nv/target")):
            return found
    raise MissingDependency(
        "compiling for CUDA needs CUDA's headers, which are not installed",
        help=f"pip install {packages_of('cuda')}, or set CUDA_PATH to a CUDA toolkit",
    )


def _roots() -> Iterator[Path]:
    """The directories that may have headers, most specific first."""
    named = (os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME"))
    yield from (Path(path) / "include" for path in named if path)
    wheels = importlib.util.find_spec("nvidia")
    for path in (wheels.submodule_search_locations or ()) if wheels is not None else ():
        yield from sorted(Path(path).glob("cu*/include"), reverse=True)
    nvcc = shutil.which("nvcc")
    toolkits = [Path(nvcc).resolve().parent.parent] if nvcc else []
    for toolkit in (*toolkits, Path("/usr/local/cuda")):
        yield from (toolkit / "include", *sorted(toolkit.glob("targets/*/include")))
