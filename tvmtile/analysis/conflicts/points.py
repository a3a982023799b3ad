"""Accesses as points: every thread, iteration, lane and place in a block, in arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir

from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.conflicts.domain import Domain
from tvmtile.analysis.conflicts.expressions import lanes
from tvmtile.analysis.effects import Effect
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP

_MAX_POINTS = 1 << 21


class TooMany(Exception):
    """More points than are worth enumerating."""


@dataclass(frozen=True)
class Free:
    """Iterations of a loop that are enumerated."""

    var: ir.Var
    """Counts the iterations, from 0."""
    numbers: Any
    """The numbers to look at."""
    inside: ir.Expr
    """Holds where there is such an iteration."""


@dataclass
class Points:
    """An access at all of its threads, iterations, lanes and places."""

    threads: np.ndarray
    """The number of the thread at each point."""
    iterations: dict[ir.Var, np.ndarray]
    """The values of loops' variables."""
    lanes: Any
    parts: Any
    """The lane of a vector, and the part of an element."""
    offsets: list[Any]
    """The place in the access's block, an array an axis."""
    first: Any
    last: Any
    """The threads that may touch the element: one, or those of a simdgroup."""

    def __len__(self) -> int:
        return len(self.first)

    def where(self, mask: np.ndarray) -> Points:
        """The points at which a mask holds."""
        if mask.all():
            return self
        return Points(
            self.threads[mask],
            {var: values[mask] for var, values in self.iterations.items()},
            self.lanes[mask],
            self.parts[mask],
            [offset[mask] for offset in self.offsets],
            self.first[mask],
            self.last[mask],
        )


def counts_of(access: Effect, free: list[Free], parts: int) -> list[int]:
    """A thread's numbers of iterations, lanes, parts of elements and places of an access."""
    assert access.indices is not None
    vector = max(map(lanes, access.indices))
    block = (extent for extent, _ in access.block)
    return [*(len(each.numbers) for each in free), vector, parts, *block]


def points_of(
    access: Effect, free: list[Free], parts: int, domain: Domain, among: np.ndarray
) -> Points:
    """Enumerate the threads, iterations, lanes, parts of elements and places of an access.

    `among` tells of each of the domain's threads whether to look at it.

    Raises
    ------
    TooMany
        If there are more than a few million.
    """
    threads, first, last = (each[among] for each in domain.threads(access))
    counts = [len(threads), *counts_of(access, free, parts)]
    if math.prod(counts) > _MAX_POINTS:
        raise TooMany
    who, *others = np.indices(counts).reshape(len(counts), -1)
    values = {each.var: each.numbers[index] for each, index in zip(free, others, strict=False)}
    lane, part, *offsets = others[len(free) :]
    return Points(threads[who], values, lane, part, offsets, first[who], last[who])


@dataclass(frozen=True)
class Owners:
    """The first and the last thread that touch each of some elements; -1 is the last one of none."""

    first: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, elements: np.ndarray, count: int, points: Points) -> Owners:
        """Group points by their elements, which are numbers below a count."""
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        np.minimum.at(first, elements, points.first)
        np.maximum.at(last, elements, points.last)
        return cls(first, last)


def have_common(earlier: Owners, later: Owners) -> bool:
    """Tell whether there is an element that both have, whichever threads touch it."""
    return bool((np.minimum(earlier.last, later.last) >= 0).any())


def conflict_scope(earlier: Owners, later: Owners) -> ConflictScope:
    """The scope of the conflicts at elements that both have."""
    common = np.minimum(earlier.last, later.last) >= 0
    first = np.minimum(earlier.first, later.first)[common]
    last = np.maximum(earlier.last, later.last)[common]
    if not (first != last).any():
        return ConflictScope.NONE
    for scope, count in ((ConflictScope.WARP, WARP_SIZE), (ConflictScope.WARPGROUP, WARPGROUP)):
        if (first // count == last // count).all():
            return scope
    return ConflictScope.BLOCK
