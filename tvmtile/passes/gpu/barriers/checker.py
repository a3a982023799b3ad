"""The paths through a thread's program, and the accesses on them that no barrier separates.

Threads go through uniform loops and branches together, so what all of them do is one sequence of
statements. Two accesses race if a path leads from one to the other without a barrier, and two threads
touch one element. The state at a place of the program is the set of accesses that are open there:
those since the last barrier, each with the iterations, of the loops around, that it was done in, and
with the slots passed since. One of these slots has to hold a barrier if a later access conflicts: that
is a clause. An access whose path holds a clause is closed: whatever comes later is separated from it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tvm import ir

from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope, Distance
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Access, Loop
from tvmtile.passes.gpu.barriers.clusters import Cluster, Done
from tvmtile.passes.gpu.barriers.items import (
    Barriers,
    Branch,
    Exit,
    Handover,
    Item,
    Iteration,
    Leaf,
    Sequence,
    Signal,
    Slot,
    TokenWait,
    Wait,
    accesses_of,
)
from tvmtile.passes.gpu.barriers.races import Race, contested, may_race
from tvmtile.passes.gpu.barriers.removal import bits_of
from tvmtile.passes.gpu.barriers.state import (
    NO_SLOTS,
    Distances,
    Open,
    Signals,
    State,
    add,
    add_all,
    after_barrier,
    following,
    moved,
    not_past,
)


class Clause(NamedTuple):
    """Slots, one of which must hold a barrier."""

    slots: int
    """A bit each."""
    scope: ConflictScope
    """The threads to separate."""


def _ordered_since(opened: Open) -> Open | None:
    """An access behind a barrier of warps; None if one has ordered it before."""
    if opened.ordered != ConflictScope.NONE:
        return None
    return opened._replace(ordered=ConflictScope.WARP)


_Sides = tuple[frozenset[tuple[Access, int]], Distances]
"""Two accesses, each with its block, whichever comes first, and how many iterations lie between."""


class _OtherOrder(NamedTuple):
    """What conflicts where parts that run at the same time are gone through in the other order."""

    loops: tuple[Loop, ...]
    """Those around the parts."""
    conflicts: set[_Sides]

    def excuses(self, earlier: Open, done: Done) -> bool:
        """Tell whether an access comes after another one only where the text says so.

        Of two that loops repeat, one comes before the other and after it: both must be ordered.
        """
        accesses = earlier.access, done.access
        if all(any(loop not in self.loops for loop in each.loops) for each in accesses):
            return False
        return self.sides(earlier, done) not in self.conflicts

    def sides(self, earlier: Open, done: Done) -> _Sides:
        both = frozenset([(earlier.access, earlier.block), (done.access, done.block)])
        return both, frozenset(each for each in earlier.distances if each[0] in self.loops)


class Checker:
    """Looks for races. Where it `forgives`, the author answers for those that no barrier prevents."""

    def __init__(self, footprints: Footprints, cluster: Cluster, *, forgives: bool = False) -> None:
        self.forgives = forgives
        self._forgiven: set[tuple[Access, Access]] = set()
        self._footprints = footprints
        self._cluster = cluster
        self._barriers: Barriers = {}
        self._bits: Mapping[Slot, int] = {}
        self._barriers_wait = False
        self._clauses: dict[Clause, None] = {}
        self._clauses_with: dict[int, list[int]] = {}
        self._of_device = True
        self._exits: list[tuple[State, State]] = []
        self._is_looking = True
        self._entering: dict[Iteration, State] = {}
        self._contested: set[ir.Var] = set()
        self._counted: dict[Loop, frozenset[ir.Var]] = {}
        self._following: dict[tuple[Distances, Loop, bool], Distances | None] = {}
        self._threads: dict[Item, int] = {}
        self._other_orders: list[_OtherOrder] = []
        self._noted: _OtherOrder | None = None

    def forgive(self, race: Race) -> None:
        """Take two accesses to be in order."""
        self._forgiven.add((race.earlier, race.later))

    def follow(self, program: Sequence) -> None:
        """Find which asynchronous copies are in flight where loops begin: they may arrive inside."""
        self._is_looking = False
        self.race(program, (), {})
        self._is_looking = True

    def race(
        self,
        part: Item | Sequence,
        loops: tuple[Loop, ...],
        barriers: Barriers,
        *,
        of_device: bool = True,
    ) -> Race | None:
        """Find a race in a part of the program, taken alone but for copies that arrive in it."""
        self._barriers = barriers
        self._of_device = of_device
        self._bits = {}
        try:
            self._look_at(part, loops)
        except Race as race:
            return race
        return None

    def clauses(
        self,
        part: Item | Sequence,
        loops: tuple[Loop, ...],
        bits: Mapping[Slot, int],
        *,
        barriers_wait: bool,
    ) -> list[Clause]:
        """What barriers of the whole block have to separate in a part of the program.

        A set of barriers suffices if each clause has a slot with one.

        `bits` has one for each place where a barrier may stand; where `barriers_wait`, every thread
        waits for its asynchronous copies before one.

        Raises
        ------
        Race
            If barriers at all places do not suffice.
        """
        self._barriers = {}
        self._of_device = True
        self._bits, self._barriers_wait = bits, barriers_wait
        self._clauses, self._clauses_with = {}, {}
        self._look_at(part, loops)
        return list(self._clauses)

    def between(self, earlier: Access, later: Access, loops: tuple[Loop, ...]) -> ConflictScope:
        """The scope of the conflict of two accesses of one statement."""
        return self._footprints.conflict(earlier, later, dict.fromkeys(loops, Distance.SAME))

    # Paths -------------------------------------------------------------------------------------------

    def _look_at(self, part: Item | Sequence, loops: tuple[Loop, ...]) -> None:
        self._exits, self._other_orders, self._noted = [({}, {})], [], None
        on_their_way = self._entering.get(part, {}) if isinstance(part, Iteration) else {}
        self._contested = contested(accesses_of(part), (opened.access for opened in on_their_way))
        if isinstance(part, Sequence):
            self._sequence(part, on_their_way, loops)
        else:
            self._item(part, on_their_way, loops)

    def _sequence(self, sequence: Sequence, state: State, loops: tuple[Loop, ...]) -> State:
        for steps in self._at_once(sequence):
            of_some = [item for _, item in steps if self._threads_in(item)]
            parts = [case for item in of_some if isinstance(item, Branch) for case in item.cases]
            is_ordered = len(parts) < 2 or not self._is_looking
            if not is_ordered:
                self._other_orders.append(self._backwards(parts, state, loops))
            for slot, item in steps:
                state = self._item(item, self._at(slot, state), loops)
            if not is_ordered:
                self._other_orders.pop()
        return self._at(sequence.slots[-1], state)

    def _at_once(self, sequence: Sequence) -> Iterator[list[tuple[Slot | None, Item]]]:
        """The items of a sequence: one by one, and together those that different threads do.

        Threads that hand elements over at mbarriers in branches of their own go through these at the
        same time. Which of them comes first in the text is nothing: mbarriers order what they do.
        """
        steps: list[tuple[Slot | None, Item]] = []
        threads = 0
        for slot, item in zip(sequence.slots, sequence.items, strict=False):
            own = self._threads_in(item)
            if not own or own & threads or slot in self._barriers:
                if steps:
                    yield steps
                steps, threads = [], 0
            steps.append((slot, item))
            threads |= own
            if not own:
                yield steps
                steps = []
        if steps:
            yield steps

    def _threads_in(self, item: Item) -> int:
        """The threads that may hand over in a branch of some of them, a bit each; 0 of another item."""
        if not isinstance(item, Branch) or not item.diverges or not item.hands_over:
            return 0
        if item not in self._threads:
            each = map(self._footprints.threads_of, accesses_of(item))
            self._threads[item] = functools.reduce(operator.or_, each, 0)
        return self._threads[item]

    def _backwards(
        self, parts: list[Sequence], state: State, loops: tuple[Loop, ...]
    ) -> _OtherOrder:
        """Go through parts from the last one on, and note what conflicts."""
        outer, self._noted = self._noted, _OtherOrder(loops, set())
        noted = self._noted
        for part in reversed(parts):
            state = self._sequence(part, state, loops)
        self._noted = outer
        return noted

    def _at(self, slot: Slot | None, state: State) -> State:
        if slot is None:
            return state
        if slot in self._barriers:
            return after_barrier(state, self._barriers[slot])
        bit = self._bits.get(slot)
        return self._past(bit, state) if bit else state

    def _past(self, bit: int, state: State) -> State:
        """The state behind a slot, without the accesses that a clause closes."""
        clauses = self._clauses_with.get(bit, ())
        after: State = {}
        for opened, paths in state.items():
            is_ordered = opened.signals is None or self._barriers_wait
            is_ordered = is_ordered and not opened.is_on_its_way
            after[opened] = tuple(path | bit for path in paths) if is_ordered else paths
        return not_past(after, clauses) if clauses else after

    def _item(self, item: Item, state: State, loops: tuple[Loop, ...]) -> State:
        if isinstance(item, Leaf):
            return self._accesses(item.accesses, state, loops)
        if isinstance(item, Wait):
            return after_barrier(state, item.barrier)
        if isinstance(item, Handover):
            return self._handed_over(self._accesses(item.accesses, state, loops), item)
        if isinstance(item, Signal):
            return moved(
                state,
                lambda opened: opened.signalled(item.token) if opened.is_of(item) else opened,
            )
        if isinstance(item, TokenWait):
            return self._after_wait(state, item)
        if isinstance(item, Exit):
            add_all(self._exits[-1][0 if item.is_break else 1], state)
            return {}
        state = self._accesses(item.head, state, loops)
        if isinstance(item, Branch):
            joined: State = {}
            for case in item.paths:
                add_all(joined, self._sequence(case, state, loops))
            if item.diverges:  # some threads do not come, and do not wait for their warps there
                add_all(joined, {o: p for o, p in state.items() if _ordered_since(o) in joined})
            return joined
        return self._iteration(item, state, loops)

    def _handed_over(self, state: State, item: Handover) -> State:
        if item.waits:
            if self._noted is not None and not item.is_of_first_phase:
                return state  # it may be over before the part that comes later begins
            after = moved(state, lambda opened: opened.known_to(item, self._cluster))
            everyone = self._cluster.all_threads
            return {o: paths for o, paths in after.items() if o.known != everyone}
        return moved(state, self._released_by(item))

    def _released_by(self, item: Handover) -> Callable[[Open], Open]:
        """Of an access whose threads arrive at an mbarrier, or one that knows of it."""
        comers = item.comers
        nearby = [self._footprints.warps_of(threads) for threads in comers.threads]

        def arrives(opened: Open, block: int) -> bool:
            if self._cluster.in_block(block, opened.known) & comers.threads[block]:
                return True
            is_close = opened.ordered != ConflictScope.NONE
            arrived = nearby[block] if is_close else comers.threads[block]
            return (
                block == opened.block and not self._footprints.threads_of(opened.access) & ~arrived
            )

        def released(opened: Open) -> Open:
            if opened.is_on_its_way:
                return opened
            if opened.signals is not None and not (item.with_copies and opened.is_cp_async):
                return opened  # it has not arrived yet
            at = {
                (item.mbarrier, there)
                for block, reached in enumerate(comers.reached)
                if arrives(opened, block)
                for there in reached
            }
            if not at:
                return opened
            return opened._replace(released=opened.released | at, signals=None)

        return released

    def _after_wait(self, state: State, wait: TokenWait) -> State:
        def after(opened: Open) -> Open:
            return opened.arrived(wait.awaited) if opened.is_of(wait) else opened

        if not self._is_looking:
            return {opened: paths for opened, paths in state.items() if opened == after(opened)}
        return moved(state, after)

    def _iteration(self, item: Iteration, before: State, loops: tuple[Loop, ...]) -> State:
        loop = item.loop
        inside = (*loops, loop)
        if not self._is_looking:
            add_all(self._entering.setdefault(item, {}), before)
        counted = self._counted_in(item)
        state = moved(before, lambda opened: opened.entering(loop, counted))
        reached: State = {}
        while True:
            self._exits.append(({}, {}))
            end = dict(self._sequence(item.body, state, inside))
            broken, continued = self._exits.pop()
            add_all(end, continued)
            next_one: State = {}
            for opened, paths in end.items():
                distances = self._in_next_iteration(opened, loop)
                if distances is not None:
                    add(next_one, opened.at(distances), paths)
            if loop.var is None:  # a `while` evaluates its condition again
                next_one = self._accesses(item.head, next_one, loops)
            add_all(reached, next_one)
            if not add_all(state, reached):
                break
        if loop.var is None:
            after = moved(reached, lambda opened: opened.leaving(loop))
        else:
            after = moved(end, lambda opened: opened.after(loop))
        add_all(after, moved(broken, lambda opened: opened.leaving(loop)))
        if not item.runs:
            add_all(after, before)
        return after

    def _counted_in(self, item: Iteration) -> frozenset[ir.Var]:
        """The buffers for whose accesses in a loop the iterations between them matter.

        Those that touch other elements in each; any, where there is no next iteration.
        """
        loop = item.loop
        if loop not in self._counted:
            self._counted[loop] = frozenset(
                access.root
                for access in accesses_of(item)
                if loop.trips == 1
                or loop in access.decisive_loops
                or loop in (access.ordering or ())
            )
        return self._counted[loop]

    def _in_next_iteration(self, opened: Open, loop: Loop) -> Distances | None:
        key = opened.distances, loop, opened.signals is not None
        if key not in self._following:
            self._following[key] = following(*key)
        return self._following[key]

    def _accesses(
        self, accesses: tuple[Access, ...], state: State, loops: tuple[Loop, ...]
    ) -> State:
        """Look for conflicts of accesses with those that are open, then open them too."""
        accesses = tuple(access for access in accesses if access.root in self._contested)
        if not accesses:
            return state
        if self._is_looking:
            done = [each for access in accesses for each in self._cluster.by_blocks(access)]
            demanded = list(
                dict.fromkeys(path for each in done for path in self._check(state, each))
            )
            state = self._close(state, demanded) if demanded else state
        else:  # what is not a copy does not arrive
            accesses = tuple(access for access in accesses if access.token is not None)
        opened: State = {}
        for access in accesses:
            distances = self._distances_of(access, loops)
            signals = None if access.token is None else Signals()
            for block, own, places in self._cluster.by_blocks(access):
                on = () if access.mbarrier is None else ((access.mbarrier, p) for p in places)
                new = Open(
                    own, distances, ConflictScope.NONE, signals, block, places, frozenset(on)
                )
                opened[new] = NO_SLOTS
        return {**state, **opened}

    def _distances_of(self, access: Access, loops: tuple[Loop, ...]) -> Distances:
        return frozenset(
            (loop, Distance.SAME)
            for loop in loops
            if loop not in self._counted or access.root in self._counted[loop]
        )

    def _check(self, state: State, done: Done) -> list[int]:
        """Look for conflicts with an access; the slots that they demand a barrier in."""
        later = done.access
        if later.is_of_device and not self._of_device:
            return []
        demanded: list[int] = []
        for earlier, paths in state.items():
            if not may_race(earlier.access, later) or earlier.is_on_its_way:
                continue
            if earlier.places.isdisjoint(done.places):
                continue
            if later.ordering is not None and not earlier.is_of_iteration_before(later.ordering):
                continue
            known = self._cluster.in_block(done.block, earlier.known)
            if known and not self._footprints.threads_of(later) & ~known:
                continue
            scope, in_flight = self._conflict(earlier, later)
            if scope <= earlier.ordered:
                continue
            if (earlier.access, later) in self._forgiven:
                continue
            if any(order.excuses(earlier, done) for order in self._other_orders):
                continue
            if self._noted is not None:
                self._noted.conflicts.add(self._noted.sides(earlier, done))
                continue
            if 0 in paths:
                raise Race(earlier.access, later, in_flight=in_flight)
            self._clauses.update(dict.fromkeys(Clause(path, scope) for path in paths))
            demanded += paths
        return demanded

    def _conflict(self, earlier: Open, later: Access) -> tuple[ConflictScope, Collision]:
        """The scope of a conflict, and whether it is with a copy in flight."""
        distances = dict(earlier.distances)
        if earlier.signals is None:
            scope = self._footprints.conflict(earlier.access, later, distances)
            return scope, Collision.NEVER
        found = self._footprints.collision(earlier.access, later, distances)
        return ConflictScope.NONE if found == Collision.NEVER else ConflictScope.BLOCK, found

    def _close(self, state: State, demanded: list[int]) -> State:
        """The state without the accesses that new clauses close."""
        for path in demanded:
            for bit in bits_of(path):
                self._clauses_with.setdefault(bit, []).append(path)
        return not_past(state, demanded)
