"""The facts about a kernel by which races are found, and the races that are settled already."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Hashable, Mapping

from tvm import ir

from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope, Distance
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.passes.gpu.barriers.clusters import Cluster
from tvmtile.passes.gpu.barriers.handovers import Handovers, orders_groups
from tvmtile.passes.gpu.barriers.items import (
    BarrierPoint,
    Barriers,
    Branch,
    Item,
    Iteration,
    Leaf,
    MbarrierStep,
    Sequence,
    accesses_of,
)
from tvmtile.passes.gpu.barriers.races import Race, rivals
from tvmtile.passes.gpu.barriers.state import Distances, PendingAccess, following

Step = tuple[BarrierPoint | None, Item]
"""An item, and the point in front of it."""


class Checker:
    """Compares accesses, and remembers what is settled.

    Where it `forgives`, the author answers for races that no barrier prevents.
    """

    def __init__(
        self,
        footprints: Footprints,
        cluster: Cluster,
        hands_over: Callable[[Sequence, Barriers], Handovers] | None,
        *,
        forgives: bool = False,
    ) -> None:
        self.footprints = footprints
        self.cluster = cluster
        self.forgives = forgives
        self.excused: Race | None = None
        self._hands_over = hands_over
        self._handovers: Handovers | None = None
        self.program: Sequence | None = None
        self._forgiven: set[tuple[Effect, Effect]] = set()
        self._rivals: dict[tuple[Effect, ...], Mapping[Effect, Collection[Effect]]] = {}
        self._conflicts: dict[Hashable, tuple[ConflictScope, Collision]] = {}
        self.handed_over: dict[MbarrierStep, dict[PendingAccess, PendingAccess | None]] = {}
        """The accesses that are open behind a step at an mbarrier, by those before it."""
        self._counted: dict[Loop, frozenset[ir.Var]] = {}
        self._following: dict[tuple[Distances, Loop, bool], Distances | None] = {}
        self._threads: dict[Branch, int] = {}
        self._steps: dict[Sequence, list[list[Step]]] = {}

    # Races -------------------------------------------------------------------------------------------

    def forgive(self, race: Race) -> None:
        """Take two accesses to be in order."""
        self._forgiven.add((race.earlier, race.later))

    def is_handed_over(self, race: Race) -> bool:
        """Tell whether mbarriers order two accesses, which the order of the text does not show."""
        if self._handovers is None:
            if self._hands_over is None or self.program is None:
                return False
            self._handovers = self._hands_over(self.program, {})
        if not self._handovers.order(race.earlier, race.later):
            return False
        self.excused = self.excused or race
        return True

    @property
    def doubtful(self) -> MbarrierStep | None:
        """An arrival that may count in another phase of its mbarrier than it is meant for."""
        return None if self._handovers is None else next(iter(self._handovers.doubtful), None)

    def is_settled(self, earlier: Effect, later: Effect) -> bool:
        """Tell whether two accesses are taken to be in order."""
        if (earlier, later) in self._forgiven:
            return True
        handovers = self._handovers if self.excused else None
        return handovers is not None and handovers.order(earlier, later)

    def left_open(self, barriers: Barriers) -> Race | None:
        """Find a race between groups that neither mbarriers nor some barriers prevent.

        It is looked for where what threads do at mbarriers is known, and nothing else orders them.
        """
        if self._hands_over is None or self.program is None:
            return None
        if self.excused is None and not orders_groups(self.program):
            return None
        handovers = self._hands_over(self.program, barriers)
        if not handovers.are_known:
            return self.excused
        found = handovers.unordered(self._forgiven)
        return None if found is None else Race(*found)

    # Accesses ----------------------------------------------------------------------------------------

    def conflict(self, earlier: PendingAccess, later: Effect) -> tuple[ConflictScope, Collision]:
        """The scope of a conflict, and whether it is with a copy in flight."""
        is_in_flight = earlier.signals is not None
        key = earlier.access, later, earlier.distances, is_in_flight
        if key not in self._conflicts:
            distances = dict(earlier.distances)
            if is_in_flight:
                found = self.footprints.collision(earlier.access, later, distances)
                scope = ConflictScope.NONE if found == Collision.NEVER else ConflictScope.BLOCK
                self._conflicts[key] = scope, found
            else:
                scope = self.footprints.conflict(earlier.access, later, distances)
                self._conflicts[key] = scope, Collision.NEVER
        return self._conflicts[key]

    def rivals_in(
        self, part: Item | Sequence, loops: tuple[Loop, ...]
    ) -> Mapping[Effect, Collection[Effect]]:
        """The others that each access in a part of a program, in some loops, may race with."""
        accesses = tuple(
            done.access for access in accesses_of(part) for done in self.cluster.by_blocks(access)
        )
        if accesses not in self._rivals:
            self._rivals[accesses] = rivals(accesses, len(loops), self.footprints)
        return self._rivals[accesses]

    def counted_in(self, item: Iteration) -> frozenset[ir.Var]:
        """The buffers for whose accesses in a loop the iterations between them matter.

        Those that touch other elements in each; any, where there is no next iteration.
        """
        loop = item.loop
        if loop not in self._counted:
            self._counted[loop] = frozenset(
                access.root
                for access in accesses_of(item)
                if loop.trip_count == 1
                or loop in access.decisive_loops
                or loop in (access.ordering or ())
            )
        return self._counted[loop]

    def distances_of(self, access: Effect, loops: tuple[Loop, ...]) -> Distances:
        """The distances of an access that is done now."""
        return frozenset(
            (loop, Distance.SAME)
            for loop in loops
            if loop not in self._counted or access.root in self._counted[loop]
        )

    def in_next_iteration(self, opened: PendingAccess, loop: Loop) -> PendingAccess | None:
        """An access as the next iteration of a loop sees it; None where there is no such iteration."""
        key = opened.distances, loop, opened.signals is not None
        if key not in self._following:
            self._following[key] = following(*key)
        distances = self._following[key]
        return None if distances is None else opened.at(distances)

    def steps_in(self, sequence: Sequence) -> list[list[Step]]:
        """The items of a sequence that matter: one by one, and together those done at the same time.

        Threads that hand elements over at mbarriers in branches of their own go through these at the
        same time. Which of them comes first in the text is nothing: mbarriers order what they do.
        """
        if sequence not in self._steps:
            found: list[list[Step]] = []
            threads = 0
            for point, item in zip(sequence.points, sequence.items, strict=False):
                if isinstance(item, Leaf) and not item.accesses:
                    continue
                own = self._handing_over_in(item)
                if own and threads and not own & threads:
                    found[-1].append((point, item))
                    threads |= own
                else:
                    found.append([(point, item)])
                    threads = own
            self._steps[sequence] = found
        return self._steps[sequence]

    def parts_of(self, item: Item) -> list[Sequence]:
        """The cases of a branch that different threads go through at the same time, and hand over."""
        return item.cases if isinstance(item, Branch) and self._handing_over_in(item) else []

    def _handing_over_in(self, item: Item) -> int:
        """The threads that may hand over in a branch of some of them, a bit each; 0 of another item."""
        if not isinstance(item, Branch) or not item.diverges or not item.hands_over:
            return 0
        if item not in self._threads:
            each = map(self.footprints.threads_of, accesses_of(item))
            self._threads[item] = functools.reduce(operator.or_, each, 0)
        return self._threads[item]
