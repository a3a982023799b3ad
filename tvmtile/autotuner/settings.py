"""How configurations are compiled and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtile.profiler import TensorSupplyType
from tvmtile.target import TargetLike

__all__ = ["CompileArgs", "ProfileArgs"]


@dataclass(frozen=True)
class CompileArgs:
    """How configurations are compiled.

    Attributes
    ----------
    out_idx, target, execution_backend, pass_configs
        As of `tvmtile.compile`.
    """

    out_idx: int | Sequence[int] | None = None
    target: TargetLike | None = None
    execution_backend: str | None = "auto"
    pass_configs: Mapping[str, object] | None = None


@dataclass(frozen=True)
class ProfileArgs:
    """What configurations are measured with, and how their results are checked.

    Attributes
    ----------
    supply_type : TensorSupplyType
        What the inputs hold where they are made here.
    ref_prog : callable, optional
        Takes the inputs, returns what the kernel must return. It is measured too.
    supply_prog : callable, optional
        Takes the descriptions of the inputs, a list of `KernelParam`, and returns the inputs.
    rtol, atol, max_mismatched_ratio : float
        As of `tvmtile.testing.torch_assert_close`.
    skip_check : bool
        Measure the reference only.
    manual_check_prog : callable, optional
        Takes the lists of the kernel's and of the reference's results; raises where they differ.
    """

    supply_type: TensorSupplyType = TensorSupplyType.Auto
    ref_prog: Callable[..., object] | None = None
    supply_prog: Callable[..., Any] | None = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    manual_check_prog: Callable[..., object] | None = None
