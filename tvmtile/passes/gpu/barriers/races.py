"""The accesses that may race at all, whatever elements they touch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from tvm import ir

from tvmtile.analysis.conflicts.dependence import Collision
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Effect
from tvmtile.ir.threads import Group


class Race(Exception):
    """Two accesses that no barrier separates, or no wait for an asynchronous copy."""

    def __init__(
        self,
        earlier: Effect,
        later: Effect,
        *,
        in_flight: Collision = Collision.NEVER,
        in_statement: bool = False,
    ) -> None:
        super().__init__("race")
        self.earlier = earlier
        self.later = later
        self.in_flight = in_flight
        self.in_statement = in_statement


def may_race(a: Effect, b: Effect) -> bool:
    """Tell whether threads that do two accesses of one element would have to wait for each other."""
    if a.root is not b.root or not (a.writes or b.writes):
        return False
    if a.groups and not set(a.groups).isdisjoint(b.groups):
        return False  # threads of one group, whose own barriers order them
    if a.hands_over and b.hands_over:
        return False  # the groups run at the same time, and barriers by number order them
    return not (a.is_atomic and b.is_atomic)


def exchanges(group: Group, accesses: Iterable[Effect]) -> bool:
    """Tell whether threads of a group may race with each other, by some of a kernel's accesses.

    In the regions of groups in it they do not: these have barriers of their own.
    """
    of_roots: dict[ir.Var, dict[Any, Effect]] = {}
    for each in accesses:
        if group in each.groups:
            inner = each.groups[each.groups.index(group) + 1 :]
            kind = (each.writes, each.is_atomic, inner)
            of_roots.setdefault(each.root, {})[kind] = each
    return any(
        (a_writes or b_writes) and not (a_is_atomic and b_is_atomic) and set(x).isdisjoint(y)
        for kinds in of_roots.values()
        for (a_writes, a_is_atomic, x), (b_writes, b_is_atomic, y) in (
            itertools.combinations_with_replacement(kinds, 2)
        )
    )


def rivals(
    accesses: Iterable[Effect], depth: int, footprints: Footprints
) -> dict[Effect, Collection[Effect]]:
    """The others that each access may race with; those that may race with none are left out.

    They are what happens within as many loops as `depth`.
    """
    of_roots: dict[ir.Var, Counter[Effect]] = {}
    for each in accesses:
        repeats = len(each.loops) > depth
        of_roots.setdefault(each.root, Counter())[each] += 2 if repeats else 1
    found: dict[Effect, Collection[Effect]] = {}
    for counts in of_roots.values():
        if _may_any_race(counts):
            found |= footprints.meetings(counts)
    return found


def _may_any_race(accesses: Iterable[Effect]) -> bool:
    """Tell whether two of them may: what only one group does is ordered by itself."""
    kinds: dict[Any, Effect] = {}
    for each in accesses:
        kind = (each.writes, each.is_atomic, each.groups, each.hands_over)
        kinds.setdefault(kind, each)
    pairs = itertools.combinations_with_replacement(kinds.values(), 2)
    return any(may_race(*pair) for pair in pairs)
