"""What decides the code of a kernel, as a key of the cache.

Two compilations with the same key make the same code: the key holds the program, the target, the
options and the environment variables that passes or compilers read, and the compilers themselves. A
callback, an instrument or a lowering of the user's has no name that says what it does: where there is
one, there is no key, and nothing is kept.

The user's lines are no part of what a program computes. A key with them is for code that names a line,
and for what was compiled with a warning.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvmtile.cache import digest
from tvmtile.ir.operators import all_operators
from tvmtile.jit.ir_data import Node, to_data
from tvmtile.jit.toolchain import cuda_compiler, toolchain
from tvmtile.tileop.registry import registered_lowerings

_LINES = ("ir.Span", "ir.SequentialSpan", "ir.SourceName")
_VERIFIER = "Verifier"
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
        code, with_lines = _text(_without_lines(nodes)), _text(nodes)
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
        if kind == "ir.Op" and not parts[0][0].startswith(("tirx.", "tvmtile.")):
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


def _text(value: object) -> str:
    """A text that no other value has; a number's says its type and all of its digits."""
    if isinstance(value, list | tuple):
        return f"({','.join(map(_text, value))})"
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    raise _NoKey(f"a {type(value).__name__} in a program")
