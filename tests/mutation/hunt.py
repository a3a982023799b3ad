"""Mutants that the tests of a tree find, and by which test."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.mutation.mutants import Mutant
from tests.mutation.trees import Ran, Trees

_UNKNOWN = 0.5
"""Seconds of a test that has not run yet."""
_SHARD = 40.0
"""Seconds of the tests that one process runs: with fewer, most of the time is imports."""


@dataclass
class Verdict:
    """The verdict on a mutant."""

    name: str
    result: str = "open"
    """`found`, `not found`, `no such text`, or `open` where the time did not suffice."""
    by: str = ""
    """The test that finds it."""
    message: str = ""
    seconds: float = 0.0
    """Processor time of all that ran for it."""


@dataclass
class Baseline:
    """The results of the tests without a mutant."""

    broken: set[str] = field(default_factory=set)
    """Tests that fail without one: they show nothing."""
    durations: dict[str, float] = field(default_factory=dict)
    """Seconds of each test, in the order of the files."""
    reach: dict[str, set[str]] = field(default_factory=dict)
    """The tests that execute a mutant's lines; of one that is absent, all may."""


@dataclass
class Settings:
    """How to run the tests."""

    arguments: Sequence[str] = ()
    """Of pytest, for each run."""
    paths: Sequence[str] = ("tests",)
    """The tests that take part."""
    jobs: int = 1
    timeout: float = 120.0
    """Seconds in which a test begins or ends; else it hangs."""
    end: float = float("inf")
    """When to stop, on the monotonic clock."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Tests that once found mutants: they run first."""
    known_only: bool = False
    """No others run."""


class Hunt:
    """Runs tests on mutants: for each the one that once found it, then, in shards, all others."""

    def __init__(self, trees: Trees, settings: Settings, baseline: Baseline) -> None:
        self.trees = trees
        self.settings = settings
        self.baseline = baseline

    def measure(self) -> None:
        """Run all tests without a mutant, once."""
        tests = self._pytest(self.trees.clean, ["--collect-only", *self.settings.paths])
        if not tests.collected:
            raise RuntimeError(f"no tests were collected\n{tests.output}")
        shards = list(_shards(dict.fromkeys(tests.collected, _UNKNOWN), _SHARD / 2))

        def run(shard: list[str]) -> tuple[list[str], Ran]:
            return shard, self._pytest(self.trees.clean, shard)

        with ThreadPoolExecutor(self.settings.jobs) as pool:
            runs = list(pool.map(run, shards))
        if time.monotonic() > self.settings.end:
            raise RuntimeError("the time did not suffice for the tests without a mutant")
        took = dict.fromkeys(tests.collected, 0.0)
        for shard, ran in runs:
            self.baseline.broken |= ran.failed.keys()
            took.update(ran.durations)
            if not ran.ended:  # what hangs, and what comes behind it, shows nothing
                self.baseline.broken |= {test for test in shard if not took[test]}
                self.baseline.broken |= {ran.last} if ran.last else set()
        self.baseline.durations = took

    def verdicts(self, mutants: Iterable[Mutant]) -> Iterator[Verdict]:
        """A verdict of each mutant, as it is known."""
        cases = [_Case(self, mutant) for mutant in mutants]
        known = self.settings.known
        jobs = [(case, [known[name]]) for case in cases if (name := case.verdict.name) in known]
        if not self.settings.known_only:
            # Those that few tests reach are decided first, and none waits for all of another.
            shards = [[(case, shard) for shard in case.shards()] for case in cases]
            turns = zip_longest(*sorted(shards, key=len))
            jobs += [job for turn in turns for job in turn if job is not None]
        for case, _ in jobs:
            case.jobs += 1
        with ThreadPoolExecutor(self.settings.jobs) as pool:
            try:
                for ran in as_completed([pool.submit(case.run, tests) for case, tests in jobs]):
                    case = ran.result()
                    if case is not None:
                        yield case.verdict
            finally:
                self.settings.end = min(self.settings.end, time.monotonic())  # what runs still ends

    def _pytest(self, tree: Path, tests: Sequence[str], case: _Case | None = None) -> Ran:
        def stop() -> bool:
            return time.monotonic() > self.settings.end or (case is not None and case.is_decided)

        broken = [f"--deselect={test}" for test in sorted(self.baseline.broken)]
        arguments = [*self.settings.arguments, *broken, *tests]
        return self.trees.pytest(tree, arguments, self.settings.timeout, stop)

    def lacks(self, tests: Sequence[str]) -> bool:
        """Tell whether one of these tests does not exist without a mutant either."""
        ran = self._pytest(self.trees.clean, ["--collect-only", *tests])
        return ran.status == pytest.ExitCode.USAGE_ERROR

    def fails_alone(self, test: str) -> bool:
        """Tell whether a test fails without a mutant too."""
        ran = self._pytest(self.trees.clean, [test])
        return bool(ran.failed) or not ran.ended or ran.status not in (0, 1)


class _Case:
    """A mutant, and what its tests have shown so far."""

    def __init__(self, hunt: Hunt, mutant: Mutant) -> None:
        self._hunt = hunt
        self._mutant = mutant
        self.verdict = Verdict(mutant.name)
        self.jobs = 0
        self._yielded = False
        self._lock = threading.Lock()

    @property
    def is_decided(self) -> bool:
        return self.verdict.result != "open"

    def shards(self) -> Iterator[list[str]]:
        """The tests that can find it, those in the folder of the file's part of tvmtile first."""
        baseline, mutant = self._hunt.baseline, self._mutant
        reach = baseline.reach.get(mutant.name, baseline.durations.keys())
        own = "/".join(["tests", *mutant.file.split("/")[1:2]])
        tests = [test for test in baseline.durations if test in reach]
        tests.sort(key=lambda test: not test.startswith(own))
        return _shards({test: baseline.durations[test] for test in tests}, _SHARD)

    def run(self, tests: list[str]) -> _Case | None:
        """Run tests on the mutant; itself, where this decides it or was the last that could."""
        if tests and not self.is_decided and time.monotonic() < self._hunt.settings.end:
            try:
                tree = self._hunt.trees.planted(self._mutant)
                self._run(tree, tests)
            except (ValueError, OSError) as error:
                self._decide("no such text", "", str(error))
        with self._lock:
            self.jobs -= 1
            if not self.jobs and time.monotonic() < self._hunt.settings.end:
                self._decide("not found")
            if self._yielded or not (self.is_decided or not self.jobs):
                return None
            self._yielded = True
        self._hunt.trees.remove(self._mutant)
        return self

    def _run(self, tree: Path, tests: list[str]) -> None:
        settings = self._hunt.settings
        while time.monotonic() < settings.end:
            ran = self._hunt._pytest(tree, ["-x", *tests], case=self)
            self.verdict.seconds += ran.seconds
            if self.is_decided:
                return
            failed = dict(ran.failed)
            if not ran.ended:
                if time.monotonic() > settings.end:
                    return
                failed = {ran.last or tests[0]: f"hangs for {settings.timeout:g} s"}
            elif not failed and ran.status not in (0, 5):
                failed = {
                    ran.last or tests[0]: f"pytest ends with {ran.status}: {ran.output[-300:]}"
                }
                if ran.status == pytest.ExitCode.USAGE_ERROR and self._hunt.lacks(tests):
                    warnings.warn(f"tests that are gone: {ran.output}", stacklevel=1)
                    return
            if not failed:
                return
            test, message = next(iter(failed.items()))
            if not self._hunt.fails_alone(test):
                self._decide("found", test, message)
                return
            if test in self._hunt.baseline.broken:  # it can't be left out
                return
            self._hunt.baseline.broken.add(test)

    def _decide(self, result: str, by: str = "", message: str = "") -> None:
        if not self.is_decided:
            self.verdict.by, self.verdict.message = by, message
            self.verdict.result = result


def _shards(seconds: dict[str, float], size: float) -> Iterator[list[str]]:
    """Neighbouring tests together, each shard of about the same time."""
    shard: list[str] = []
    total = 0.0
    for test, took in seconds.items():
        if shard and total + took > size:
            yield shard
            shard, total = [], 0.0
        shard.append(test)
        total += took
    if shard:
        yield shard
