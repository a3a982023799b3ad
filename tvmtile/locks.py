"""Locks that a forked process finds free.

Another thread may hold a lock while this one forks, and is not there in the child to release it.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

_locks: WeakSet[Lock] = WeakSet()


class Lock:
    """A lock, as `threading.Lock`, which nobody holds after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        if self._lock.locked():  # not in a child that was forked meanwhile
            self._lock.release()

    def locked(self) -> bool:
        """Tell whether a thread of this process holds it."""
        return self._lock.locked()

    def free(self) -> None:
        """Let nobody hold it, whoever did."""
        self._lock = threading.Lock()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock.free()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
