"""Which compilers are at work: another one makes other code of the same program."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import tvm
import tvm_ffi

import tvmtile
from tvmtile.cache import current_store, digest
from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import import_optional
from tvmtile.jit.sources import all_sources, code_of

_LIBRARIES = (Path(tvm.__file__).parent / "lib", Path(tvm_ffi.__file__).parent / "lib")
_KIND = "sources"


def versions() -> tuple[str, str, str, str]:
    """tvmtile, by its version and all of its files, and TVM: alike in processes that compile alike."""
    return tvmtile.__version__, all_sources(), tvm.__version__, tvm_ffi.__version__


@lru_cache(maxsize=8)
def toolchain(kind: str) -> tuple[str, ...]:
    """tvmtile, by its code for a kind of target, and TVM, by its versions and its libraries."""
    listed = (path for directory in _LIBRARIES for path in sorted(directory.glob("*")))
    libraries = contents_of(filter(Path.is_file, listed))
    return code_of(kind), tvm.__version__, tvm_ffi.__version__, libraries


def contents_of(files: Iterable[Path]) -> str:
    """The digest of files that are too large to be read each time.

    It is kept under their names, sizes and dates, so that they are read once. These alone differ from
    one environment to the next that the same files are installed in.
    """
    files = list(files)
    store, name = current_store(), digest(*map(_status, files))
    entry = store.get(_KIND, name) if store is not None else None
    if entry is not None:
        return str(entry.facts["contents"])
    contents = digest(*(part for path in files for part in (path.name, path.read_bytes())))
    if store is not None:
        names = f"{files[0].name} and {len(files) - 1} more"
        store.put(_KIND, name, {"name": names, "contents": contents}, {})
    return contents


def _status(path: Path) -> str:
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"


@lru_cache(maxsize=1)
def cuda_compiler() -> list[str]:
    """NVRTC, where there is a GPU: elsewhere programs are compiled to CUDA's source alone."""
    if not has_gpu():
        return []
    from tvmtile.jit.cuda.nvrtc import identity

    return identity(import_optional("cuda.bindings.nvrtc", "cuda", "compiling for CUDA"))
