"""Measuring configurations, one after the other, in a child that is replaced where one ends it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tvmtile.autotuner.child import Child, Outcome, borrow, give_back
from tvmtile.autotuner.compilation import Compiled
from tvmtile.autotuner.inputs import Inputs, copied
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.compiler import Request
from tvmtile.profiler import as_list, do_bench


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    n_warmup: int
    n_repeat: int
    """Calls before measuring, and measured ones."""
    limit: float | None = None
    """Milliseconds: what takes longer need not be measured well."""


@dataclass(frozen=True)
class Measurement:
    """The measurement of a kernel, or its failure."""

    latency: float
    """Milliseconds a call."""
    results: list[Any] | None
    """What the first call returned, where it was asked for."""


class Measurer:
    """Measures compiled programs in a process that has the inputs."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._child: Child | None = None
        self._held: Inputs | None = None

    def measure(self, request: Request, compiled: Compiled, inputs: Inputs, plan: Plan) -> Outcome:
        """Run a kernel; the value of a success is a `Measurement`."""
        if self._child is None:
            self._child, self._held = borrow(), None
        if self._held is not inputs:
            outcome = self._child.run(_hold, inputs.values, timeout=self._timeout)
            if outcome.status != "ok":
                self.close()
                return outcome
            self._held = inputs
        outcome = self._child.run(
            _measure, request, compiled, plan, inputs.is_checked, timeout=self._timeout
        )
        if outcome.status != "ok":  # after a fault, a GPU's context is of no more use
            self.close()
        return outcome

    def close(self) -> None:
        """End the process, which may hold a GPU's memory."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def release(self) -> None:
        """Leave the process to the next tuning, where it holds the memory of no GPU."""
        if self._child is not None and not self._child.run(_let_go, timeout=self._timeout).value:
            give_back(self._child)
            self._child = None
        self.close()


_inputs: list[Any] = []
"""The child's."""


def _hold(values: list[Any]) -> None:
    _inputs[:] = values
    for value in values:
        if str(getattr(value, "device", "")).startswith("cuda"):
            sys.modules["torch"].cuda.set_device(value.device)


def _let_go() -> bool:
    """Forget the inputs; tell whether the process has used a GPU."""
    _inputs.clear()
    torch = sys.modules.get("torch")
    return torch is not None and any(gpu.is_available() for gpu in (torch.cuda, torch.backends.mps))


def _measure(request: Request, compiled: Compiled, plan: Plan, is_checked: bool) -> Measurement:
    artifact = Artifact.loaded(compiled.facts, compiled.files, request.target)
    kernel = request.kernel(artifact)
    arguments = _arguments(request, artifact)
    results = kernel(*arguments)
    returned = list(map(copied, as_list(results))) if is_checked else None
    latency = do_bench(
        lambda: kernel(*arguments),
        _n_warmup=plan.n_warmup,
        _n_repeat=plan.n_repeat,
        early_stop_baseline=plan.limit,
    )
    return Measurement(float(latency), returned)


def _arguments(request: Request, artifact: Artifact) -> list[object]:
    """The inputs, those that the program writes as copies: the next one gets the same."""
    positions = list(range(len(request.func.params)))
    if len(_inputs) < len(positions):
        positions = [index for index in positions if index not in request.results]
    if len(_inputs) != len(positions):
        return list(_inputs)  # the call says what is wrong
    return [
        copied(value) if index in artifact.written else value
        for index, value in zip(positions, _inputs, strict=True)
    ]
