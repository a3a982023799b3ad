"""A process for one task at a time: what comes of it, however it ends."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import textwrap
import time

import pytest

from tvmtile.autotuner import children
from tvmtile.autotuner.child import Child
from tvmtile.autotuner.children import close_children, in_child

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
    assert not children._idle


def test_a_child_with_another_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("TVMTILE_TEST", "one")
    assert in_child(os.getenv, "TVMTILE_TEST", timeout=60).value == "one"
    monkeypatch.setenv("TVMTILE_TEST", "two")
    assert in_child(os.getenv, "TVMTILE_TEST", timeout=60).value == "two"


def test_the_callers_script_is_not_run_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os
        from tvmtile.autotuner.children import in_child

        print("the script")
        print(in_child(os.getppid, timeout=60).value == os.getpid())
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines() == ["the script", "True"]


def test_a_child_ends_with_its_parent():
    source = textwrap.dedent("""
        import os
        from tvmtile.autotuner.children import in_child

        print(in_child(os.getpid, timeout=60).value, flush=True)
        os._exit(0)
        """)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=300
    )
    pid = int(done.stdout)
    for _ in range(100):
        if not is_running(pid):
            return
        time.sleep(0.1)
    pytest.fail("it is still there")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_fork_has_children_of_its_own():
    source = textwrap.dedent("""
        import os
        from tvmtile.autotuner.children import in_child

        first = in_child(os.getpid, timeout=60).value
        child = os.fork()
        if child == 0:
            other = in_child(os.getpid, timeout=60).value
            os._exit(0 if other not in (None, first) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert in_child(os.getpid, timeout=60).value == first
        """)
    subprocess.run([sys.executable, "-c", source], check=True, timeout=300)
