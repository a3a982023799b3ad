"""A compiled program, without the kernel that calls it, and its way from the cache or the compiler.

This process has it, the cache has it, or it is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import tvm
from tvm.target import Target

from tvmtile._tvm import load_device_module, load_host_module, packed_imports
from tvmtile.cache import Store, current_store, scratch_file
from tvmtile.errors import Caught, SourceLocation, warn, warnings_on_success
from tvmtile.jit.key import Key, is_unchanged, without_collections
from tvmtile.jit.launches import KernelInterface
from tvmtile.locks import Lock
from tvmtile.target import runs_here

if TYPE_CHECKING:
    from tvmtile.jit.compiler import Request
    from tvmtile.jit.cuda import Binary


# LLVM ends the process where a file can't be written, so that the text is taken in memory.
_HOST = "host.ll"


@dataclass(frozen=True, eq=False)
class Artifact:
    """A compiled tile program."""

    name: str
    """The program's, which is that of the function to call."""
    target: Target
    """The target that it was compiled for."""
    module: Any
    """The host's part, which imports a GPU's part where this machine has the runtime for it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The text that was generated for a GPU; a Metal program has one for each kernel."""
    kernels: Mapping[str, KernelInterface] = field(default_factory=dict)
    """Of a Metal program that torch or the emulator runs, what each kernel is launched with."""
    written: tuple[int, ...] = ()
    """The positions of the parameters whose memory it may write."""
    warnings: tuple[Caught, ...] = ()
    """The warnings while it was compiled, with their lines."""
    binary: Binary | None = None
    """The machine code, where TVM has asked NVRTC for that."""
    is_whole: bool = True
    """Whether the module has all parts, so that it can be exported."""

    @cached_property
    def host_source(self) -> str:
        """The host's part in LLVM's intermediate language.

        TVM asks for all functions to be exported from a DLL. Where nothing outside of the module sees
        one, LLVM does not read that again.
        """
        text = str(self.module.inspect_source("ll"))
        return re.sub(
            r"^define (private|internal) dllexport ", r"define \1 ", text, flags=re.MULTILINE
        )

    def saved(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Its facts, which JSON can hold, and files."""
        files = {_HOST: self.host_source.encode()}
        devices = packed_imports(self.module) if self.module.imports else []
        if any(load_device_module(kind) is None for kind, _ in devices):
            devices = []  # there is no GPU to run it: the text is what can be looked at
        files.update({f"device{index}": data for index, (_, data) in enumerate(devices)})
        facts = {
            "name": self.name,
            "target": str(self.target),
            "sources": dict(self.sources),
            "kernels": {name: asdict(kernel) for name, kernel in self.kernels.items()},
            "written": self.written,
            "warnings": [[text, where and asdict(where)] for text, where in self.warnings],
            "devices": [kind for kind, _ in devices],
            "is_whole": len(devices) == len(self.module.imports),
        }
        return facts, files

    @classmethod
    def loaded(
        cls, facts: Mapping[str, Any], files: Mapping[str, bytes], target: Target
    ) -> Artifact:
        """Make it from what `saved` gave, in another process or before."""
        with scratch_file(files[_HOST], _HOST) as path:
            module = load_host_module(str(path))
        for index, kind in enumerate(facts["devices"]):
            load = load_device_module(kind)
            assert load is not None, "it was here when the entry was written; has_gpu is in its key"
            module.import_module(load(files[f"device{index}"]))
        artifact = cls(
            str(facts["name"]),
            target,
            module,
            {str(name): str(text) for name, text in dict(facts["sources"]).items()},
            {n: KernelInterface(*map(tuple, k.values())) for n, k in facts["kernels"].items()},
            tuple(map(int, facts["written"])),
            tuple((text, where and SourceLocation(**where)) for text, where in facts["warnings"]),
            is_whole=bool(facts["is_whole"]),
        )
        artifact.__dict__["host_source"] = files[_HOST].decode()  # TVM would renumber it
        if runs_here(target):  # LLVM reads the text when a function is asked for
            tvm.runtime.Executable(module)[artifact.name]
        return artifact


_KIND = "kernels"
_made: WeakValueDictionary[str, Artifact] = WeakValueDictionary()
_locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()


def artifact_of(request: Request) -> Artifact:
    """The compiled program; its warnings are issued in any case.

    Raises
    ------
    TileError
        For what is wrong with the program on this target.
    """
    store = current_store()
    key = None if store is None else request.key()
    if store is None or key is None:
        return _build(request)
    # Threads that compile the same program wait for the first.
    with _locks.setdefault(key.with_lines, Lock()):
        artifact = _found(store, key, request.target)
        if artifact is None:
            artifact = _build(request)
            _keep(store, key, artifact)
            return artifact
    for text, where in artifact.warnings:
        warn(text, where)
    return artifact


def _build(request: Request) -> Artifact:
    from tvmtile.jit.build import build_artifact

    with warnings_on_success() as said, without_collections():  # a tenth of the time
        artifact = build_artifact(request.func, request.target, request.backend, request.config)
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
    """The name, one of two, that a program compiled here is kept under; None where it is not."""
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
    from tvmtile.jit.cuda import has_foreign_headers

    return any(map(has_foreign_headers, artifact.sources.values()))


def _names_lines(artifact: Artifact, key: Key) -> bool:
    """Tell whether the compiler spoke of the user's lines, in a warning or in the code."""
    texts = (artifact.host_source, *artifact.sources.values())
    names = {Path(file).name for file in key.files}
    return bool(artifact.warnings) or any(name in text for name in names for text in texts)
