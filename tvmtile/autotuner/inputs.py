"""Inputs that a kernel is measured with, and the results that it must return."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tvmtile.autotuner.capture import get_autotune_inputs
from tvmtile.autotuner.settings import ProfileArgs
from tvmtile.errors import ArgumentError
from tvmtile.jit.backends import EMULATOR
from tvmtile.jit.compiler import Request
from tvmtile.jit.signature import KernelParam
from tvmtile.profiler import as_list, compare, do_bench, make_inputs
from tvmtile.target import TORCH_DEVICES


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
        """Whether there is something that results are compared with."""
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
    """Where the tensors of a kernel are, as torch names it."""
    return "cpu" if request.backend == EMULATOR else TORCH_DEVICES[request.target.kind.name]


def _portable(value: Any) -> Any:
    """A tensor of TVM's as one of numpy's, which can be sent."""
    is_foreign = hasattr(value, "numpy") and not hasattr(value, "clone")
    return value.numpy() if is_foreign else value
