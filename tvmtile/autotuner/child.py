"""A process that does one thing at a time for another one, which ends it when its time is up.

What is compiled or measured may never end, and may end its process. So it is done in a child: an
interpreter of its own, which imports this package and nothing of the user's. (`multiprocessing` would
run the user's script there again, which need not be guarded by `if __name__ == "__main__"`.) Functions
go there by their names, their arguments pickled; what they return comes back in the same way.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_START = (
    "import sys; sys.path[:] = {path!r}; {first}from tvmtile.autotuner.child import serve; serve()"
)
_WITHOUT_TORCH = "sys.modules['torch'] = None; "
"""TVM imports torch where it is installed, which takes longer than all the rest."""


IDLE_SECONDS = 120.0
"""A child that has had nothing to do for so long ends itself."""


@dataclass(frozen=True)
class Outcome:
    """The result of a task."""

    status: str
    """"ok", "failed" where it raised, "timed out" or "died"."""
    value: Any = None
    """Its result."""
    reason: str = ""
    """Why it did not."""


class Child:
    """An interpreter that waits for tasks; it has imported tvmtile.

    Attributes
    ----------
    environment : dict of str to str
        The variables that it has.
    used : float
        When it had its last task, in seconds of the monotonic clock.
    """

    def __init__(self, has_torch: bool = True) -> None:
        first = "" if has_torch else _WITHOUT_TORCH
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path, first=first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self.has_torch, self.environment = has_torch, dict(os.environ)
        self.used = time.monotonic()
        self._is_late = self._owes_an_answer = False
        started = self._answer()
        if started.status != "ok":
            raise RuntimeError(f"a process for the autotuner could not start: {started.reason}")

    @property
    def is_alive(self) -> bool:
        """Tell whether it can be given another task: it runs, and its last answer was read."""
        waits = not (self._is_late or self._owes_an_answer)
        return waits and self._process.poll() is None

    def run(self, function: Callable[..., Any], *args: Any, timeout: float) -> Outcome:
        """Call a function there; the child is gone where it has not returned in time.

        The function is one of a module of this package; the arguments can be pickled.
        """
        assert self._process.stdin is not None
        task = pickle.dumps((function, args), protocol=pickle.HIGHEST_PROTOCOL)  # it may raise
        clock = threading.Timer(timeout, self._end_late)
        self._owes_an_answer = True
        clock.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                _write(self._process.stdin, task)
            outcome = self._answer()
            self._owes_an_answer = False  # unless what interrupts this process came before
        finally:
            clock.cancel()
        self.used = time.monotonic()
        if self._is_late and outcome.status == "died":
            return Outcome("timed out", reason=f"not done after {timeout:g} s")
        return outcome

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def _answer(self) -> Outcome:
        assert self._process.stdout is not None
        try:
            answer = _read(self._process.stdout)
        except EOFError:
            return Outcome("died", reason=self._how_it_ended())
        outcome: Outcome = pickle.loads(answer)
        return outcome

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        how = f"exited with status {code}"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"its process {how}{f': {lines[-1]}' if lines else ''}"


def serve() -> None:
    """Do what comes in by standard input, answer by standard output; end with the parent, or unused."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what interrupts the parent ends it too
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    import tvmtile.jit.build  # noqa: F401 - a task's time begins when it could begin

    answer = pickle.dumps(Outcome("ok"))
    while True:
        _write(answers, answer)
        clock = threading.Timer(IDLE_SECONDS, os._exit, [0])
        clock.start()
        try:
            task = _read(tasks)
        except EOFError:
            os._exit(0)
        clock.cancel()
        answer = _done(task)


def _done(task: bytes) -> bytes:
    """The pickled outcome of a task; where it can't be pickled, a failure."""
    try:
        function, args = pickle.loads(task)
        outcome = Outcome("ok", function(*args))
        return pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - it is what there is to say
        return pickle.dumps(Outcome("failed", reason=f"{type(error).__name__}: {error}"))


_LENGTH = struct.Struct("<Q")


def _write(stream: Any, data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _read(stream: object) -> bytes:
    """The bytes of one write; EOFError where the writer has ended before, or meanwhile."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return _exactly(stream, length)


def _exactly(stream: Any, count: int) -> bytes:
    data: bytes = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


# Children that wait for the next task, since one takes seconds to start ---------------------------

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
if hasattr(os, "register_at_fork"):
    # They are the parent's, which talks to them through the same pipes.
    os.register_at_fork(after_in_child=_idle.clear)
