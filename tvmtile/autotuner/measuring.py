"""Inputs that kernels are tuned with, and measuring configurations with them.

They are measured one after the other, in a child that is replaced where one ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvmtile.autotuner.child import Child, Outcome, borrow, give_back
from tvmtile.autotuner.compilation import Compiled
from tvmtile.autotuner.configurations import ProfileArgs
from tvmtile.errors import ArgumentError
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.backends import EMULATOR
from tvmtile.jit.compiler import Request
from tvmtile.jit.signature import KernelParam
from tvmtile.profiler import as_list, compare, do_bench, make_inputs
from tvmtile.target import TORCH_DEVICES

_given: ContextVar[list[Any] | None] = ContextVar("tvmtile_autotune_inputs", default=None)


@contextmanager
def set_autotune_inputs(*args: Any) -> Iterator[None]:
    """Measure what is tuned in this context with these inputs.

    Parameters
    ----------
    *args : Any
        The arguments of the kernel, without its results: one by one, or as one list. They are not
        changed: each configuration gets copies.
    """
    whole = len(args) == 1 and isinstance(args[0], list | tuple)
    token = _given.set(list(args[0] if whole else args))
    try:
        yield
    finally:
        _given.reset(token)


def get_autotune_inputs() -> list[Any] | None:
    """The inputs of the innermost `set_autotune_inputs`, or None outside of one."""
    return _given.get()


def copied(value: object) -> Any:
    """A tensor's copy; another value itself."""
    if hasattr(value, "clone"):
        return value.clone()
    return value.copy() if hasattr(value, "shape") and hasattr(value, "copy") else value


class Inputs:
    """Inputs of a kernel."""

    def __init__(self, values: list[Any], profile: ProfileArgs) -> None:
        self.values = values
        self._profile = profile

    @property
    def is_checked(self) -> bool:
        """Tell whether there is something that results are compared with."""
        return self._profile.ref_prog is not None and not self._profile.skip_check

    @cached_property
    def _expected(self) -> list[object]:
        assert self._profile.ref_prog is not None
        return as_list(self._profile.ref_prog(*map(copied, self.values)))

    def check(self, results: list[Any]) -> None:
        """Compare what a kernel returned with what it must return.

        Raises
        ------
        AssertionError
            If it differs.
        """
        profile = self._profile
        if profile.manual_check_prog is not None:
            profile.manual_check_prog(results, self._expected)
            return
        compare(
            results, self._expected, profile.rtol, profile.atol, profile.max_mismatched_ratio
        )  # fmt: skip

    def reference_latency(self, n_warmup: int, n_repeat: int) -> float | None:
        """Milliseconds that the reference takes; None where there is none."""
        reference = self._profile.ref_prog
        if reference is None:
            return None
        values = list(map(copied, self.values))
        return float(
            do_bench(lambda: reference(*values), _n_warmup=n_warmup, _n_repeat=n_repeat)
        )  # fmt: skip


class InputsOf:
    """Finds the inputs of a program; programs with the same parameters get the same ones."""

    def __init__(self, profile: ProfileArgs, values: list[Any] | None) -> None:
        self._profile = profile
        given = get_autotune_inputs() or values
        self._given = None if given is None else Inputs([*map(_portable, given)], profile)
        self._made: dict[object, Inputs] = {}

    @property
    def given(self) -> list[Any] | None:
        """The inputs that the caller gave for all programs."""
        return None if self._given is None else self._given.values

    def __call__(self, request: Request) -> Inputs:
        """The inputs of a program.

        Raises
        ------
        ArgumentError
            If a parameter has no tensor that could be made up.
        """
        if self._given is not None:
            return self._given
        params = [
            param for index, param in enumerate(request.func.params) if index not in request.results
        ]
        described = list(map(KernelParam.of, params))
        signature = tuple((p.name, str(p.dtype), *map(str, p.shape)) for p in described)
        if signature not in self._made:
            values = self._values(params, described, device_of(request))
            self._made[signature] = Inputs([*map(_portable, values)], self._profile)
        return self._made[signature]

    def _values(self, params: list[Any], described: list[KernelParam], device: str) -> list[object]:
        if self._profile.supply_prog is not None:
            return list(self._profile.supply_prog(described))
        try:
            return make_inputs(params, self._profile.supply_type, device)
        except ArgumentError as error:
            raise ArgumentError(
                f"the autotuner can't make up the inputs: {error.message}",
                help="give them: `with set_autotune_inputs(...)` around the call, or supply_prog=",
            ) from None


def device_of(request: Request) -> str:
    """The device of a kernel's tensors, as torch names it."""
    return "cpu" if request.backend == EMULATOR else TORCH_DEVICES[request.target.kind.name]


def _portable(value: Any) -> Any:
    """A tensor of TVM's as one of numpy's, which can be sent."""
    is_foreign = hasattr(value, "numpy") and not hasattr(value, "clone")
    return value.numpy() if is_foreign else value


@dataclass(frozen=True)
class Plan:
    """The length of a measurement."""

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
    """The results of the first call, where they were asked for."""


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
