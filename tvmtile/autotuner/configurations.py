"""Configurations of a kernel in the forms that a user may write; how each is compiled and measured."""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtile.errors import InvalidOperand, InvalidValue
from tvmtile.profiler import TensorSupplyType
from tvmtile.target import TargetLike


@dataclass(frozen=True)
class CompileArgs:
    """The options of `tvmtile.compile` for configurations."""

    out_idx: int | Sequence[int] | None = None
    target: TargetLike | None = None
    execution_backend: str | None = "auto"
    pass_configs: Mapping[str, object] | None = None
    """As of `tvmtile.compile`."""


@dataclass(frozen=True)
class ProfileArgs:
    """Inputs and checks of configurations that are measured."""

    supply_type: TensorSupplyType = TensorSupplyType.Auto
    """The contents of inputs that are made here."""
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


Configuration = dict[str, Any]

AUTO = "auto"
"""The configurations that a model proposes."""

PASS_CONFIGS = "pass_configs"
"""The key of a configuration that holds options of passes, not a parameter of the kernel."""


Parameters = Mapping[str, inspect.Parameter]


def expanded(
    configs: Any, parameters: Parameters, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[Configuration]:
    """A list of configurations, each checked against the kernel's parameters.

    A mapping stands for all combinations of its values. A callable is called with the arguments of the
    kernel, of those by name with what it takes, and returns one of the others.

    Raises
    ------
    InvalidOperand
        If it is none of these.
    InvalidValue
        If there is none, or one has a key that is no parameter.
    """
    if callable(configs):
        configs = configs(*args, **_accepted(configs, kwargs))
    if isinstance(configs, Mapping):
        configs = _combinations(configs)
    try:
        found = [dict(config) for config in configs]
    except (TypeError, ValueError):
        raise InvalidOperand(
            f"configs is a {type(configs).__name__}",
            help="give a list of dicts, a dict of lists, a function that returns one, or 'auto'",
        ) from None
    if not found:
        raise InvalidValue("there are no configurations to tune", help="configs must not be empty")
    if not _takes_any(parameters):
        _check(found, list(parameters))
    return found


def _accepted(
    function: Callable[..., object], kwargs: Mapping[str, object]
) -> Mapping[str, object]:
    """The arguments by name that a function takes: it need not know what is tuned."""
    parameters = inspect.signature(function).parameters
    if _takes_any(parameters):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}


def _takes_any(parameters: Parameters) -> bool:
    """Tell whether a function takes arguments of any name: `**kwargs`."""
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _combinations(choices: Mapping[str, Iterable[Any]]) -> Iterable[Configuration]:
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def _check(configs: list[Configuration], parameters: list[str]) -> None:
    for name in {name: None for config in configs for name in config}:
        if name == PASS_CONFIGS or name in parameters:
            continue
        near = difflib.get_close_matches(name, parameters, n=1)
        raise InvalidValue(
            f"a configuration has {name!r}, which is no parameter of the kernel",
            help=(f"did you mean {near[0]!r}? " if near else "")
            + f"Its parameters are {', '.join(parameters)}",
        )
