"""How TVM's builds for CUDA come to be compiled by `tvmtile.jit.cuda.nvrtc`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm.target import Target

from tvmtile.jit.cuda.nvrtc import Binary, compile_source

__all__ = ["Compilation", "compiling"]

_CALLBACK = "tvm_callback_cuda_compile"


@dataclass
class Compilation:
    """One build of a tile program.

    Attributes
    ----------
    arch : str
        What it is for, as "sm_90a".
    binary : Binary or None
        What NVRTC made. None until TVM asks, which it does only where it can load the result, and
        where nvcc compiles.
    """

    arch: str
    binary: Binary | None = None


_current: ContextVar[Compilation | None] = ContextVar("tvmtile_compilation", default=None)


@contextmanager
def compiling(target: Target) -> Iterator[Compilation]:
    """Compile what TVM builds in this context as tile programs.

    TVM's own callback looks for headers in a toolkit only, and lets NVRTC read a second's worth of
    them. It stays in use for what others build, and where `TVM_CUDA_COMPILE_MODE=nvcc` asks for it.

    Parameters
    ----------
    target : Target
        Of kind `cuda`.
    """
    _install()
    compilation = Compilation(str(target.attrs["arch"]))
    token = _current.set(compilation)
    try:
        yield compilation
    finally:
        _current.reset(token)


@lru_cache(maxsize=1)
def _install() -> None:
    import tvm.support.nvcc  # noqa: F401 - registers the callback that ours stands before

    theirs = tvm_ffi.get_global_func(_CALLBACK)

    def compile_for_tvm(source: str) -> Any:
        compilation = _current.get()
        if compilation is None or os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc") != "nvrtc":
            return theirs(source)
        compilation.binary = compile_source(source, compilation.arch)
        return compilation.binary.cubin

    tvm_ffi.register_global_func(_CALLBACK, compile_for_tvm, override=True)
