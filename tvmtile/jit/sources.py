"""Which of tvmtile's modules make a kernel, and their code as far as it decides what they make.

For a kind of target these are its passes, its lowerings, what builds a program, and all that they
import, in functions too. That is read from their text, so that no list has to be kept. Comments,
docstrings and the lines that code stands on decide nothing.
"""

from __future__ import annotations

import ast
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

from tvmtile import _loading
from tvmtile.cache import current_store, digest

PACKAGE = Path(__file__).parents[1]
_KIND = "sources"
_ROOTS = ("tvmtile.jit.build", "tvmtile.tileop")
_INDEXES = (
    *("tvmtile", "tvmtile._plugin", "tvmtile.passes", "tvmtile.tileop.lowerings"),
    "tvmtile.jit.backends",
)
"""They take part, but not all that they import: every target, or who asks, has its own part of it."""
_RUNNER = "tvmtile.emulator"
"""It runs what was compiled."""


def sources(directory: str | None = None) -> Iterator[os.DirEntry[str]]:
    """By names alone, without paths: this is asked at each compilation."""
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

    paths = _paths()
    with _without_collections():
        texts = {name: _text(path.read_bytes()) for name, path in paths.items()}
    left = {*_ROOTS, *(step.__module__ for step in (*CHECKS, *LOWERING[kind]))}
    left |= {name for name, text in texts.items() if kind in text.lowers}
    found: set[str] = set()
    while left:
        name = left.pop()
        found.add(name)
        if name not in _INDEXES:
            imported = {
                next(filter(texts.__contains__, names), _RUNNER) for names in texts[name].imports
            }
            left |= {other for other in imported if not other.startswith(_RUNNER)} - found
    return {name: texts[name] for name in sorted(found)}


def _paths() -> dict[str, Path]:
    """The file of each module."""
    paths = {}
    for path in map(Path, sources()):
        names = path.relative_to(PACKAGE.parent).with_suffix("").parts
        paths[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return paths


class _Text:
    """What the text of a module says."""

    def __init__(self, text: bytes) -> None:
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        self.imports = {names for node in nodes for names in _imported(node)}
        """What it imports: names of which the first that is a module is meant."""
        self.lowers = {kind for node in nodes for kind in _lowered(node)}
        """The kinds of target that it has lowerings for."""
        for node in nodes:
            if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
        self.code = digest(f"{sys.version_info[:2]}", ast.dump(tree))
        """Equal where the code is."""


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def _text(text: bytes) -> _Text:
    return _Text(text)


def _imported(node: ast.AST) -> Iterator[tuple[str, ...]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name,) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.module is not None, "tvmtile's imports are absolute"
        yield from ((f"{node.module}.{alias.name}", node.module) for alias in node.names)


def _lowered(node: ast.AST) -> Iterator[str]:
    """The kinds in `target=` of a call of `lowering`."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "lowering"
    ):
        given = (word.value for word in node.keywords if word.arg == "target")
        constants = (part for value in given for part in ast.walk(value))
        yield from (str(part.value) for part in constants if isinstance(part, ast.Constant))


@contextmanager
def _without_collections() -> Iterator[None]:
    """The nodes of a text live as long as the text: the garbage collector would look at all of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
