"""Compiling configurations in other processes, on this machine or another one.

A program goes there as plain data, and what was compiled comes back as the cache keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from tvmtile.autotuner.child import Outcome, in_child
from tvmtile.cache import disable_cache, enable_cache, is_cache_enabled
from tvmtile.cuda_runtime import has_gpu
from tvmtile.jit.artifact import adopt, name_in_cache
from tvmtile.jit.compiler import Request
from tvmtile.jit.key import versions

_PARTS = ("version of tvmtile", "source of tvmtile", "TVM", "tvm-ffi", "kind of device")
"""The common properties of machines that compile alike: the first are those of `versions`."""


@dataclass(frozen=True)
class PassOptions:
    """The pass context in force and the switch of the cache, which are a process's own."""

    opt_level: int
    config: Mapping[str, Any]
    required: tuple[str, ...]
    disabled: tuple[str, ...]
    keeps: bool

    @classmethod
    def current(cls) -> PassOptions:
        """The settings of this process."""
        context = tvm.transform.PassContext.current()
        return cls(
            int(context.opt_level),
            {str(name): value for name, value in context.config.items()},
            tuple(map(str, context.required_pass)),
            tuple(map(str, context.disabled_pass)),
            is_cache_enabled(),
        )


@dataclass(frozen=True)
class Compiled:
    """A compiled program as plain data."""

    facts: Mapping[str, Any]
    files: Mapping[str, bytes]
    """As of `Artifact.saved`."""
    names_lines: bool | None
    """Tells which of its key's names it is kept under; None where it must not be kept."""
    machine: tuple[Any, ...]
    """The compilers that made it, and whether they had a GPU."""


def compile_in_child(request: Request, options: PassOptions, timeout: float) -> Outcome:
    """Compile a program in a child of this process: what an executor is given.

    The options are those of the process that asks.
    """
    return in_child(_compile, request, options, timeout=timeout)


def _compile(request: Request, options: PassOptions) -> Compiled:
    (enable_cache if options.keeps else disable_cache)()
    context = tvm.transform.PassContext(
        opt_level=options.opt_level,
        config=dict(options.config),
        required_pass=list(options.required),
        disabled_pass=list(options.disabled),
    )
    with context:
        return compile_here(request)


def compile_here(request: Request) -> Compiled:
    """Compile a program in this process."""
    artifact, key = request.artifact(), request.key()
    name = None if key is None else name_in_cache(artifact, key)
    names_lines = None if key is None or name is None else name == key.with_lines
    return Compiled(*artifact.saved(), names_lines, _machine(request))


def adopt_compiled(request: Request, compiled: Compiled) -> None:
    """Keep what another process compiled in the cache of this one."""
    key = request.key()
    if key is not None and compiled.names_lines is not None:
        name = key.with_lines if compiled.names_lines else key.code
        adopt(name, compiled.facts, compiled.files)


def refuse_foreign(request: Request, compiled: Compiled) -> str | None:
    """The reason to refuse a program that other compilers than this machine's made, or None."""
    pairs = zip(_PARTS, compiled.machine, _machine(request), strict=True)
    others = [part for part, theirs, ours in pairs if theirs != ours]
    return (
        f"the process that compiled it has another {', another '.join(others)}" if others else None
    )


def _machine(request: Request) -> tuple[object, ...]:
    needs_gpu = request.target.kind.name == "cuda" and request.backend == "tvm_ffi"
    return (*versions(), needs_gpu and has_gpu())
