"""Footprints of accesses, and conflicts between them: two threads touch one element.

The threads, and the loops that only one of the accesses knows, are enumerated: the indices are
evaluated for all of them with numpy, so swizzles, divisions and bit operations are nothing special.
What is the same for all threads (blocks, sizes, the loops around both accesses) stays symbolic: an
index is an array plus a symbolic term, and what counts is the difference of the two terms. Where
that is not a constant, the loops are looked at iteration by iteration, or by the remainder of the
iteration's number, which decides which copy of a multi-buffered tile it uses.

Correctness rests on: an index that can't be evaluated is taken to be able to have any value, and a
condition that can't be evaluated to hold.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir

from tvmtile.analysis.conflicts.comparison import Comparison
from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope, Distance
from tvmtile.analysis.conflicts.domain import Domain
from tvmtile.analysis.conflicts.iterations import Case, Iterations
from tvmtile.analysis.conflicts.meetings import meetings
from tvmtile.analysis.conflicts.points import TooMany
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.errors import SourceLocation
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.kernels import Launch
from tvmtile.ir.rewriting import contains, variables_of
from tvmtile.ir.threads import WARP_SIZE

_FEW = 16  # accesses of a buffer: all pairs of them are compared


class Footprints:
    """Compares accesses of a kernel; `uniform` names have one value for all threads of a block."""

    def __init__(self, launch: Launch, uniform: set[ir.Var]) -> None:
        self._domain = Domain(launch, uniform)
        self._threads: dict[Effect, int] = {}
        self._where: dict[Any, int | None] = {}
        self._known: dict[Any, ConflictScope] = {}
        self._collisions: dict[Any, Collision] = {}
        self._apart: dict[tuple[Effect, Effect], bool] = {}
        self._alike: dict[Any, tuple[Effect, dict[tvm_ffi.StructuralKey, Effect]]] = {}
        self._first: dict[Effect, Effect] = {}
        self._of_lines: dict[tuple[Effect, SourceLocation | None], Effect] = {}

    @property
    def all_threads(self) -> int:
        """The threads of a block, a bit each."""
        return (1 << self._domain.num_threads) - 1

    def threads_of(self, access: Effect) -> int:
        """The threads that may do an access, a bit each."""
        if access not in self._threads:
            self._threads[access] = self._holding(access.conditions, unknown=True)
        return self._threads[access]

    def threads_where(self, conditions: Iterable[ir.Expr]) -> int:
        """The threads for which conditions on them certainly hold, a bit each."""
        return self._holding(conditions, unknown=False)

    def is_scattered(self, access: Effect) -> bool:
        """Tell whether values that threads load say which elements an access touches."""
        loops = {loop.var for loop in access.loops}
        names = [name for name in variables_of(access.indices or ()) if name not in loops]
        return contains(access.indices, ir.TensorLoad) or any(map(self._domain.is_loaded, names))

    def in_rows(self, earlier: Effect, later: Effect) -> list[ir.Expr]:
        """Assumptions about loaded values, by which threads keep to rows of their own.

        None, where threads would touch each other's elements all the same.
        """
        known = [self._in_rows(access) for access in (earlier, later)]
        pair = [
            access.changed(conditions=(*access.conditions, *rows))
            for access, rows in zip((earlier, later), known, strict=True)
        ]
        assumed = [*known[0], *known[1]]
        are_apart = assumed and self.conflict(pair[0], pair[1], {}) == ConflictScope.NONE
        return assumed if are_apart else []

    def _in_rows(self, access: Effect) -> list[ir.Expr]:
        bits = self.threads_of(access)
        threads = [number for number in range(self._domain.num_threads) if bits >> number & 1]
        return self._domain.rows_of(access, np.array(threads, int))

    def are_alike_in_warps(self, expression: ir.Expr) -> bool:
        """Tell whether an expression of the thread's index has one value in each warp."""
        count = self._domain.num_threads
        value = self._domain.by_threads(expression, np.arange(count))
        if value is None or value.term is not None:
            return False
        numbers = np.broadcast_to(np.asarray(value.numbers), count)
        return bool((numbers == numbers[np.arange(count) // WARP_SIZE * WARP_SIZE]).all())

    def warps_of(self, threads: int) -> int:
        """All threads of the warps that some are of."""
        warp = (1 << WARP_SIZE) - 1
        masks = (warp << first for first in range(0, self._domain.num_threads, WARP_SIZE))
        found = functools.reduce(operator.or_, (mask for mask in masks if mask & threads), 0)
        return found & self.all_threads

    def _holding(self, conditions: Iterable[Any], *, unknown: bool) -> int:
        threads = self.all_threads
        for condition in (part for each in conditions for part in conjuncts(each)):
            if condition not in self._where:
                self._where[condition] = self._threads_with(condition)
            holding = self._where[condition]
            if holding is not None:
                threads &= holding
            elif not unknown:
                return 0
        return threads

    def _threads_with(self, condition: ir.Expr) -> int | None:
        """The threads for which a condition holds, a bit each; None where they can't be told."""
        count = self._domain.num_threads
        value = self._domain.by_threads(condition, np.arange(count))
        if value is None or value.term is not None:
            return None
        holds = np.broadcast_to(np.asarray(value.numbers, bool), count)
        return int.from_bytes(np.packbits(holds, bitorder="little").tobytes(), "little")

    def first_like(self, access: Effect) -> Effect:
        """The first access of the same elements in the same way, which conflicts with the same others.

        Loops that are written out access one tile in many places, often the same elements. Those of
        different lines are kept apart, for the sake of messages, but compared once.
        """
        kind = (
            (access.buffer, access.start, access.loops, access.groups, access.hands_over),
            (access.writes, access.is_atomic, access.is_collective, access.is_gathered),
            (access.is_opaque, access.token, access.mbarrier),
            None if access.indices is None else len(access.indices),
            tuple(extent for extent, _ in access.block),
        )
        first, alike = self._alike.setdefault(kind, (access, {}))
        if first is not access:
            if not alike:
                alike[self._canonical(first)] = first
            first = alike.setdefault(self._canonical(access), access)
        self._first[access] = first
        return self._of_lines.setdefault((first, access.location), access)

    def _canonical(self, access: Effect) -> tvm_ffi.StructuralKey:
        """A key that says which elements an access touches, simplified."""
        used = [*(access.indices or ()), *(stride for _, stride in access.block)]
        on = [] if access.completes_on is None else [access.completes_on]
        return tvm_ffi.StructuralKey(
            [[*map(self._domain.canonical, used)], [*access.conditions], on]
        )

    def meetings(self, accesses: Mapping[Effect, int]) -> dict[Effect, Collection[Effect]]:
        """The others that each access of a buffer may touch elements of.

        How often an access is done is 1 only where it can't meet itself.
        """
        found = meetings(accesses, self._domain) if len(accesses) > _FEW else None
        return dict.fromkeys(accesses, accesses) if found is None else found

    def conflict(
        self, earlier: Effect, later: Effect, distances: Mapping[Loop, Distance]
    ) -> ConflictScope:
        """Tell whether two different threads touch one element, in the two accesses.

        `distances` are theirs along loops; any, for loops that are not in it.
        """
        known = _relevant(distances, earlier, later)
        earlier, later = (self._first.get(each, each) for each in (earlier, later))
        key = (earlier, later, known)
        if key not in self._known:
            self._known[key] = self._found(earlier, later, dict(known))
            if all(distance == Distance.SAME for _, distance in known):
                self._known[later, earlier, known] = self._known[key]
        return self._known[key]

    def collision(
        self, copy: Effect, later: Effect, distances: Mapping[Loop, Distance]
    ) -> Collision:
        """Tell whether an access touches an element that a copy in flight touches too.

        The thread that has issued the copy may be the one that touches it, or another one.
        """
        if not copy.root.same_as(later.root):
            return Collision.NEVER
        if not copy.is_comparable(later):
            return Collision.POSSIBLE
        known = _relevant(distances, copy, later)
        copy, later = (self._first.get(each, each) for each in (copy, later))
        key = (copy, later, known)
        if key not in self._collisions:
            self._collisions[key] = self._collision(copy, later, dict(known))
        return self._collisions[key]

    def _collision(self, copy: Effect, later: Effect, distances: dict[Loop, Distance]) -> Collision:
        iterations = Iterations(copy, later, distances, self._domain)
        comparison = Comparison(copy, later, iterations, self._domain)

        def of_any(cases: dict[Loop, Case]) -> tuple[bool, bool]:
            return comparison.collision(cases)

        def of_two(cases: dict[Loop, Case]) -> tuple[bool, bool]:
            is_known = comparison.collision(cases)[1]
            scope, is_exact = comparison.conflict(cases)
            return scope != ConflictScope.NONE, is_known and is_exact

        found = _certainty(of_any, iterations, {}, iterations.decisive)
        if found == Collision.NEVER:
            return found
        found = _certainty(of_two, iterations, {}, iterations.decisive)
        ordered = Iterations(copy, later, distances, self._domain, by_one_thread=True)
        own = Comparison(copy, later, ordered, self._domain)

        def of_one(cases: dict[Loop, Case]) -> tuple[bool, bool]:
            return own.collision(cases, by_one_thread=True)

        return max(found, _certainty(of_one, ordered, {}, ordered.decisive))

    def _found(
        self, earlier: Effect, later: Effect, distances: dict[Loop, Distance]
    ) -> ConflictScope:
        if not earlier.root.same_as(later.root):
            return ConflictScope.NONE
        if not earlier.is_comparable(later):
            return self._domain.worst
        iterations = Iterations(earlier, later, distances, self._domain)
        if iterations.have_many_cases and self._are_apart(earlier, later):
            return ConflictScope.NONE
        comparison = Comparison(earlier, later, iterations, self._domain)
        return self._refined(comparison, iterations, {}, iterations.decisive)

    def _are_apart(self, earlier: Effect, later: Effect) -> bool:
        """Tell whether no two threads touch one element, whatever the iterations."""
        key = (earlier, later)
        if key not in self._apart:
            iterations = Iterations(earlier, later, {}, self._domain)
            comparison = Comparison(earlier, later, iterations, self._domain)
            self._apart[key] = self._refined(comparison, iterations, {}, []) == ConflictScope.NONE
        return self._apart[key]

    def _refined(
        self,
        comparison: Comparison,
        iterations: Iterations,
        cases: dict[Loop, Case],
        loops: list[Loop],
    ) -> ConflictScope:
        """Compare, and where that remains open go through the cases of one loop after the other."""
        try:
            scope, is_exact = comparison.conflict(cases)
        except TooMany:
            return self._domain.worst
        if scope == ConflictScope.NONE or is_exact:
            return scope
        for number, loop in enumerate(loops):
            possible = iterations.cases_of(loop, cases)
            for each in possible:
                found = (
                    self._refined(
                        comparison, iterations, {**cases, loop: case}, loops[number + 1 :]
                    )
                    for case in each
                )
                scope = _largest(found, scope)
                if scope == ConflictScope.NONE:
                    break
            if possible:
                break
        return scope


def _relevant(
    distances: Mapping[Loop, Distance], earlier: Effect, later: Effect
) -> frozenset[tuple[Loop, Distance]]:
    """The distances along loops whose iterations decide which elements are touched."""
    return frozenset(
        (loop, distance)
        for loop, distance in distances.items()
        if loop in earlier.decisive_loops or loop in later.decisive_loops
    )


def _certainty(
    compare: Callable[[dict[Loop, Case]], tuple[bool, bool]],
    iterations: Iterations,
    cases: dict[Loop, Case],
    loops: list[Loop],
) -> Collision:
    """Compare, and where that remains open go through the cases of one loop after the other."""
    try:
        is_possible, is_exact = compare(cases)
    except TooMany:
        return Collision.POSSIBLE
    if not is_possible:
        return Collision.NEVER
    if is_exact:
        return Collision.CERTAIN
    for number, loop in enumerate(loops):
        ways = iterations.cases_of(loop, cases)
        for way in ways:
            found = {
                _certainty(compare, iterations, {**cases, loop: case}, loops[number + 1 :])
                for case in way
            }
            if Collision.CERTAIN in found or found <= {Collision.NEVER}:
                return max(found, default=Collision.NEVER)
        if ways:
            break
    return Collision.POSSIBLE


def _largest(scopes: Iterable[ConflictScope], bound: ConflictScope) -> ConflictScope:
    """The largest of some scopes, none of which is larger than a bound."""
    largest = ConflictScope.NONE
    for scope in scopes:
        largest = max(largest, min(scope, bound))
        if largest == bound:
            break
    return largest
