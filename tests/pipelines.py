"""What tests of programs with small integers share: a program, its arguments and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Run:
    """A program, its arguments but the last one, which is written, and what that is then."""

    program: Any
    arguments: tuple[torch.Tensor, ...]
    expected: torch.Tensor

    def check(self, kernel: Any, device: str = "cpu") -> None:
        """Compare what a kernel of the program computes."""
        result = torch.full(self.expected.shape, 77, dtype=self.expected.dtype, device=device)
        kernel(*(argument.to(device) for argument in self.arguments), result)
        assert torch.equal(result.cpu(), self.expected)


def named_in(table: dict[str, Callable[..., Run]]) -> Callable[..., Callable[..., Run]]:
    """A decorator that puts a function into a table, by its name."""

    def add(function: Callable[..., Run]) -> Callable[..., Run]:
        table[function.__name__] = function
        return function

    return add


def numbers(*shape: int, dtype: str = "float16") -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(getattr(torch, dtype))


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).float()
