"""What a tile program was compiled to, apart from the kernel that calls it: it can be kept on disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tvm
from tvm.target import Target

from tvmtile._tvm import load_device_module, load_host_module, packed_imports
from tvmtile.cache import scratch_file
from tvmtile.errors import Caught, SourceLocation
from tvmtile.jit.launches import KernelInterface
from tvmtile.target import runs_here

if TYPE_CHECKING:
    from tvmtile.jit.cuda import Binary

# LLVM ends the process where a file can't be written, so that the text is taken in memory.
_HOST = "host.ll"


@dataclass(frozen=True, eq=False)
class Artifact:
    """A compiled tile program."""

    name: str
    """The program's, which is that of the function to call."""
    target: Target
    """What it was compiled for."""
    module: Any
    """The host's part, which imports a GPU's part where this machine has the runtime for it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The text that was generated for a GPU; a Metal program has one for each kernel."""
    kernels: Mapping[str, KernelInterface] = field(default_factory=dict)
    """Of a Metal program that torch or the emulator runs, what each kernel is launched with."""
    written: tuple[int, ...] = ()
    """The positions of the parameters whose memory it may write."""
    warnings: tuple[Caught, ...] = ()
    """What was said while it was compiled, and of which lines."""
    binary: Binary | None = None
    """What NVRTC made of it, where TVM has asked for that."""
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
        """It as facts, which JSON can hold, and files."""
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
