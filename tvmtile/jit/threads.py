"""The threads that run a kernel's blocks on a CPU.

TVM's thread pool takes half of the hardware threads of an x86-64 machine, whether or not it has
hyper-threading, and binds the calling thread to the first core, where it then competes with torch's
threads. So the pool is told to use every physical core that this process may use, bound to none in
particular. The pool belongs to the calling thread, and so does the setting.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from pathlib import Path

import tvm

__all__ = ["prepare_thread_pool"]

_SHARE_ALL_CORES = -3  # of TVM's runtime::threading::ThreadGroup::AffinityMode
_STATE = threading.local()


def prepare_thread_pool() -> None:
    """Configure TVM's thread pool for this thread, once; `TVM_NUM_THREADS` overrides it."""
    if getattr(_STATE, "ready", False):
        return
    _STATE.ready = True
    configure = tvm.get_global_func("runtime.config_threadpool", allow_missing=True)
    if configure is None or "TVM_NUM_THREADS" in os.environ:
        return
    cpus = _usable_cpus()
    configure(_SHARE_ALL_CORES, _physical_cores(cpus), [str(cpu) for cpu in cpus])


def _usable_cpus() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@lru_cache(maxsize=8)
def _physical_cores(cpus: tuple[int, ...]) -> int:
    """How many cores these hardware threads belong to; their number where the system does not say."""
    cores = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            return len(cpus)
    return len(cores)
