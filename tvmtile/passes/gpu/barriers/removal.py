"""Which barriers remain when the redundant ones are removed greedily, from each slot on and around.

A body has a barrier in each of its slots, and clauses say which slots need one among them. A barrier is
redundant where each clause with its slot has another one left. Most slots are decided beforehand:

- a clause that has all slots of another one says nothing more;
- a slot that is a clause alone keeps its barrier, and one that is in no clause loses it;
- the others depend only on those that clauses connect them with, and within such a component on the
  order of its own slots: that is their natural order, but for starts between them.

So from one start to the next only the component changes whose slot was passed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

_ORDERS = 2  # that of the slots, and by their weights


def bits_of(slots: int) -> Iterator[int]:
    """The slots of a set."""
    while slots:
        bit = slots & -slots
        yield bit
        slots ^= bit


def remaining(
    slots: Sequence[int], weights: Mapping[int, float], clauses: Iterable[int], *, is_loop: bool
) -> Iterator[int]:
    """The sets of slots that keep their barriers, one for each order of removal; some come twice.

    From a start on the slots are taken in their order, so that those that remain are as late as
    possible; then those of less weight first, which stand in branches. In a loop each slot is a start,
    the last one first: the start of a body is as good as its end, and often serves what is before the
    loop.

    Parameters
    ----------
    slots : sequence of int
        A bit for each slot of a body, in their order.
    weights : mapping of int to float
        How often each of them is executed.
    clauses : iterable of int
        Sets of slots: some of `slots`, and no others.
    is_loop : bool
        It is the body of a loop.
    """
    smallest = _smallest(clauses)
    always = _union(clause for clause in smallest if _is_single(clause))
    components = [
        _Component([slot for slot in slots if slot & _union(connected)], weights, connected)
        for connected in _connected(clause for clause in smallest if not _is_single(clause))
    ]
    of_slot = {slot: component for component in components for slot in component.slots}
    contested = [slot for slot in slots if slot in of_slot]

    def kept() -> Iterator[int]:
        for order in range(_ORDERS):
            yield always | _union(component.left[order] for component in components)

    if is_loop and contested and contested[-1] == slots[-1]:
        of_slot[slots[-1]].start_at(-1)
        yield from kept()
        of_slot[slots[-1]].start_at(0)
    yield from kept()
    for passed in contested[:-1] if is_loop else ():
        component = of_slot[passed]
        component.start_at(component.slots.index(passed) + 1)
        yield from kept()


class _Component:
    """Slots that clauses connect, directly or by others."""

    def __init__(
        self, slots: Sequence[int], weights: Mapping[int, float], clauses: Iterable[int]
    ) -> None:
        self.slots = slots
        self._weights = weights
        self._with: dict[int, list[int]] = {}
        for clause in clauses:
            for bit in bits_of(clause):
                self._with.setdefault(bit, []).append(clause)
        self.start_at(0)

    def start_at(self, start: int) -> None:
        """Remove redundant barriers in the two orders, from the slot of a number on and around."""
        order = [*self.slots[start:], *self.slots[:start]]
        self.left = (
            self._removed(order),
            self._removed(sorted(order, key=self._weights.__getitem__)),
        )

    def _removed(self, order: Iterable[int]) -> int:
        left = _union(order)
        for bit in order:
            if all(clause & left != bit for clause in self._with[bit]):
                left ^= bit
        return left


def _smallest(clauses: Iterable[int]) -> list[int]:
    """The clauses without those that have all slots of another one."""
    smallest: list[int] = []
    of_first: dict[int, list[int]] = {}  # slot
    for clause in sorted(dict.fromkeys(clauses), key=int.bit_count):
        others = (other for bit in bits_of(clause) for other in of_first.get(bit, ()))
        if all(other & ~clause for other in others):
            smallest.append(clause)
            of_first.setdefault(clause & -clause, []).append(clause)
    return smallest


def _connected(clauses: Iterable[int]) -> list[list[int]]:
    """The clauses in groups, such that those of different ones have no slot in common."""
    group_of: dict[int, list[int]] = {}  # slot
    for clause in clauses:
        groups = [group_of[bit] for bit in bits_of(clause) if bit in group_of]
        joined = max(groups, key=len, default=[])
        for group in {id(group): group for group in groups if group is not joined}.values():
            joined += group
            group_of.update((bit, joined) for bit in bits_of(_union(group)))
        joined.append(clause)
        group_of.update((bit, joined) for bit in bits_of(clause))
    return list({id(group): group for group in group_of.values()}.values())


def _union(sets: Iterable[int]) -> int:
    return functools.reduce(operator.or_, sets, 0)


def _is_single(slots: int) -> bool:
    return slots & (slots - 1) == 0
