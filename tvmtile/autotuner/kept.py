"""The best configuration on disk, under all that decides which one it is.

The program of the first configuration stands for the function that makes them all: its key in the
cache holds what the function and its helpers wrote, the arguments, the target, the options and the
versions of the compilers. To that come the configurations, the inputs, the device and how it was
measured. What is kept are times, no code: the kernel is that of the program of today.
"""

from __future__ import annotations

import functools
import json
import os
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import tvm
from tvm import ir

from tvmtile.autotuner.configurations import Configuration
from tvmtile.autotuner.result import Trial
from tvmtile.autotuner.settings import ProfileArgs
from tvmtile.cache import CacheEntry, current_store, digest
from tvmtile.jit.compiler import Request
from tvmtile.jit.sources import all_sources

_KIND = "tuned"


def key_of_tuning(
    first: Request,
    configs: Sequence[Configuration],
    inputs: list[Any] | None,
    profile: ProfileArgs,
    calls: object,
) -> str | None:
    """The name of a tuning; None where there is something in it that has no name.

    `first` is the program of the first configuration.
    """
    key = first.key()
    if current_store() is None or key is None:
        return None
    try:
        parts = [
            identity(list(configs)),
            identity(inputs),
            identity([getattr(profile, name) for name in profile.__dataclass_fields__]),
            identity(calls),
        ]
    except Unidentified:
        return None
    # How it is measured is in none of the modules that compile.
    return digest(key.code, all_sources(), json.dumps(parts), _device(first))


def _device(request: Request) -> str:
    """The machine that times are of, beside what its target says."""
    kind = request.target.kind.name
    threads = os.environ.get("TVM_NUM_THREADS") or os.cpu_count()
    if kind == "llvm" or request.backend == "emulator":
        return f"{request.backend} {threads} threads"
    device = tvm.runtime.device(kind, 0)
    return str(device.device_name) if device.exist else kind


def keep(key: str, trials: Sequence[Trial], ref_latency: float | None) -> None:
    """Keep the times of all configurations."""
    store = current_store()
    if store is not None:
        rows = [[t.status, t.latency, t.reason] for t in trials]
        store.put(_KIND, key, {"name": "autotune", "trials": rows, "ref_latency": ref_latency}, {})


def kept(key: str, configs: Sequence[Configuration]) -> tuple[list[Trial], float | None] | None:
    """The times that were kept, and the reference's; None where there are none."""
    store = current_store()

    def trials(entry: CacheEntry) -> tuple[list[Trial], float | None]:
        rows = zip(configs, entry.facts["trials"], strict=True)
        found = [Trial(index, config, *row) for index, (config, row) in enumerate(rows)]
        return found, entry.facts["ref_latency"]

    return None if store is None else store.load(_KIND, key, trials)


# What Python values are, as text that another process writes too ----------------------------------


class Unidentified(Exception):
    """A value without a text that says what it is."""


def identity(value: object) -> Any:
    """A value as lists and texts, which JSON holds: another value has others.

    A tensor is its dtype, shape, strides and device. A function is its code, with what it has
    bound; what it finds in its module is its name.

    Raises
    ------
    Unidentified
        If there is an object in it of which this can't tell.
    """
    if isinstance(value, ir.Var):
        return ["variable", value.name, str(value.ty)]
    if value is None or isinstance(value, bool | int | float | str):
        return [type(value).__name__, str(value)]
    if isinstance(value, Enum):
        return [type(value).__name__, value.name]
    if isinstance(value, Mapping):
        return [[identity(name), identity(item)] for name, item in value.items()]
    if isinstance(value, list | tuple):
        return ["list", *map(identity, value)]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        layout = getattr(value, "stride", None) or getattr(value, "strides", None)
        steps = layout() if callable(layout) else layout
        return [
            "tensor",
            *map(str, (value.dtype, tuple(value.shape), steps, _kind_of_device(value))),
        ]
    if isinstance(value, functools.partial):
        return ["partial", *map(identity, (value.func, value.args, value.keywords))]
    return _of_function(value)


def _kind_of_device(value: object) -> str:
    return str(getattr(value, "device", "cpu")).partition(":")[0]


def _of_function(value: Any) -> Any:
    code = getattr(value, "__code__", None)
    if code is None:
        name = getattr(value, "__qualname__", None)
        owner = getattr(value, "__self__", None)
        if name is None or not (owner is None or isinstance(owner, types.ModuleType)):
            raise Unidentified(type(value).__name__)
        return ["named", str(value.__module__), name]
    if isinstance(value, types.MethodType):
        return ["method", _of_function(value.__func__), identity(value.__self__)]
    bound = [cell.cell_contents for cell in value.__closure__ or ()]
    return ["function", _of_code(code), identity(bound), identity(value.__defaults__)]


def _of_code(code: types.CodeType) -> Any:
    constants = list(map(_of_constant, code.co_consts))
    return [code.co_name, code.co_code.hex(), list(code.co_names), constants]


def _of_constant(value: object) -> Any:
    if isinstance(value, types.CodeType):
        return _of_code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
