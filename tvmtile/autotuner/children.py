"""Children that wait for the next task, since one takes seconds to start."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable

from tvmtile.autotuner.child import IDLE_SECONDS, Child, Outcome

_idle: list[Child] = []


def borrow(has_torch: bool = True) -> Child:
    """A child that has nothing to do, and the environment variables of this process."""
    for child in list(_idle):
        try:
            _idle.remove(child)
        except ValueError:  # another thread has it
            continue
        if not child.is_alive or time.monotonic() - child.used > 0.75 * IDLE_SECONDS:
            child.close()  # it is about to end itself
        elif child.has_torch == has_torch and child.environment == dict(os.environ):
            return child
        else:
            _idle.append(child)
    return Child(has_torch)


def give_back(child: Child) -> None:
    """Keep a child for the next one to borrow, if it is alive."""
    if child.is_alive:
        _idle.append(child)
    else:
        child.close()


def in_child(function: Callable[..., object], *args: object, timeout: float) -> Outcome:
    """Call a function in a child of this process, without torch."""
    child = borrow(has_torch=False)
    try:
        return child.run(function, *args, timeout=timeout)
    finally:
        give_back(child)


def close_children() -> None:
    """End those that have nothing to do."""
    while _idle:
        _idle.pop().close()


atexit.register(close_children)
if hasattr(
    os, "register_at_fork"
):  # they are the parent's, which talks to them through the same pipes
    os.register_at_fork(after_in_child=_idle.clear)
