"""Which compilers are at work: another one makes other code of the same program."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
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
    """What files that are too large to be read each time hold: a digest.

    A library says by its build ID what it is. The contents of others are kept under what changes when
    they do, which is not their dates: those are set by whoever installs them.
    """
    return digest(*(part for path in files for part in (path.name, _build_id(path) or _read(path))))


def _read(path: Path) -> str:
    store, name = current_store(), digest(_status(path))
    kept = None if store is None else store.load(_KIND, name, lambda e: str(e.facts["contents"]))
    if kept is not None:
        return kept
    contents = digest(path.read_bytes())
    if store is not None:
        store.put(_KIND, name, {"name": path.name, "contents": contents}, {})
    return contents


def _status(path: Path) -> str:
    """The system sets the time of the last change, and gives a new file another number."""
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


_PROGRAM_HEADER = struct.Struct("<IIQQQQ")
_NOTE = struct.Struct("<III")
_IS_NOTE, _IS_BUILD_ID = 4, 3


def _build_id(path: Path) -> bytes | None:
    """The build ID of an ELF library of 64 bits, by which a linker names what it has made."""
    with path.open("rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
            return None
        (start,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(start)
        table = file.read(size * count)
        for place in range(0, len(table) - _PROGRAM_HEADER.size, size):
            kind, _, offset, _, _, length = _PROGRAM_HEADER.unpack_from(table, place)
            if kind == _IS_NOTE:
                file.seek(offset)
                for kind, text in _notes(file.read(length)):
                    if kind == _IS_BUILD_ID:
                        return text
    return None


def _notes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The kind and the text of GNU's notes; all fields are of words of four bytes."""
    place = 0
    while place + _NOTE.size <= len(data):
        name_size, size, kind = _NOTE.unpack_from(data, place)
        name = place + _NOTE.size
        text = name + -(-name_size // 4) * 4
        if data[name : name + name_size] == b"GNU\0":
            yield kind, data[text : text + size]
        place = text + -(-size // 4) * 4


@lru_cache(maxsize=1)
def cuda_compiler() -> list[str]:
    """NVRTC, where there is a GPU: elsewhere programs are compiled to CUDA's source alone."""
    if not has_gpu():
        return []
    from tvmtile.jit.cuda.nvrtc import identity

    return identity(import_optional("cuda.bindings.nvrtc", "cuda", "compiling for CUDA"))
