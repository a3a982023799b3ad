"""Processes that run programs, so that one which crashes or never ends costs that program alone."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.fuzz.program import Program
from tests.fuzz.run import Outcome, for_target, run

__all__ = ["Job", "outcomes"]

Job = tuple[Program, str]
"""A program and a target."""

_SPAWN = multiprocessing.get_context("spawn")  # TVM's threads do not survive a fork
_PATIENCE = 1.5
"""A worker is stopped after so many times the seconds that make a program slow."""
_STUCK = 600.0
"""And after so many seconds without an answer, for a program that waits for something."""


def _serve(pipe: Connection, limit: float) -> None:
    """Run the jobs that come through a pipe, until it is closed."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as directory:
        while True:
            try:
                program, target = pipe.recv()
            except EOFError:
                return
            # Of processor time: it ends the process, whatever it is computing.
            signal.setitimer(signal.ITIMER_PROF, _PATIENCE * limit)
            pipe.send(run(for_target(program, target), target, Path(directory), limit))
            signal.setitimer(signal.ITIMER_PROF, 0)


class _Worker:
    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, self._limit), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, job: Job) -> None:
        self.job = job
        self.pipe.send(job)

    def take(self) -> Outcome:
        """The outcome of the job; a worker that died is replaced."""
        try:
            outcome = self.pipe.recv()
            if outcome.kind == "hung" or "CUDA error" in outcome.detail:
                # Its context is of no use any more.
                self._restart()
            return outcome
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            self._start()
        if code == -signal.SIGPROF:
            seconds = _PATIENCE * self._limit
            return Outcome("slow", f"more than {seconds:.0f} s", seconds)
        return Outcome("internal", f"the process died with exit code {code}")

    def abandon(self) -> Outcome:
        """Stop a worker that does not answer."""
        self._restart()
        return Outcome("hung", f"no answer within {_STUCK:.0f} s")

    def _restart(self) -> None:
        self._process.kill()
        self._process.join()
        self._start()

    def close(self) -> None:
        self.pipe.close()

    def stop(self) -> None:
        self._process.join(1)
        self._process.kill()


def outcomes(jobs: Iterable[Job], count: int, limit: float) -> Iterator[tuple[Job, Outcome]]:
    """Run jobs in `count` processes; each result comes when it is there.

    Parameters
    ----------
    jobs : iterable of Job
        Taken one by one, as workers become free.
    count : int
        How many processes.
    limit : float
        Seconds of processor time after which a program is slow.
    """
    rest = iter(jobs)
    workers = [_Worker(limit) for _ in range(count)]
    try:
        busy = [worker for worker in workers if _next(worker, rest)]
        while busy:
            ready: Any = wait([worker.pipe for worker in busy], _STUCK)
            answered = [worker for worker in busy if worker.pipe in ready]
            for worker in answered or busy:
                job = worker.job
                assert job is not None
                yield job, worker.take() if answered else worker.abandon()
                if not _next(worker, rest):
                    busy.remove(worker)
    finally:
        for worker in workers:  # all at once: to end a GPU's context takes a second
            worker.close()
        for worker in workers:
            worker.stop()


def _next(worker: _Worker, jobs: Iterator[Job]) -> bool:
    job = next(jobs, None)
    if job is not None:
        worker.give(job)
    return job is not None
