"""One tuning: trace all configurations, compile them at once, measure them one by one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tvmtile.autotuner.child import Outcome
from tvmtile.autotuner.compilation import (
    Compiled,
    PassOptions,
    compile_here,
    compile_in_child,
    refuse_foreign,
)
from tvmtile.autotuner.configurations import Configuration
from tvmtile.autotuner.measuring import InputsOf, Measurement, Measurer, Plan
from tvmtile.autotuner.result import Trial
from tvmtile.errors import reason_of
from tvmtile.jit.compiler import Request
from tvmtile.jit.threads import usable_cpus

_Item = TypeVar("_Item")

logger = logging.getLogger("tvmtile.autotuner")
"""A configuration's time is information, one that is left out a warning."""


@dataclass(frozen=True)
class Limits:
    """Limits for one configuration."""

    timeout: float
    """Seconds to compile it, and as many to measure it."""
    n_warmup: int
    n_repeat: int
    """Calls before measuring, and measured ones."""
    slower: float | None
    """A configuration that takes this many times as long as the best is not measured well."""


class Search:
    """Finds out about each configuration.

    `trace` makes the program of a configuration.
    """

    def __init__(
        self,
        configs: Sequence[Configuration],
        trace: Callable[[Configuration], Request],
        inputs_of: InputsOf,
        limits: Limits,
    ) -> None:
        self.trials = [Trial(index, config) for index, config in enumerate(configs)]
        self._trace, self._inputs_of, self._limits = trace, inputs_of, limits
        self.requests: dict[int, Request] = {}
        self.compiled: dict[int, Compiled] = {}

    @property
    def best(self) -> Trial | None:
        """The quickest of those that were measured."""
        measured = [trial for trial in self.trials if trial.status == "ok"]
        return min(measured, key=lambda trial: trial.latency or 0.0, default=None)

    def run(self, executor: Executor | None, workers: int | None, overlap: bool) -> None:
        """Give each trial its time or what went wrong.

        `workers` processes compile where there is no executor, by default one a processor. With
        `overlap` what is compiled is measured while the rest is being compiled.
        """
        for trial in self.trials:
            self.traced(trial)
        self._inputs()
        measurer = Measurer(self._limits.timeout)
        try:
            with _executor(executor, workers or len(usable_cpus()), len(self.requests)) as used:
                ready = self._compile(used)
                if not overlap:
                    ready = iter(sorted(ready, key=lambda trial: trial.index))
                with watched(ready, len(self.requests), "measuring") as trials:
                    for trial in trials:
                        self._measure(measurer, trial)
        finally:
            measurer.release()

    def traced(self, trial: Trial) -> Request | None:
        """The program of a configuration; None where the kernel refuses it."""
        if trial.index not in self.requests and not trial.status:
            try:
                self.requests[trial.index] = self._trace(trial.config)
            except Exception as error:  # noqa: BLE001 - a kernel may raise what it likes
                self._end(trial, "not compiled", f"{type(error).__name__}: {error}")
        return self.requests.get(trial.index)

    def _inputs(self) -> None:
        """Make the inputs before anything is compiled: an error there is the caller's."""
        for request in self.requests.values():
            self._inputs_of(request)

    def _compile(self, executor: Executor) -> Iterator[Trial]:
        """Each configuration that was compiled, when it is."""
        options = PassOptions.current()
        waiting: dict[Future[Outcome], Trial] = {}
        here: list[Trial] = []
        for index, request in self.requests.items():
            if request.key() is None:  # code of the user's takes part, which no other process has
                here.append(self.trials[index])
                continue
            task = executor.submit(compile_in_child, request, options, self._limits.timeout)
            waiting[task] = self.trials[index]
        with watched(as_completed(waiting), len(waiting), "compiling") as tasks:
            for task in tasks:
                if self._has_compiled(waiting[task], _outcome_of(task)):
                    yield waiting[task]
        for trial in here:
            if self._has_compiled(trial, _compiled_here(self.requests[trial.index])):
                yield trial

    def _has_compiled(self, trial: Trial, outcome: Outcome) -> bool:
        if outcome.status == "ok":
            foreign = refuse_foreign(self.requests[trial.index], outcome.value)
            outcome = outcome if foreign is None else Outcome("failed", reason=foreign)
        if outcome.status != "ok":
            status = "not compiled" if outcome.status == "failed" else outcome.status
            self._end(trial, status, outcome.reason)
            return False
        self.compiled[trial.index] = outcome.value
        return True

    def _measure(self, measurer: Measurer, trial: Trial) -> None:
        request, compiled = self.requests[trial.index], self.compiled[trial.index]
        inputs, best, limits = self._inputs_of(request), self.best, self._limits
        limit = None
        if limits.slower is not None and best is not None and best.latency is not None:
            limit = best.latency * limits.slower
        plan = Plan(limits.n_warmup, limits.n_repeat, limit)
        outcome = measurer.measure(request, compiled, inputs, plan)
        if outcome.status != "ok":
            self._end(trial, outcome.status, outcome.reason)
            return
        found: Measurement = outcome.value
        if found.results is not None:
            try:
                inputs.check(found.results)
            except Exception as error:  # noqa: BLE001 - a user's check may raise what it likes
                self._end(trial, "wrong result", reason_of(error))
                return
        trial.latency = found.latency
        is_slow = limit is not None and found.latency > limit
        self._end(trial, "stopped early" if is_slow else "ok")

    def _end(self, trial: Trial, status: str, reason: str = "") -> None:
        trial.status, trial.reason = status, reason
        report(trial, len(self.trials))


@contextmanager
def _executor(given: Executor | None, workers: int, tasks: int) -> Iterator[Executor]:
    """The caller's executor, which stays open, or threads, each with a child to do its work."""
    if given is not None:
        yield given
        return
    threads = ThreadPoolExecutor(max(1, min(workers, tasks)))
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _outcome_of(task: Future[Outcome]) -> Outcome:
    """The outcome of a task; a cluster may have lost it."""
    error = task.exception()
    if error is not None:
        return Outcome("died", reason=f"{type(error).__name__}: {error}")
    return task.result()


def _compiled_here(request: Request) -> Outcome:
    try:
        return Outcome("ok", compile_here(request))
    except Exception as error:  # noqa: BLE001 - as in a child
        return Outcome("failed", reason=f"{type(error).__name__}: {error}")


# What a user sees -----------------------------------------------------------------------------------


def report(trial: Trial, count: int) -> None:
    """Write the line of a configuration."""
    measured = trial.latency is not None
    logger.log(
        logging.INFO if measured else logging.WARNING, "%d/%d %s", trial.index + 1, count, trial
    )


@contextmanager
def watched(items: Iterable[_Item], total: int, what: str) -> Iterator[Iterable[_Item]]:
    """The items, with a bar that counts them where a terminal looks on."""
    if not sys.stderr.isatty():
        yield items
        return
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    with logging_redirect_tqdm(), tqdm(items, what, total, leave=False) as bar:
        seen: Any = bar
        yield seen
