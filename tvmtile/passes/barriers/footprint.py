"""Whether two threads of a block meet at an element, in two accesses.

The threads, and the loops that only one of the accesses knows, are enumerated: the indices are
evaluated for all of them with numpy, so swizzles, divisions and bit operations are nothing special.
What is the same for all threads (blocks, sizes, the loops around both accesses) stays symbolic: an
index is an array plus a symbolic term, and what counts is the difference of the two terms. Where
that is not a constant, the loops are looked at iteration by iteration, or by the remainder of the
iteration's number, which decides which version of a tile it uses.

Correctness rests on: an index that can't be evaluated is taken to be able to have any value, and a
condition that can't be evaluated to hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tvmtile.passes.barriers.comparison import Comparison
from tvmtile.passes.barriers.domain import Domain
from tvmtile.passes.barriers.effects import Access, Loop
from tvmtile.passes.barriers.iterations import Case, Iterations
from tvmtile.passes.barriers.orders import Meeting, Order
from tvmtile.passes.barriers.points import TooMany
from tvmtile.passes.kernels import Launch

__all__ = ["Footprints"]


class Footprints:
    """Compares accesses of a kernel.

    Parameters
    ----------
    launch : Launch
        The loops over blocks and threads.
    """

    def __init__(self, launch: Launch) -> None:
        self._domain = Domain(launch)
        self._known: dict[Any, Meeting] = {}
        self._overlapping: dict[Any, bool] = {}
        self._apart: dict[tuple[Access, Access], bool] = {}

    def meeting(self, earlier: Access, later: Access, orders: Mapping[Loop, Order]) -> Meeting:
        """Tell whether two different threads touch one element, in the two accesses.

        Parameters
        ----------
        earlier, later : Access
            In the order of the program.
        orders : mapping of Loop to Order
            In which iterations they are; any, for loops that are not in it.
        """
        around = {*earlier.loops, *later.loops}
        known = frozenset((loop, order) for loop, order in orders.items() if loop in around)
        key = (earlier, later, known)
        if key not in self._known:
            self._known[key] = self._found(earlier, later, dict(known))
        return self._known[key]

    def certainly_overlap(
        self, earlier: Access, later: Access, orders: Mapping[Loop, Order]
    ) -> bool:
        """Tell whether two accesses, of one thread or of two, are known to touch one element.

        Parameters
        ----------
        earlier, later, orders
            As of `meeting`.
        """
        if not earlier.root.same_as(later.root) or None in (earlier.indices, later.indices):
            return False
        around = {*earlier.loops, *later.loops}
        known = frozenset((loop, order) for loop, order in orders.items() if loop in around)
        key = (earlier, later, known)
        if key not in self._overlapping:
            iterations = Iterations(earlier, later, dict(known), self._domain)
            comparison = Comparison(earlier, later, iterations, self._domain)
            self._overlapping[key] = self._overlap(comparison, iterations, {}, iterations.decisive)
        return self._overlapping[key]

    def _overlap(
        self,
        comparison: Comparison,
        iterations: Iterations,
        cases: dict[Loop, Case],
        loops: list[Loop],
    ) -> bool:
        try:
            is_possible, is_exact = comparison.overlap(cases)
        except TooMany:
            return False
        if is_exact or not is_possible:
            return is_possible
        for number, loop in enumerate(loops):
            for each in iterations.cases_of(loop):
                return any(
                    self._overlap(
                        comparison, iterations, {**cases, loop: case}, loops[number + 1 :]
                    )
                    for case in each
                )
        return False

    def _found(self, earlier: Access, later: Access, orders: dict[Loop, Order]) -> Meeting:
        if not earlier.root.same_as(later.root):
            return Meeting.NEVER
        if earlier.indices is None or later.indices is None:
            return self._domain.worst
        iterations = Iterations(earlier, later, orders, self._domain)
        if iterations.have_many_cases and self._are_apart(earlier, later):
            return Meeting.NEVER
        comparison = Comparison(earlier, later, iterations, self._domain)
        return self._refined(comparison, iterations, {}, iterations.decisive)

    def _are_apart(self, earlier: Access, later: Access) -> bool:
        """Tell whether no two threads touch one element, whatever the iterations."""
        key = (earlier, later)
        if key not in self._apart:
            iterations = Iterations(earlier, later, {}, self._domain)
            comparison = Comparison(earlier, later, iterations, self._domain)
            self._apart[key] = self._refined(comparison, iterations, {}, []) == Meeting.NEVER
        return self._apart[key]

    def _refined(
        self,
        comparison: Comparison,
        iterations: Iterations,
        cases: dict[Loop, Case],
        loops: list[Loop],
    ) -> Meeting:
        """Compare, and where that remains open go through the cases of one loop after the other."""
        try:
            meeting, is_exact = comparison.meeting(cases)
        except TooMany:
            return self._domain.worst
        if meeting == Meeting.NEVER or is_exact:
            return meeting
        for number, loop in enumerate(loops):
            possible = iterations.cases_of(loop)
            for each in possible:
                found = (
                    self._refined(
                        comparison, iterations, {**cases, loop: case}, loops[number + 1 :]
                    )
                    for case in each
                )
                meeting = _largest(found, meeting)
                if meeting == Meeting.NEVER:
                    break
            if possible:
                break
        return meeting


def _largest(meetings: Iterable[Meeting], bound: Meeting) -> Meeting:
    """The largest of some, none of which is larger than a bound."""
    largest = Meeting.NEVER
    for meeting in meetings:
        largest = max(largest, min(meeting, bound))
        if largest == bound:
            break
    return largest
