"""Results of tunings on disk: in the cache, and in files that users name.

In the cache is the best configuration under all that decides which one it is. The program of the first
configuration stands for the function that makes them all: its key in the cache holds what the function
and its helpers wrote, the arguments, the target, the options and the versions of the compilers. To that
come the configurations, the inputs, the device and how it was measured. What is kept are times, no
code: the kernel is that of the program of today.

In a user's file is the program as plain data, which is compiled where it is read. Unpickling may call
the two functions that make programs of data, and nothing else, and what the program brings along in
another language is not taken, which may begin to run when it is linked: to load a file from elsewhere
runs no code of its. To call the kernel does.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import tvm
from tvm import ir

from tvmtile._version import __version__
from tvmtile.autotuner.configurations import Configuration, ProfileArgs
from tvmtile.autotuner.result import AutotuneResult, Trial
from tvmtile.cache import CacheEntry, current_store, digest
from tvmtile.errors import InvalidValue
from tvmtile.ir.options import sources_in
from tvmtile.jit.backends import EMULATOR
from tvmtile.jit.compiler import Request
from tvmtile.jit.ir_data import to_data
from tvmtile.jit.key import all_sources

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


_CODE = ("pragma_import_llvm", "pragma_import_c")
_MAKERS = {("tvmtile.jit.compiler", "_again"), ("tvmtile.jit.ir_data", "from_data")}


def save(result: AutotuneResult, path: Path) -> None:
    """Write a result to a file: all of it or nothing."""
    kernel = result.kernel
    facts = {
        "versions": _versions(),
        "config": result.config,
        "latency": result.latency,
        "ref_latency": result.ref_latency,
        "trials": [asdict(trial) for trial in result.trials],
        "request": Request.of(kernel.prim_func, **kernel.options),
    }
    data = pickle.dumps(facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)


def load(path: Path) -> AutotuneResult | None:
    """Read a result; None where there is no such file."""
    if not path.exists():
        return None
    facts = _unpickled(path)
    if not isinstance(facts, dict) or facts.get("versions") != _versions():
        raise InvalidValue(
            f"{path} was not saved by tvmtile {__version__} and TVM {tvm.__version__}",
            help="tune again and save the result",
        )
    request, config = facts["request"], facts["config"]
    _refuse_code(path, request)
    kernel = request.kernel(request.artifact())
    kernel.latency, kernel.ref_latency = facts["latency"], facts["ref_latency"]
    kernel.config = config
    return AutotuneResult(
        facts["latency"],
        config,
        facts["ref_latency"],
        kernel,
        request.func,
        tuple(Trial(**trial) for trial in facts["trials"]),
        is_from_cache=True,
    )


def _versions() -> tuple[str, str]:
    return __version__, tvm.__version__


def _refuse_code(path: Path, request: Request) -> None:
    """Refuse a program with code for the host, which may have constructors.

    In the emulator, CUDA's is the host's.
    """
    words = (part[0] for _, parts in to_data(request.func) for part in parts if type(part) is tuple)
    found = next((word for word in words if isinstance(word, str) and word in _CODE), None)
    if request.backend == EMULATOR and sources_in(request.func):
        found = "T.import_source"
    if found is not None:
        raise InvalidValue(
            f"{path}: the program holds code in another language ({found}), which could run as it is "
            "loaded",
            help="compile the kernel from its source with the configuration that was found",
        )


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _MAKERS:
            raise pickle.UnpicklingError(f"{module}.{name} is not for results")
        return super().find_class(module, name)


def _unpickled(path: Path) -> Any:
    try:
        return _Unpickler(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, TypeError):
        return None
