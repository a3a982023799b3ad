"""How configurations are compiled and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtile.profiler import TensorSupplyType
from tvmtile.target import TargetLike


@dataclass(frozen=True)
class CompileArgs:
    """How configurations are compiled."""

    out_idx: int | Sequence[int] | None = None
    target: TargetLike | None = None
    execution_backend: str | None = "auto"
    pass_configs: Mapping[str, object] | None = None
    """As of `tvmtile.compile`."""


@dataclass(frozen=True)
class ProfileArgs:
    """Inputs and checks of configurations that are measured."""

    supply_type: TensorSupplyType = TensorSupplyType.Auto
    """What the inputs hold where they are made here."""
    ref_prog: Callable[..., object] | None = None
    """Takes the inputs, returns what the kernel must return. It is measured too."""
    supply_prog: Callable[..., Any] | None = None
    """Takes the descriptions of the inputs, a list of `KernelParam`, and returns the inputs."""
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    """As of `tvmtile.testing.torch_assert_close`."""
    skip_check: bool = False
    """Measure the reference only."""
    manual_check_prog: Callable[..., object] | None = None
    """Takes the lists of the kernel's and of the reference's results; raises where they differ."""
