"""How TVM's builds for CUDA come to be compiled by `tvmtile.jit.cuda.nvrtc`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm.target import Target

from tvmtile.jit.cuda.nvrtc import Binary, compile_source
from tvmtile.locks import Lock

_CALLBACK = "tvm_callback_cuda_compile"


@dataclass
class Compilation:
    """One build of a tile program."""

    arch: str
    """What it is for, as "sm_90a"."""
    binary: Binary | None = None
    """What NVRTC made. None until TVM asks, which it does only where it can load the result, and where
    nvcc compiles.
    """


_current: ContextVar[Compilation | None] = ContextVar("tvmtile_compilation", default=None)


@contextmanager
def compiling(target: Target) -> Iterator[Compilation]:
    """Compile what TVM builds in this context as tile programs.

    TVM's own callback looks for headers in a toolkit only, and lets NVRTC read a second's worth of
    them. It is put back after the last of our builds, and in the meantime compiles what other threads
    build; and where `TVM_CUDA_COMPILE_MODE=nvcc` asks for it, all.
    """
    compilation = Compilation(str(target.attrs["arch"]))
    token = _current.set(compilation)
    try:
        with _BUILDS:
            yield compilation
    finally:
        _current.reset(token)


class _Builds:
    """Keeps our callback in TVM's place while programs are built, in any number of threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0

    def __enter__(self) -> None:
        import tvm.support.nvcc  # noqa: F401 - registers the callback that ours stands before

        with self._lock:
            if self._count == 0:
                self._theirs = tvm_ffi.get_global_func(_CALLBACK)
                tvm_ffi.register_global_func(_CALLBACK, self._compile, override=True)
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                tvm_ffi.register_global_func(_CALLBACK, self._theirs, override=True)

    def _compile(self, source: str) -> Any:
        compilation = _current.get()
        if compilation is None or os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc") != "nvrtc":
            return self._theirs(source)
        compilation.binary = compile_source(source, compilation.arch)
        return compilation.binary.cubin


_BUILDS = _Builds()
