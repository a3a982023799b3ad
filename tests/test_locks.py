"""Locks after a fork."""

from __future__ import annotations

import os
import re
from pathlib import Path

import tvmtile
from tvmtile.locks import Lock


def test_all_locks_are_free_after_a_fork():
    lock = Lock()
    with lock:
        child = os.fork()
        if child == 0:
            is_free = not lock.locked()
            with lock:
                os._exit(0 if is_free and lock.locked() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lock.locked()
    assert not lock.locked()


def test_no_module_has_locks_of_another_kind():
    other = re.compile(r"threading\.(R?Lock|Condition|Semaphore|Event)\(")
    root = Path(tvmtile.__file__).parent
    files = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if other.search(path.read_text())
    }
    assert files == {"locks.py"}
