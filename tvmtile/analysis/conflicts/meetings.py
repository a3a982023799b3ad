"""An index of the elements of many accesses: which of them may touch a common one.

Most accesses of a long straight line touch elements of their own, and are never compared. Correctness
rests on: each access is taken in all its iterations, so what does not meet here never does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import tvm_ffi

from tvmtile.analysis.conflicts.comparison import is_by_axis
from tvmtile.analysis.conflicts.domain import Domain
from tvmtile.analysis.conflicts.enumeration import Enumeration
from tvmtile.analysis.conflicts.expressions import bits
from tvmtile.analysis.conflicts.iterations import Iterations
from tvmtile.analysis.conflicts.points import counts_of
from tvmtile.analysis.effects import Effect

_MAX_POINTS = 1 << 16  # of an access; finding out is not worth more
_CROWD = 32  # accesses of an element: which pairs meet there is not noted


class _Footprint(NamedTuple):
    """The elements that an access may touch."""

    kind: Hashable
    """The origin of coordinates; those of other kinds are not comparable."""
    coordinates: np.ndarray
    """A row an axis, a column a point."""
    first: np.ndarray
    last: np.ndarray
    """The threads that may touch the element."""


def meetings(
    accesses: Mapping[Effect, int], domain: Domain
) -> dict[Effect, Collection[Effect]] | None:
    """The accesses that may touch an element which different threads touch, and one writes.

    Each with those it may meet there. `accesses` says how often each is done; what is done once does
    not meet itself.

    Returns
    -------
    dict or None
        None where the elements of some can't be told, or compared.
    """
    footprints: list[_Footprint] = []
    for access in accesses:
        footprint = domain.cached(("footprint", access), partial(_footprint, access, domain))
        if footprint is None or footprint.kind != (footprints or [footprint])[0].kind:
            return None
        footprints.append(footprint)
    everyone = list(accesses)
    if not sum(len(each.first) for each in footprints):
        return {}
    who = np.repeat(np.arange(len(everyone)), [len(each.first) for each in footprints])
    place = _numbered(np.concatenate([each.coordinates for each in footprints], axis=1))
    order = np.argsort(place, kind="stable")
    who, place = who[order], place[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    first = np.concatenate([each.first for each in footprints])[order]
    last = np.concatenate([each.last for each in footprints])[order]
    is_shared = np.minimum.reduceat(first, starts) != np.maximum.reduceat(last, starts)
    is_written, is_in_flight, is_repeated = (
        np.logical_or.reduceat(np.array(flags)[who], starts)
        for flags in (
            [access.writes for access in everyone],
            [access.token is not None for access in everyone],
            [count > 1 for count in accesses.values()],
        )
    )
    several = np.minimum.reduceat(who, starts) != np.maximum.reduceat(who, starts)
    matters = is_written & (is_shared | is_in_flight) & (several | is_repeated)
    chosen = matters[place]
    met = np.unique(place[chosen] * len(everyone) + who[chosen])
    return _by_pairs(everyone, met // len(everyone), met % len(everyone))


def _by_pairs(
    everyone: list[Effect], place: np.ndarray, who: np.ndarray
) -> dict[Effect, Collection[Effect]]:
    """The accesses that each meets, of those at places, which are in order."""
    most = int(np.bincount(place).max()) if len(place) else 0
    if most > _CROWD:
        there = dict.fromkeys(everyone[number] for number in np.unique(who))
        return dict.fromkeys(there, there)
    pairs = [np.stack([who, who])]
    for apart in range(1, most):
        together = place[apart:] == place[:-apart]
        a, b = who[:-apart][together], who[apart:][together]
        pairs += [np.stack([a, b]), np.stack([b, a])]
    found: dict[Effect, dict[Effect, None]] = {}
    for a, b in np.unique(np.concatenate(pairs, axis=1), axis=1).T.tolist():
        found.setdefault(everyone[a], {})[everyone[b]] = None
    return dict(found)


def _numbered(coordinates: np.ndarray) -> np.ndarray:
    """A number from 0 on for each point, the same one where all its coordinates are."""
    number = np.zeros(coordinates.shape[1], np.int64)
    for axis in coordinates:
        _, of_axis = np.unique(axis, return_inverse=True)
        _, number = np.unique(number * (int(of_axis.max()) + 1) + of_axis, return_inverse=True)
    return number


def _footprint(access: Effect, domain: Domain) -> _Footprint | None:
    """The elements of all iterations of an access; None where either can't be told."""
    if access.start is None or access.indices is None:
        return None
    values, free = Iterations(access, access, {}, domain).values(0, {})
    if len(free) < len(values):  # of loops that are not enumerated
        return None
    size = bits(access.buffer)
    unit = math.gcd(size, access.bits_before)
    by_axis = is_by_axis(access)
    parts = size // unit
    counts = itertools.chain([domain.num_threads], counts_of(access, free, parts))
    if math.prod(counts) > _MAX_POINTS:
        return None
    touched = Enumeration(access, values, free, parts, domain, by_axis=by_axis)
    points = touched.points
    found = []
    for number in range(touched.num_coordinates):
        coordinate = touched.coordinate(number)
        if coordinate is None:
            return None
        found.append(coordinate)
    terms = tuple(None if each.term is None else tvm_ffi.StructuralKey(each.term) for each in found)
    view = tvm_ffi.StructuralKey(access.buffer.ty) if by_axis else None
    kind = (access.start.buffer, unit, access.bits_before if by_axis else None, view, terms)
    coordinates = np.empty((len(found), len(points)), np.int64)
    for row, each in zip(coordinates, found, strict=True):
        row[:] = each.numbers
    return _Footprint(kind, coordinates, points.first, points.last)
