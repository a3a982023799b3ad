"""Which parts of a body must wait for all threads to finish another part."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvmtile.analysis.effects import effects_of
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.ir.scopes import is_of_block


class Accesses:
    """How a piece of code uses the tiles that threads share."""

    def __init__(self, variance: ThreadVariance) -> None:
        self._variance = variance
        self._uses: dict[ir.Var, set[str]] = {}

    def add(self, node: Any) -> Accesses:
        """Take in the accesses of a statement or an expression."""
        for access in effects_of(node):
            if not is_of_block(access.buffer):
                continue
            uses = self._uses.setdefault(self._variance.root(access.buffer), set())
            if access.reads:
                uses.add("read")
            if access.writes:
                is_element = access.operator is not None and not access.operator.is_tile
                uses.add("update" if is_element else "write")
        return self

    def conflicts(self, later: Accesses) -> bool:
        """Tell whether later code must wait for all threads to finish this."""
        return any(
            _ordered(self._uses[buffer], uses)
            for buffer, uses in later._uses.items()
            if buffer in self._uses
        )

    def conflicts_with_itself(self) -> bool:
        """Tell whether an iteration must wait for the one before."""
        # Iterations that only write a tile would race on a GPU too, unless they write different places.
        return any(len(uses) > 1 for uses in self._uses.values())


def _ordered(before: set[str], after: set[str]) -> bool:
    return before | after not in ({"read"}, {"update"})
