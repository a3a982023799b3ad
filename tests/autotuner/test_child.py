"""A process for one task at a time: what comes of it, however it ends."""

from __future__ import annotations

import contextlib
import operator
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tvmtile.autotuner.child import Child, _idle, close_children, in_child

pytestmark = pytest.mark.full  # other processes compile


@pytest.fixture(scope="module")
def child():
    child = Child()
    yield child
    child.close()


def test_what_a_function_returns_comes_back(child):
    outcome = child.run(operator.add, [1], [2], timeout=60)
    assert (outcome.status, outcome.value) == ("ok", [1, 2])


def test_what_is_printed_is_no_answer(child):
    assert child.run(print, "words", timeout=60).status == "ok"
    assert child.run(os.system, "echo more of them", timeout=60).value == 0


def test_what_it_raises_is_the_reason(child):
    outcome = child.run(operator.truediv, 1, 0, timeout=60)
    assert (outcome.status, outcome.reason) == ("failed", "ZeroDivisionError: division by zero")
    assert child.is_alive


def test_an_argument_that_can_not_be_made_there_is_a_failure(child):
    outcome = child.run(operator.add, Unmade(), timeout=60)
    assert (outcome.status, outcome.reason) == ("failed", "ZeroDivisionError: division by zero")
    assert child.run(operator.add, 1, 2, timeout=60).value == 3


class Unmade:
    def __reduce__(self):
        return operator.truediv, (1, 0)


def test_a_process_that_ends_itself_is_told_from_one_that_is_ended():
    outcome = in_child(os.abort, timeout=60)
    assert outcome.status == "died"
    assert outcome.reason.startswith("its process was ended by SIGABRT")
    outcome = in_child(os._exit, 3, timeout=60)
    assert (outcome.status, outcome.reason) == ("died", "its process exited with status 3")
    start = time.monotonic()
    outcome = in_child(time.sleep, 600, timeout=0.5)
    assert (outcome.status, outcome.reason) == ("timed out", "not done after 0.5 s")
    assert time.monotonic() - start < 60


def test_an_idle_child_is_used_again():
    close_children()
    first = in_child(os.getpid, timeout=60)
    assert in_child(os.getpid, timeout=60).value == first.value != os.getpid()
    close_children()
    assert not _idle


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no such signal")
def test_a_child_whose_answer_was_not_read_is_not_used_again():
    """An interrupt of the parent may leave the child alone: Jupyter's signal, or an alarm's."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        assert in_child(operator.add, 1, 1, timeout=60).value == 2
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            in_child(time.sleep, 30, timeout=60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert in_child(operator.add, 2, 3, timeout=60).value == 5


def test_a_child_with_another_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("TVMTILE_TEST", "one")
    assert in_child(os.getenv, "TVMTILE_TEST", timeout=60).value == "one"
    monkeypatch.setenv("TVMTILE_TEST", "two")
    assert in_child(os.getenv, "TVMTILE_TEST", timeout=60).value == "two"


def printed(source, at=None):
    """The output of a program that uses children; it runs from a file, or from its text."""
    source = (
        "import os\nfrom tvmtile.autotuner.child import in_child\n"
        "def in_one(function):\n    return in_child(function, timeout=60).value\n"
    ) + textwrap.dedent(source)
    command = ["-c", source] if at is None else [at]
    if at is not None:
        at.write_text(source)
    command = [sys.executable, *command]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300
    ).stdout.splitlines()


def test_the_callers_script_is_not_run_again(tmp_path):
    program = "print('the script')\nprint(in_one(os.getppid) == os.getpid())"
    assert printed(program, tmp_path / "script.py") == ["the script", "True"]


def test_a_child_ends_with_its_parent():
    (pid,) = printed("print(in_one(os.getpid), flush=True)\nos._exit(0)")
    with contextlib.suppress(ProcessLookupError):
        for _ in range(100):
            os.kill(int(pid), 0)
            time.sleep(0.1)
        pytest.fail("it is still there")


def test_a_fork_has_children_of_its_own():
    printed("""
        first = in_one(os.getpid)
        child = os.fork()
        if child == 0:
            os._exit(0 if in_one(os.getpid) not in (None, first) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert in_one(os.getpid) == first
        """)
