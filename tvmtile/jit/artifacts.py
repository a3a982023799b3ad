"""Where a compiled program comes from: this process has it, the cache has it, or it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from tvm import tirx
from tvm.target import Target

from tvmtile.cache import Store, current_store
from tvmtile.compat.transform import with_effect
from tvmtile.errors import warn, warnings_on_success
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.key import Key, key_of
from tvmtile.jit.sources import is_unchanged
from tvmtile.locks import Lock

_KIND = "kernels"
_made: WeakValueDictionary[str, Artifact] = WeakValueDictionary()
_locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()


def artifact_of(
    func: tirx.PrimFunc, target: Target, backend: str, config: Mapping[str, object]
) -> Artifact:
    """The compiled program; its warnings are issued in any case.

    Raises
    ------
    TileError
        For what is wrong with the program on this target.
    """
    store = current_store()
    key = None if store is None else key_of(func, target, backend, with_effect(config))
    if store is None or key is None:
        return _build(func, target, backend, config)
    # Threads that compile the same program wait for the first.
    with _locks.setdefault(key.with_lines, Lock()):
        artifact = _found(store, key, target)
        if artifact is None:
            artifact = _build(func, target, backend, config)
            _keep(store, key, artifact)
            return artifact
    for text, where in artifact.warnings:
        warn(text, where)
    return artifact


def _build(
    func: tirx.PrimFunc, target: Target, backend: str, config: Mapping[str, object]
) -> Artifact:
    from tvmtile.jit.build import build_artifact

    with warnings_on_success() as said:
        artifact = build_artifact(func, target, backend, config)
    return replace(artifact, warnings=tuple(said))


def _found(store: Store, key: Key, target: Target) -> Artifact | None:
    for name in (key.code, key.with_lines):
        artifact = _made.get(name)
        if artifact is not None:
            return artifact
        artifact = store.load(
            _KIND, name, lambda entry: Artifact.loaded(entry.facts, entry.files, target)
        )
        if artifact is not None:
            _made[name] = artifact
            return artifact
    return None


def _keep(store: Store, key: Key, artifact: Artifact) -> None:
    name = name_in_cache(artifact, key)
    if name is not None:
        _made[name] = artifact
        store.put(_KIND, name, *artifact.saved())


def name_in_cache(artifact: Artifact, key: Key) -> str | None:
    """Which of its two names a program that was compiled here is kept under; None where it is not."""
    if not is_unchanged() or _reads_files(artifact):
        return None
    return key.with_lines if _names_lines(artifact, key) else key.code


def adopt(name: str, facts: Mapping[str, object], files: Mapping[str, bytes]) -> None:
    """Keep what another process compiled."""
    store = current_store()
    if store is not None:
        store.put(_KIND, name, facts, files)


def _reads_files(artifact: Artifact) -> bool:
    """Tell whether NVRTC has compiled files with it that may change."""
    if artifact.binary is None:
        return False
    from tvmtile.jit.cuda.headers import has_foreign_headers

    return any(map(has_foreign_headers, artifact.sources.values()))


def _names_lines(artifact: Artifact, key: Key) -> bool:
    """Tell whether the compiler spoke of the user's lines, in a warning or in the code."""
    texts = (artifact.host_source, *artifact.sources.values())
    names = {Path(file).name for file in key.files}
    return bool(artifact.warnings) or any(name in text for name in names for text in texts)
