"""Which compilers are at work: another one makes other code of the same program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import tvm
import tvm_ffi

import tvmtile
from tvmtile.cache import digest
from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import import_optional

_PACKAGE = Path(tvmtile.__file__).parent
_LIBRARIES = (Path(tvm.__file__).parent / "lib", Path(tvm_ffi.__file__).parent / "lib")


@lru_cache(maxsize=1)
def toolchain() -> tuple[str, ...]:
    """tvmtile, by its version and its sources, and TVM, by its versions and its libraries."""
    sources = (part for file in _sources() for part in (file.name, Path(file).read_bytes()))
    libraries = (path for directory in _LIBRARIES for path in sorted(directory.glob("*")))
    return (
        tvmtile.__version__,
        digest(*sources),
        tvm.__version__,
        tvm_ffi.__version__,
        *(f"{path.name} {_identity(path)}" for path in libraries),
    )


def is_unchanged() -> bool:
    """Tell whether the compiler's sources are those that this process runs.

    An edit while it runs would have the new sources' name on what the old ones compiled.
    """
    return all(file.stat().st_mtime < tvmtile.STARTED for file in _sources())


def _sources(directory: str | None = None) -> Iterator[os.DirEntry[str]]:
    """By names alone, without paths: this is asked at each compilation."""
    with os.scandir(directory or _PACKAGE) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name.endswith(".py"):
            yield entry
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry.path)


def _identity(path: Path) -> str:
    """A file too large to read each time, by its size and its date."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


@lru_cache(maxsize=1)
def cuda_compiler() -> list[str]:
    """NVRTC, where there is a GPU: elsewhere programs are compiled to CUDA's source alone."""
    if not has_gpu():
        return []
    from tvmtile.jit.cuda.nvrtc import identity

    return identity(import_optional("cuda.bindings.nvrtc", "cuda", "compiling for CUDA"))
