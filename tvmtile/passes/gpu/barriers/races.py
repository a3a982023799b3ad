"""Which accesses may race at all, whatever elements they touch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from tvm import ir

from tvmtile.analysis.conflicts.dependence import Collision
from tvmtile.analysis.effects import Access


class Race(Exception):
    """Two accesses that no barrier separates, or no wait for an asynchronous copy."""

    def __init__(
        self, earlier: Access, later: Access, *, in_flight: Collision = Collision.NEVER
    ) -> None:
        super().__init__("race")
        self.earlier = earlier
        self.later = later
        self.in_flight = in_flight


def may_race(a: Access, b: Access) -> bool:
    """Tell whether threads that do two accesses of one element would have to wait for each other."""
    if a.root is not b.root or not (a.writes or b.writes):
        return False
    if a.groups and not set(a.groups).isdisjoint(b.groups):
        return False  # threads of one group, whose own barriers order them
    if a.hands_over and b.hands_over:
        return False  # the groups run at the same time, and barriers by number order them
    return not (a.is_atomic and b.is_atomic)


def contested(*accesses: Iterable[Access]) -> set[ir.Var]:
    """The buffers of which two accesses may race: what only one group does is ordered by itself."""
    kinds: dict[ir.Var, dict[Any, Access]] = {}
    for each in itertools.chain(*accesses):
        kind = (each.writes, each.is_atomic, each.groups, each.hands_over)
        kinds.setdefault(each.root, {}).setdefault(kind, each)
    pairs = itertools.combinations_with_replacement
    return {
        root for root, of in kinds.items() if any(may_race(*two) for two in pairs(of.values(), 2))
    }
