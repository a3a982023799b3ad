"""Copies of a tree, one for each mutant, and pytest in one of them."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.mutation.mutants import Mutant

_LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".*cache", ".venv", ".hypothesis", "__pycache__", "build", "dist", "mutation")
)
_EMULATOR = "tvmtile/emulator"
_SEED = "--hypothesis-seed=0"
_PLUGIN = Path(__file__).with_name("mutation_log.py")


@dataclass
class Ran:
    """The result of a run of pytest."""

    failed: dict[str, str] = field(default_factory=dict)
    """The tests that failed, with what they said."""
    durations: dict[str, float] = field(default_factory=dict)
    collected: list[str] = field(default_factory=list)
    last: str | None = None
    """The test that began last."""
    ended: bool = False
    """True where the run ended by itself: it was neither stopped nor out of time."""
    status: int = -1
    seconds: float = 0.0
    """Processor time, of the processes that it started too."""
    output: str = ""


class Trees:
    """A tree without what is not its own, and trees like it that share its files."""

    def __init__(self, source: Path, directory: Path) -> None:
        self.directory = directory
        self._base = directory / "base"
        self._numbers = count()
        self._lock = threading.Lock()
        for old in directory.glob("*"):
            if old.name != "emulator":  # what it compiled is kept under all that went into it
                shutil.rmtree(old)
        for name in ("emulator", "plugins", "t"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, self._base, ignore=_LEFT_OUT)
        shutil.copy(_PLUGIN, directory / "plugins")
        compileall.compile_dir(self._base / "tvmtile", quiet=2)
        self.clean = self._linked("clean")

    def planted(self, mutant: Mutant) -> Path:
        """A tree with the mistake.

        Raises
        ------
        ValueError
            If the text that it replaces is not there once.
        """
        with self._lock:
            if (tree := self.directory / mutant.name).exists():
                return tree
            text = mutant.applied((self._base / mutant.file).read_text(encoding="utf-8"))
            file = self._linked(mutant.name, own_emulator=_EMULATOR in mutant.file) / mutant.file
            file.unlink()
            file.write_text(text, encoding="utf-8")
            return tree

    def remove(self, mutant: Mutant) -> None:
        """Forget the tree with a mistake."""
        with self._lock:
            shutil.rmtree(self.directory / mutant.name, ignore_errors=True)

    def _linked(self, name: str, own_emulator: bool = False) -> Path:
        tree = self.directory / name
        shutil.copytree(self._base, tree, copy_function=os.link)
        if not own_emulator:  # its headers have one path in all trees, so its libraries one key
            shutil.rmtree(tree / _EMULATOR)
            (tree / _EMULATOR).symlink_to(self._base / _EMULATOR)
        (tree / ".cache").mkdir()
        (tree / ".cache" / "emulator").symlink_to(self.directory / "emulator")
        return tree

    def pytest(
        self, tree: Path, arguments: Sequence[str], limit: float, stop: Callable[[], bool]
    ) -> Ran:
        """Run pytest in a tree, until it ends, `stop()` is true or no test ends in so many seconds."""
        own = self.directory / "t" / f"run{next(self._numbers)}"
        own.mkdir()
        (own / "arguments").write_text("\n".join(arguments), encoding="utf-8")
        options = [
            "-q",
            "--no-header",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            _SEED,
        ]
        command = [sys.executable, "-m", "pytest", *options, "-p", _PLUGIN.stem]
        with (own / "output").open("wb") as output:
            process = subprocess.Popen(
                [*command, f"--basetemp={own / 'base'}", f"@{own / 'arguments'}"],
                cwd=tree,
                env=self._environment(tree, own / "log"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            ran = _waited(process, own / "log", limit, stop)
        _read(own / "log", ran)
        ran.output = (own / "output").read_text(encoding="utf-8", errors="replace")[-3000:]
        shutil.rmtree(own, ignore_errors=True)
        return ran

    def _environment(self, tree: Path, log: Path) -> dict[str, str]:
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = [path for path in given if path and not (Path(path) / "tvmtile").exists()]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tree), str(self.directory / "plugins"), *paths]),
            "TVMTILE_CACHE_DIR": str(tree / ".cache"),
            "TMPDIR": str(self.directory / "t"),
            "MUTATION_LOG": str(log),
            "CUDA_VISIBLE_DEVICES": "",  # as in CI: kernels run in the emulators
            "TVM_NUM_THREADS": "2",  # many run at once
            "OMP_NUM_THREADS": "2",
        }


def _waited(
    process: subprocess.Popen[bytes], log: Path, limit: float, stop: Callable[[], bool]
) -> Ran:
    end, known = time.monotonic() + limit, 0
    ran = Ran()
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            ran.status = process.returncode = os.waitstatus_to_exitcode(status)
            ran.ended = True
            break
        size = log.stat().st_size if log.exists() else 0
        if size != known:
            end, known = time.monotonic() + limit, size
        if stop() or time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.05)
    ran.seconds = usage.ru_utime + usage.ru_stime
    return ran


def _read(log: Path, ran: Ran) -> None:
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        try:
            facts = json.loads(line)
        except ValueError:  # it was killed while it wrote
            continue
        ran.last = facts.get("begins", ran.last)
        ran.collected += facts.get("collected", ())
        if "failed" in facts:
            ran.failed.setdefault(facts["failed"], facts["message"])
        if "took" in facts:
            test = facts["took"]
            ran.durations[test] = ran.durations.get(test, 0.0) + facts["seconds"]
