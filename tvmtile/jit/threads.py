"""The threads that run a kernel's blocks on a CPU.

TVM's thread pool takes half of the hardware threads of an x86-64 machine, whether or not it has
hyper-threading, and binds the calling thread to the first core, where it then competes with torch's
threads. So the pool is told to use every physical core that this process may use, bound to none in
particular. The pool belongs to the calling thread, and so does the setting.

A daemon thread that is in a kernel when the interpreter ends would end as it asks for the interpreter
again, with C++ on its stack, which ends the process by SIGABRT. So such threads are ended before that,
and from then on a call of a kernel ends the daemon thread that makes it.

A fork copies the pool without its threads, and a kernel in the child would wait for them forever. TVM
can't make them anew, but it can leave them alone: the thread that forked runs kernels by itself in the
child, as torch does there. Other threads of the child have pools of their own.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path
from types import FrameType

import tvm

# Of TVM's runtime::threading::ThreadGroup::AffinityMode.
_MOST_CORES = 1
_SHARE_ALL_CORES = -3
_STATE = threading.local()
_PATIENCE = 10.0
"""Seconds to wait at exit for kernels of daemon threads."""

ending = False
"""Whether the interpreter ends, so that daemon threads are to enter no kernel."""


def prepare_thread_pool() -> None:
    """Configure TVM's thread pool for this thread, once; `TVM_NUM_THREADS` overrides it."""
    if getattr(_STATE, "ready", False):
        return
    _STATE.ready = True
    if "TVM_NUM_THREADS" not in os.environ:
        cpus = usable_cpus()
        _configure(_SHARE_ALL_CORES, _physical_cores(cpus), [str(cpu) for cpu in cpus])


def leave_daemon() -> None:
    """End the calling thread if it is a daemon and the interpreter ends."""
    if ending and threading.current_thread().daemon:
        raise SystemExit


@atexit.register
def _end_daemons() -> None:
    """End daemon threads that are in a kernel, as it returns."""
    global ending
    ending = True
    end = time.monotonic() + _PATIENCE
    asked: set[int | None] = set()
    while (inside := _in_kernels()) and time.monotonic() < end:
        for thread in inside - asked:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(SystemExit)
            )
        asked |= inside
        time.sleep(0.01)


def _in_kernels() -> set[int]:
    """The daemon threads with a frame of ours."""
    frames = sys._current_frames()
    numbers = {thread.ident for thread in threading.enumerate() if thread.daemon}
    return {number for number in numbers & frames.keys() if number and _is_ours(frames[number])}


def _is_ours(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__package__") == __package__:
            return True
        frame = frame.f_back
    return False


def _configure(*settings: object) -> None:
    configure = tvm.get_global_func("runtime.config_threadpool", allow_missing=True)
    if configure is not None:
        configure(*settings)


def _after_fork_in_child() -> None:
    """Keep to the calling thread, where the pool may have had threads."""
    if getattr(_STATE, "ready", False):
        _configure(_MOST_CORES, 1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def usable_cpus() -> tuple[int, ...]:
    """The hardware threads that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@lru_cache(maxsize=8)
def _physical_cores(cpus: tuple[int, ...]) -> int:
    """The cores of some hardware threads; as many as these where the system does not say."""
    cores = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            return len(cpus)
    return len(cores)
