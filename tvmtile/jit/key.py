"""Keys of the cache: all that decides the code of a kernel, tvmtile's own modules among it.

Two compilations with the same key make the same code: the key holds the program, the target, the
options and the environment variables that passes or compilers read, and the compilers themselves. A
callback, an instrument or a lowering of the user's has no name that says what it does: where there is
one, there is no key, and nothing is kept.

The user's lines are no part of what a program computes. A key with them is for code that names a line,
and for what was compiled with a warning.

Of tvmtile, the code that makes kernels for a kind of target counts: its passes, its lowerings, the
modules that build a program, and all that they import, in functions too. That is read from their text,
so that no list has to be kept. Comments, docstrings and the lines that code stands on decide nothing.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import pickle
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvmtile import _loading
from tvmtile._version import __version__
from tvmtile.cache import current_store, digest
from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import import_optional
from tvmtile.ir.operators import all_operators
from tvmtile.jit.ir_data import Node, to_data
from tvmtile.tileop.registry import registered_lowerings

PACKAGE = Path(__file__).parents[1]
_KIND = "sources"
_ROOTS = ("tvmtile.jit.build", "tvmtile.tileop")
_INDEXES = (
    *("tvmtile", "tvmtile._plugin", "tvmtile.passes", "tvmtile.tileop.lowerings"),
    "tvmtile.jit.backends",
)
"""Modules that take part, but not with all that they import: every target has its own part."""
_RUNNER = "tvmtile.emulator"
"""The package that runs what was compiled."""


def sources(directory: str | None = None) -> Iterator[os.DirEntry[str]]:
    """The sources, by names alone, without paths: this is asked at each compilation."""
    with os.scandir(directory or PACKAGE) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name.endswith(".py"):
            yield entry
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from sources(entry.path)


def is_unchanged() -> bool:
    """Tell whether the compiler's sources are those that this process runs.

    An edit while it runs would have the new sources' name on what the old ones compiled.
    """
    return all(file.stat().st_mtime < _loading.STARTED for file in sources())


@lru_cache(maxsize=1)
def all_sources() -> str:
    """The digest of all of tvmtile's files, as they are."""
    return digest(*(part for file in sources() for part in (file.name, Path(file).read_bytes())))


@lru_cache(maxsize=8)
def code_of(kind: str) -> str:
    """The digest of the code that makes kernels for a kind of target.

    It is kept under the digest of the files: to read them takes a hundredth of a second, to parse them
    a second.
    """
    store, name = current_store(), digest(all_sources(), kind)
    kept = None if store is None else store.load(_KIND, name, lambda e: str(e.facts["code"]))
    if kept is not None:
        return kept
    code = digest(
        *(part for module, text in _modules(kind).items() for part in (module, text.code))
    )
    if store is not None and is_unchanged():
        store.put(_KIND, name, {"name": "tvmtile", "target": kind, "code": code}, {})
    return code


def modules(kind: str) -> list[str]:
    """The names of the modules that make kernels for a kind of target."""
    return list(_modules(kind))


def _modules(kind: str) -> dict[str, _Text]:
    from tvmtile.pipeline import CHECKS, LOWERING

    texts = {name: path.read_bytes() for name, path in _paths().items()}
    left = {*_ROOTS, *(step.__module__ for step in (*CHECKS, *LOWERING[kind]))}
    found: dict[str, _Text] = {}
    with without_collections():
        lowering = (name for name, text in texts.items() if b"lowering(" in text)
        left |= {name for name in lowering if kind in _text(texts[name]).lowers}
        while left:
            name = left.pop()
            found[name] = text = _text(texts[name])
            if name not in _INDEXES:
                imported = {
                    next(filter(texts.__contains__, names), _RUNNER) for names in text.imports
                }
                left |= {other for other in imported if not other.startswith(_RUNNER)}
                left -= found.keys()
    return dict(sorted(found.items()))


def _paths() -> dict[str, Path]:
    """The file of each module."""
    paths = {}
    for path in map(Path, sources()):
        names = path.relative_to(PACKAGE.parent).with_suffix("").parts
        paths[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return paths


class _Text:
    """The meaning of a module's text."""

    def __init__(self, text: bytes) -> None:
        tree = ast.parse(text)
        self.imports: set[tuple[str, ...]] = set()
        """Its imports: names of which the first that is a module is meant."""
        self.lowers: set[str] = set()
        """The kinds of target that it has lowerings for."""
        for_types: set[ast.AST] = set()
        for node in ast.walk(tree):
            if node in for_types:  # no import that runs
                continue
            if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
                for_types.update(part for stmt in node.body for part in ast.walk(stmt))
            elif isinstance(node, ast.Import):
                self.imports.update((alias.name,) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None, "tvmtile's imports are absolute"
                self.imports.update((f"{node.module}.{a.name}", node.module) for a in node.names)
            elif isinstance(node, ast.Call):
                self.lowers.update(_lowered(node))
            elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
        self.code = digest(f"{sys.version_info[:2]}", ast.dump(tree))
        """Equal where the code is."""


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def _text(text: bytes) -> _Text:
    return _Text(text)


def _lowered(call: ast.Call) -> Iterator[str]:
    """The kinds in `target=` of a call of `lowering`."""
    if isinstance(call.func, ast.Name) and call.func.id == "lowering":
        given = (word.value for word in call.keywords if word.arg == "target")
        constants = (part for value in given for part in ast.walk(value))
        yield from (str(part.value) for part in constants if isinstance(part, ast.Constant))


@contextmanager
def without_collections() -> Iterator[None]:
    """Leave the garbage collector off: it would look at all that lives, time after time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_LIBRARIES = (Path(tvm.__file__).parent / "lib", Path(tvm_ffi.__file__).parent / "lib")


def versions() -> tuple[str, str, str, str]:
    """tvmtile, by its version and all of its files, and TVM: alike in processes that compile alike."""
    return __version__, all_sources(), tvm.__version__, tvm_ffi.__version__


@lru_cache(maxsize=8)
def toolchain(kind: str) -> tuple[str, ...]:
    """tvmtile, by its code for a kind of target, and TVM, by its versions and its libraries."""
    listed = (path for directory in _LIBRARIES for path in sorted(directory.glob("*")))
    libraries = contents_of(filter(Path.is_file, listed))
    return code_of(kind), tvm.__version__, tvm_ffi.__version__, libraries


def contents_of(files: Iterable[Path]) -> str:
    """A digest of files that are too large to be read each time.

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
    from tvmtile.jit.cuda import identity

    return identity(import_optional("cuda.bindings.nvrtc", "cuda", "compiling for CUDA"))


_LINES = ("ir.Span", "ir.SequentialSpan", "ir.SourceName")
_VERIFIER = "Verifier"
_OPERATIONS = ("prim.", "tirx.", "tvmtile.")
"""The beginnings of names of operations: TVM's, and ours."""
# These change what is printed, or how a kernel runs.
_HARMLESS = (
    "TVM_BACKTRACE",
    "TVM_BIND_THREADS",
    "TVM_LOG_DEBUG",
    "TVM_NUM_THREADS",
    "TVMTILE_CACHE_DIR",
    "TVMTILE_CACHE_SIZE",
    "TVMTILE_DISABLE_CACHE",
    "TVMTILE_TARGET",  # it names the target, which is in the key
)
_CALLBACK = "tvm_callback_cuda_postproc"


@dataclass(frozen=True)
class Key:
    """The names under which the code of a program is kept."""

    code: str
    """For code that says nothing of the user's lines."""
    with_lines: str
    """For code that does."""
    files: tuple[str, ...]
    """The user's files that the program is written in."""


class _NoKey(Exception):
    """The code depends on what has no name."""


def key_of(
    func: tirx.PrimFunc, target: Target, backend: str, options: Mapping[str, object]
) -> Key | None:
    """The key of a compilation in the pass context in force, or None where it can't have one.

    The target includes its host; the options are of passes, beside those of the pass context.
    """
    if target.kind.name == "metal" and backend == "tvm_ffi":
        return None  # of its module only TVM on a Mac knows the bytes
    try:
        _refuse_unknown_code(nodes := to_data(func))
        surroundings = json.dumps(
            [
                *toolchain(target.kind.name),
                str(target),
                backend,
                dict(options),
                _pass_context(),
                _environment(),
                cuda_compiler() if target.kind.name == "cuda" else None,
            ],
            sort_keys=True,
        )
        code, with_lines = _as_text(_without_lines(nodes)), _as_text(nodes)
    except (_NoKey, pickle.PicklingError, TypeError):
        return None
    return Key(
        digest(surroundings, code),
        digest(surroundings, with_lines),
        tuple(parts[0][0] for kind, parts in nodes if kind == "ir.SourceName"),
    )


def _pass_context() -> list[object]:
    context = tvm.transform.PassContext.current()
    instruments = [str(getattr(item, "name", "")) for item in context.instruments or ()]
    if any(name != _VERIFIER for name in instruments):
        raise _NoKey("an instrument wants to see the passes")
    config = {str(name): value for name, value in context.config.items()}
    passes = [[str(p) for p in ps] for ps in (context.required_pass, context.disabled_pass)]
    return [int(context.opt_level), config, *passes, bool(instruments)]


def _environment() -> dict[str, str]:
    """Variables that TVM's passes and code generators may read; of those unknown, all."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("TVM_", "TVMTILE_")) and name not in _HARMLESS
    }


def _refuse_unknown_code(nodes: list[Node]) -> None:
    """Refuse where the user's functions take part in the compilation."""
    if tvm_ffi.get_global_func(_CALLBACK, allow_missing=True) is not None:
        raise _NoKey(_CALLBACK)
    if os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc") != "nvrtc":
        raise _NoKey("another compiler")
    for kind, parts in nodes:
        if kind == "ir.Op" and not parts[0][0].startswith(_OPERATIONS):
            raise _NoKey("an operation of the user's")
    if not all(str(item.__module__).startswith("tvmtile.") for item in _implementations()):
        raise _NoKey("an operator or a lowering of the user's")


def _implementations() -> Iterator[Any]:
    yield from all_operators().values()
    for lowering in registered_lowerings():
        yield lowering.code


def _without_lines(nodes: list[Node]) -> list[Node]:
    """The nodes of a program, with None for each line."""
    numbers: dict[int, int] = {}
    kept: list[Node] = []
    for index, (kind, parts) in enumerate(nodes):
        if kind not in _LINES:
            numbers[index] = len(kept)
            kept.append((kind, [p if isinstance(p, tuple) else numbers.get(p) for p in parts]))
    return kept


def _as_text(value: object) -> str:
    """A text that no other value has; a number's says its type and all of its digits."""
    if isinstance(value, list | tuple):
        return f"({','.join(map(_as_text, value))})"
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    raise _NoKey(f"a {type(value).__name__} in a program")
