"""A kernel as an operator of torch's own, for calls that torch has to see.

A trace, a dispatch mode, a fake tensor and a tensor that stands for the negative of its memory are
torch's business: it knows what to do with an operator whose schema says what is written. So a kernel
that meets one is registered as an operator of the namespace `tvmtile`, and called through torch's
dispatcher. It is done where it is first needed, since it takes milliseconds.

Imported only where torch has been.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._C import _functorch
from torch.library import custom_op

from tvmtile.errors import ArgumentError

_COUNT = itertools.count()


def is_wrapper(tensor: object) -> bool:
    """Tell whether a tensor is one that has no memory, but says what operators do to it."""
    if not isinstance(tensor, torch.Tensor):
        return False
    disabled = torch._C._disabled_torch_dispatch_impl
    return getattr(
        type(tensor), "__torch_dispatch__", disabled
    ) is not disabled or _functorch.is_functorch_wrapped_tensor(tensor)


class Operators:
    """The operators of a kernel: one for each way to give its arguments."""

    def __init__(self, launch: Callable[..., object], name: str, written: Collection[int]) -> None:
        self._launch = launch
        self._name = name
        self._written = written
        self._operators: dict[tuple[str, ...], Any] = {}

    def __call__(self, *args: Any) -> None:
        """Call the kernel through torch's dispatcher.

        Raises
        ------
        ArgumentError
            If a transform of `torch.func` is at work, which a kernel has no rule for.
        """
        if any(
            isinstance(a, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(a) for a in args
        ):
            raise ArgumentError(
                f"{self._name}: vmap, grad and other transforms of torch.func can't look into a kernel",
                help="call it in a torch.autograd.Function that says what its vmap, jvp and backward "
                "are",
            )
        values = [_value(arg) for arg in args]
        types = tuple(map(_type, values))
        operator = self._operators.get(types)
        if operator is None:
            operator = self._operators[types] = self._operator(types)
        operator(*values)

    def _operator(self, types: tuple[str, ...]) -> Any:
        parameters = [
            f"Tensor(a{i}!) p{i}" if kind == "Tensor" and i in self._written else f"{kind} p{i}"
            for i, kind in enumerate(types)
        ]
        operator = custom_op(
            f"tvmtile::{self._name}_{next(_COUNT)}",
            self._launch,
            mutates_args=[f"p{i}" for i in self._written if types[i] == "Tensor"],
            schema=f"({', '.join(parameters)}) -> ()",
        )
        operator.register_fake(lambda *_: None)
        return operator


def _value(arg: object) -> Any:
    """An argument as torch takes it."""
    if arg is None or isinstance(arg, torch.Tensor | torch.SymInt | int | float):
        return arg
    if getattr(arg, "ndim", 0):
        return torch.from_dlpack(arg)  # of numpy or TVM, in place
    return arg.item() if hasattr(arg, "item") else arg


def _type(value: object) -> str:
    """What a schema calls an argument."""
    if value is None:
        return "Tensor?"
    if isinstance(value, torch.Tensor):
        return "Tensor"
    return "float" if isinstance(value, float) else "SymInt"
