"""Arguments of a model's modules, and of functions that they call, recorded for sample inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tvmtile.torch.forwards import FUNCTIONS


@dataclass(frozen=True)
class Call:
    """Copies of what something was given, which require a gradient where the originals do."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, object]

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """A call, copied."""
        return cls(tuple(map(_copied, args)), {k: _copied(v) for k, v in kwargs.items()})

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [x for x in (*self.args, *self.kwargs.values()) if isinstance(x, Tensor)]


def _copied(value: object) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


@dataclass
class Recording:
    """The first call of each module and, by the module that makes it, of each function."""

    modules: dict[nn.Module, Call] = field(default_factory=dict)
    """The first call of each wanted module."""
    functions: dict[tuple[nn.Module, Any], Call] = field(default_factory=dict)
    """By the module and torch's function."""
    counts: Counter[nn.Module] = field(default_factory=Counter)
    """How often each module was called."""


def record(
    model: nn.Module,
    wanted: Sequence[nn.Module],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Recording:
    """Call a model, and keep what the wanted modules and the known functions are given."""
    recording, stack = Recording(), [model]

    def enter(module: nn.Module, given: Any, named: Any) -> None:
        stack.append(module)
        recording.counts[module] += 1
        if module in wanted and module not in recording.modules:
            recording.modules[module] = Call.of(given, named)

    def leave(module: nn.Module, given: object, result: object) -> None:
        del module, given, result
        stack.pop()

    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with torch.enable_grad(), _Functions(recording, stack):
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return recording


class _Functions(TorchFunctionMode):
    def __init__(self, recording: Recording, stack: Sequence[nn.Module]) -> None:
        super().__init__()
        self._recording, self._stack = recording, stack

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        key = (self._stack[-1], func)
        if func in FUNCTIONS and key not in self._recording.functions:
            self._recording.functions[key] = Call.of(args, kwargs or {})
        return func(*args, **(kwargs or {}))
