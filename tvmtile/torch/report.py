"""The report of `replace`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Entry", "Report"]


@dataclass(frozen=True)
class Entry:
    """One module, or the functions that its forward calls.

    Attributes
    ----------
    name : str
        Where it is in the model, as `named_modules` says.
    operator : str
        Of `tvmtile.ops`, with the activation that is part of it.
    shapes : str
        Of the tensors that it was tried on.
    reason : str
        Why it was left as it is; empty where it was replaced.
    error : float
        The largest difference from torch's result or gradients, relative to their largest element.
    milliseconds, torch_milliseconds : float
        Of a forward on the sample, in training mode with the backward; 0 where nothing was measured.
    """

    name: str
    operator: str
    shapes: str
    reason: str = ""
    error: float = 0.0
    milliseconds: float = 0.0
    torch_milliseconds: float = 0.0

    @property
    def speed(self) -> float:
        """Times torch's speed; 0 where nothing was measured."""
        return self.torch_milliseconds / self.milliseconds if self.milliseconds else 0.0


@dataclass
class Report:
    """The modules that `replace` replaced, and those that it left; printed, a table.

    Attributes
    ----------
    entries : list of Entry
        All that could have been replaced.
    """

    entries: list[Entry]
    _modules: Sequence[Any] = field(default=(), repr=False)

    @property
    def replaced(self) -> list[Entry]:
        """The entries of modules that run by kernels now."""
        return [entry for entry in self.entries if not entry.reason]

    @property
    def left(self) -> list[Entry]:
        """The entries of modules that are as they were, each with the reason."""
        return [entry for entry in self.entries if entry.reason]

    def restore(self) -> None:
        """Bring the model's own forwards back."""
        for module in self._modules:
            module.__dict__.pop("forward", None)
        self._modules = ()

    def __str__(self) -> str:
        rows = [("module", "operator", "sample", "error", "ms", "torch's ms", "speed", "")]
        for entry in self.entries:
            measured = (
                (f"{entry.error:.1e}", f"{entry.milliseconds:.3f}",
                 f"{entry.torch_milliseconds:.3f}", f"{entry.speed:.2f}")
                if entry.milliseconds else ("", "", "", "")
            )  # fmt: skip
            outcome = f"left: {entry.reason}" if entry.reason else "replaced"
            rows.append((entry.name, entry.operator, entry.shapes, *measured, outcome))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, f"{len(self.replaced)} of {len(self.entries)} replaced"])
