"""Computations whose cuts into blocks a model can rank."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tvmtile.carver.arch import TileDevice, auto_infer_current_arch
from tvmtile.carver.model import Work, seconds
from tvmtile.carver.roller import Hint

_Template = TypeVar("_Template", bound="BaseTemplate")


def bytes_of(dtype: Any) -> int:
    """Bytes of an element, one at least."""
    digits = "".join(c for c in str(dtype).partition("_")[0] if c.isdigit())
    return max(1, int(digits or 8) // 8)


def powers(first: int, last: int) -> list[int]:
    """Powers of two from the first to the last."""
    return [1 << i for i in range(first.bit_length() - 1, last.bit_length())]


class BaseTemplate(ABC):
    """A computation; `with_arch` says where it runs, `recommend_hints` how to cut it."""

    _arch: TileDevice | None = None

    def with_arch(self: _Template, arch: TileDevice) -> _Template:
        """Say on what device it runs. The template itself is returned."""
        self._arch = arch
        return self

    @property
    def arch(self) -> TileDevice:
        """The device; this machine's where none was given."""
        if self._arch is None:
            self._arch = auto_infer_current_arch()
        return self._arch

    @abstractmethod
    def equivalent_function(self) -> Any:
        """The computation as a `PrimFunc` of TVM's, without any cut."""

    @abstractmethod
    def candidates(self) -> Iterator[tuple[Hint, Work]]:
        """All cuts, with what a block of each does."""

    def recommend_hints(self, topk: int = 10) -> list[Hint]:
        """The cuts that the model takes for the best, the best first.

        Parameters
        ----------
        topk : int
            How many, at most.
        """
        ranked = [
            replace(hint, seconds=seconds(work, self.arch)) for hint, work in self.candidates()
        ]
        possible = [hint for hint in ranked if math.isfinite(hint.seconds)]
        return sorted(possible, key=lambda hint: hint.seconds)[:topk]
