"""The best configuration on disk, under all that decides which one it is.

The program of the first configuration stands for the function that makes them all: its key in the
cache holds what the function and its helpers wrote, the arguments, the target, the options and the
versions of the compilers. To that come the configurations, the inputs, the device and how it was
measured. What is kept are times, no code: the kernel is that of the program of today.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import tvm

from tvmtile.autotuner.configurations import Configuration
from tvmtile.autotuner.identity import Unknown, identity
from tvmtile.autotuner.result import Trial
from tvmtile.autotuner.settings import ProfileArgs
from tvmtile.cache import Entry, current_store, digest
from tvmtile.jit.request import Request
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
    except Unknown:
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

    def trials(entry: Entry) -> tuple[list[Trial], float | None]:
        rows = zip(configs, entry.facts["trials"], strict=True)
        found = [Trial(index, config, *row) for index, (config, row) in enumerate(rows)]
        return found, entry.facts["ref_latency"]

    return None if store is None else store.load(_KIND, key, trials)
