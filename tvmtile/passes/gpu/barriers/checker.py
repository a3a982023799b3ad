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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tvm import ir

from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope, Distance
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.passes.gpu.barriers.clusters import Cluster, Done
from tvmtile.passes.gpu.barriers.handovers import Handovers, orders_groups
from tvmtile.passes.gpu.barriers.items import (
    BarrierPoint,
    Barriers,
    Branch,
    Exit,
    Item,
    Iteration,
    Leaf,
    MbarrierStep,
    Sequence,
    Signal,
    TokenWait,
    UserBarrier,
    accesses_of,
)
from tvmtile.passes.gpu.barriers.races import Race, may_race, rivals
from tvmtile.passes.gpu.barriers.removal import bits_of
from tvmtile.passes.gpu.barriers.state import (
    Distances,
    PendingAccess,
    SignalCounts,
    State,
    after_barrier,
    following,
)


def _has_waited(opened: PendingAccess, state: State) -> bool:
    """Tell whether an access that no barrier has ordered is behind one of warps in a state."""
    is_new = opened.ordered == ConflictScope.NONE
    return is_new and opened._replace(ordered=ConflictScope.WARP) in state


_Sides = tuple[frozenset[tuple[Effect, int]], Distances]
"""Two accesses, each with its block, whichever comes first, and how many iterations lie between."""


class _OtherOrder(NamedTuple):
    """What conflicts where parts that run at the same time are gone through in the other order."""

    loops: tuple[Loop, ...]
    """Those around the parts."""
    conflicts: set[_Sides]

    def excuses(self, earlier: PendingAccess, done: Done) -> bool:
        """Tell whether an access comes after another one only where the text says so.

        Of two that loops repeat, one comes before the other and after it: both must be ordered.
        """
        accesses = earlier.access, done.access
        if all(any(loop not in self.loops for loop in each.loops) for each in accesses):
            return False
        return self.sides(earlier, done) not in self.conflicts

    def sides(self, earlier: PendingAccess, done: Done) -> _Sides:
        both = frozenset([(earlier.access, earlier.block), (done.access, done.block)])
        return both, frozenset(each for each in earlier.distances if each[0] in self.loops)


class Checker:
    """Looks for races. Where it `forgives`, the author answers for those that no barrier prevents."""

    def __init__(
        self,
        footprints: Footprints,
        cluster: Cluster,
        hands_over: Callable[[Sequence, Barriers], Handovers] | None,
        *,
        forgives: bool = False,
    ) -> None:
        self.forgives = forgives
        self._hands_over = hands_over
        self._handovers: Handovers | None = None
        self._excused: Race | None = None
        self._program: Sequence | None = None
        self._forgiven: set[tuple[Effect, Effect]] = set()
        self._footprints = footprints
        self._cluster = cluster
        self._barriers: Barriers = {}
        self._bits: Mapping[BarrierPoint, int] = {}
        self._barriers_wait = False
        self._clauses: dict[int, None] = {}
        self._clauses_with: dict[int, list[int]] = {}
        self._of_device = True
        self._exits: list[tuple[State, State]] = []
        self._is_looking = True
        self._entering: dict[Iteration, State] = {}
        self._rivals: Mapping[Effect, Collection[Effect]] = {}
        self._known_rivals: dict[tuple[Effect, ...], Mapping[Effect, Collection[Effect]]] = {}
        self._counted: dict[Loop, frozenset[ir.Var]] = {}
        self._following: dict[tuple[Distances, Loop, bool], Distances | None] = {}
        self._threads: dict[Item, int] = {}
        self._other_orders: list[_OtherOrder] = []
        self._noted: _OtherOrder | None = None

    def forgive(self, race: Race) -> None:
        """Take two accesses to be in order."""
        self._forgiven.add((race.earlier, race.later))

    def is_handed_over(self, race: Race) -> bool:
        """Tell whether mbarriers order two accesses, which the order of the text does not show."""
        if self._handovers is None:
            if self._hands_over is None or self._program is None:
                return False
            self._handovers = self._hands_over(self._program, {})
        if not self._handovers.order(race.earlier, race.later):
            return False
        self._excused = self._excused or race
        return True

    @property
    def doubtful(self) -> MbarrierStep | None:
        """An arrival that may count in another phase of its mbarrier than it is meant for."""
        return None if self._handovers is None else next(iter(self._handovers.doubtful), None)

    def left_open(self, barriers: Barriers) -> Race | None:
        """Find a race between groups that neither mbarriers nor some barriers prevent.

        It is looked for where what threads do at mbarriers is known, and nothing else orders them.
        """
        if self._hands_over is None or self._program is None:
            return None
        if self._excused is None and not orders_groups(self._program):
            return None
        handovers = self._hands_over(self._program, barriers)
        if not handovers.are_known:
            return self._excused
        found = handovers.unordered(self._forgiven)
        return None if found is None else Race(*found)

    def is_scattered(self, access: Effect) -> bool:
        """Tell whether values that threads load say which elements an access touches."""
        return self._footprints.is_scattered(access)

    def follow(self, program: Sequence) -> None:
        """Find which asynchronous copies are in flight where loops begin: they may arrive inside."""
        self._program = program
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
        bits: Mapping[BarrierPoint, int],
        barriers: Barriers,
        *,
        barriers_wait: bool,
    ) -> list[int]:
        """What barriers of the whole block have to separate in a part of the program.

        A clause is a set of slots, a bit each. Barriers suffice if each has a slot with one.

        `bits` has one for each place where a barrier may stand, where there are `barriers` that may not
        suffice among them; where `barriers_wait`, every thread waits for its asynchronous copies before
        one.

        Raises
        ------
        Race
            If barriers at all places do not suffice.
        """
        self._barriers = barriers
        self._of_device = True
        self._bits, self._barriers_wait = bits, barriers_wait
        self._clauses, self._clauses_with = {}, {}
        self._look_at(part, loops)
        return list(self._clauses)

    def between(self, earlier: Effect, later: Effect, loops: tuple[Loop, ...]) -> ConflictScope:
        """The scope of the conflict of two accesses of one statement."""
        return self._footprints.conflict(earlier, later, dict.fromkeys(loops, Distance.SAME))

    # Paths -------------------------------------------------------------------------------------------

    def _look_at(self, part: Item | Sequence, loops: tuple[Loop, ...]) -> None:
        self._other_orders, self._noted = [], None
        self._exits = [(State(), State())]
        state = State(barriers_wait=self._barriers_wait)
        if isinstance(part, Iteration) and part in self._entering:
            state.add_all(self._entering[part])
        self._rivals = self._rivals_in(part, loops, (opened.access for opened, _ in state))
        if isinstance(part, Sequence):
            self._sequence(part, state, loops)
        else:
            self._item(part, state, loops)

    def _rivals_in(
        self, part: Item | Sequence, loops: tuple[Loop, ...], others: Iterable[Effect]
    ) -> Mapping[Effect, Collection[Effect]]:
        """With which others each access in a part may race, which are open before it among them."""
        inside = (
            done.access for access in accesses_of(part) for done in self._cluster.by_blocks(access)
        )
        accesses = (*inside, *others)
        if accesses not in self._known_rivals:
            found = rivals(accesses, len(loops), self._footprints)
            self._known_rivals[accesses] = found
        return self._known_rivals[accesses]

    def _sequence(self, sequence: Sequence, state: State, loops: tuple[Loop, ...]) -> State:
        state = state.copy()  # it changes from here on
        for steps in self._at_once(sequence):
            of_some = [item for _, item in steps if self._threads_in(item)]
            parts = [case for item in of_some if isinstance(item, Branch) for case in item.cases]
            is_ordered = len(parts) < 2 or not self._is_looking
            is_ordered = is_ordered or self._noted is not None or self._excused is not None
            if not is_ordered:
                self._other_orders.append(self._backwards(parts, state, loops))
            for slot, item in steps:
                state = self._item(item, self._at(slot, state), loops)
            if not is_ordered:
                self._other_orders.pop()
        return self._at(sequence.slots[-1], state)

    def _at_once(self, sequence: Sequence) -> Iterator[list[tuple[BarrierPoint | None, Item]]]:
        """The items of a sequence: one by one, and together those that different threads do.

        Threads that hand elements over at mbarriers in branches of their own go through these at the
        same time. Which of them comes first in the text is nothing: mbarriers order what they do.
        """
        steps: list[tuple[BarrierPoint | None, Item]] = []
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

    def _at(self, slot: BarrierPoint | None, state: State) -> State:
        if slot is None:
            return state
        if slot in self._barriers:
            state = after_barrier(state, self._barriers[slot])
        bit = self._bits.get(slot)
        return self._past(bit, state) if bit else state

    def _past(self, bit: int, state: State) -> State:
        """The state behind a slot, without the accesses that a clause closes."""
        state.pass_slot(bit)
        if bit in self._clauses_with:
            state.close(self._clauses_with[bit])
        return state

    def _item(self, item: Item, state: State, loops: tuple[Loop, ...]) -> State:
        if isinstance(item, Leaf):
            return self._accesses(item.accesses, state, loops)
        if isinstance(item, UserBarrier):
            return after_barrier(state, item.barrier)
        if isinstance(item, MbarrierStep):
            return self._handed_over(self._accesses(item.accesses, state, loops), item)
        if isinstance(item, Signal):
            return state.moved(
                lambda opened: opened.signalled(item.token) if opened.is_of(item) else opened
            )
        if isinstance(item, TokenWait):
            return self._after_wait(state, item)
        if isinstance(item, Exit):
            self._exits[-1][0 if item.is_break else 1].add_all(state)
            return state.empty()
        state = self._accesses(item.head, state, loops)
        if isinstance(item, Branch):
            joined = state.empty()
            for case in item.paths:
                joined.add_all(self._sequence(case, state, loops))
            if (
                item.diverges and not item.is_for_cpu
            ):  # some threads do not come, and do not wait for their warps there
                joined.add_all(state.moved(lambda o: o if _has_waited(o, joined) else None))
            return joined
        return self._iteration(item, state, loops)

    def _handed_over(self, state: State, item: MbarrierStep) -> State:
        if item.waits:
            if self._noted is not None and not item.is_of_first_phase:
                return state  # it may be over before the part that comes later begins
            everyone = self._cluster.all_threads

            def told(opened: PendingAccess) -> PendingAccess | None:
                opened = opened.known_to(item, self._cluster)
                return None if opened.known == everyone else opened

            return state.moved(told)
        return state.moved(self._released_by(item))

    def _released_by(self, item: MbarrierStep) -> Callable[[PendingAccess], PendingAccess]:
        """Of an access whose threads arrive at an mbarrier, or one that knows of it."""
        active = item.active
        nearby = [self._footprints.warps_of(threads) for threads in active.threads]

        def arrives(opened: PendingAccess, block: int) -> bool:
            if self._cluster.in_block(block, opened.known) & active.threads[block]:
                return True
            is_close = opened.ordered != ConflictScope.NONE
            arrived = nearby[block] if is_close else active.threads[block]
            return (
                block == opened.block and not self._footprints.threads_of(opened.access) & ~arrived
            )

        def released(opened: PendingAccess) -> PendingAccess:
            if opened.is_on_its_way:
                return opened
            if opened.signals is not None and not (item.with_copies and opened.is_cp_async):
                return opened  # it has not arrived yet
            at = {
                (item.mbarrier, there)
                for block, reached in enumerate(active.reached)
                if arrives(opened, block)
                for there in reached
            }
            if not at:
                return opened
            return opened._replace(released=opened.released | at, signals=None)

        return released

    def _after_wait(self, state: State, wait: TokenWait) -> State:
        def after(opened: PendingAccess) -> PendingAccess | None:
            arrived = opened.arrived(wait.awaited) if opened.is_of(wait) else opened
            return arrived if self._is_looking or arrived == opened else None

        return state.moved(after)

    def _iteration(self, item: Iteration, before: State, loops: tuple[Loop, ...]) -> State:
        loop = item.loop
        inside = (*loops, loop)
        if not self._is_looking:
            self._entering.setdefault(item, State()).add_all(before)
        counted = self._counted_in(item)
        state = before.moved(lambda opened: opened.entering(loop, counted))
        reached = state.empty()
        while True:
            self._exits.append((state.empty(), state.empty()))
            end = self._sequence(item.body, state, inside)
            broken, continued = self._exits.pop()
            end.add_all(continued)
            next_one = end.moved(lambda opened: self._in_next_iteration(opened, loop))
            if loop.var is None:  # a `while` evaluates its condition again
                next_one = self._accesses(item.head, next_one, loops)
            reached.add_all(next_one)
            if not state.add_all(reached):
                break
        if loop.var is None:
            after = reached.moved(lambda opened: opened.leaving(loop))
        else:
            after = end.moved(lambda opened: opened.after(loop))
        after.add_all(broken.moved(lambda opened: opened.leaving(loop)))
        if not item.runs:
            after.add_all(before)
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
                if loop.trip_count == 1
                or loop in access.decisive_loops
                or loop in (access.ordering or ())
            )
        return self._counted[loop]

    def _in_next_iteration(self, opened: PendingAccess, loop: Loop) -> PendingAccess | None:
        key = opened.distances, loop, opened.signals is not None
        if key not in self._following:
            self._following[key] = following(*key)
        distances = self._following[key]
        return None if distances is None else opened.at(distances)

    def _accesses(
        self, accesses: tuple[Effect, ...], state: State, loops: tuple[Loop, ...]
    ) -> State:
        """Look for conflicts of accesses with those that are open, then open them too."""
        done = [
            each
            for access in accesses
            for each in self._cluster.by_blocks(access)
            if each.access in self._rivals
        ]
        if self._is_looking:
            demanded = dict.fromkeys(path for each in done for path in self._check(state, each))
            if demanded:
                self._close(state, demanded)
        for block, own, places in done:
            if own.token is None and not self._is_looking:
                continue  # what is not a copy does not arrive
            distances = self._distances_of(own, loops)
            signals = None if own.token is None else SignalCounts()
            on = () if own.mbarrier is None else ((own.mbarrier, place) for place in places)
            state.open(
                PendingAccess(
                    own, distances, ConflictScope.NONE, signals, block, places, frozenset(on)
                )
            )
        return state

    def _distances_of(self, access: Effect, loops: tuple[Loop, ...]) -> Distances:
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
        for earlier, paths in state.of(self._rivals[later]):
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
            if self._excused and self._handovers and self._handovers.order(earlier.access, later):
                continue
            if any(order.excuses(earlier, done) for order in self._other_orders):
                continue
            if self._noted is not None:
                self._noted.conflicts.add(self._noted.sides(earlier, done))
                continue
            if 0 in paths:
                raise Race(earlier.access, later, in_flight=in_flight)
            self._clauses.update(dict.fromkeys(paths))
            demanded += paths
        return demanded

    def _conflict(self, earlier: PendingAccess, later: Effect) -> tuple[ConflictScope, Collision]:
        """The scope of a conflict, and whether it is with a copy in flight."""
        distances = dict(earlier.distances)
        if earlier.signals is None:
            scope = self._footprints.conflict(earlier.access, later, distances)
            return scope, Collision.NEVER
        found = self._footprints.collision(earlier.access, later, distances)
        return ConflictScope.NONE if found == Collision.NEVER else ConflictScope.BLOCK, found

    def _close(self, state: State, demanded: Iterable[int]) -> None:
        """Close what new clauses close."""
        for path in demanded:
            for bit in bits_of(path):
                self._clauses_with.setdefault(bit, []).append(path)
        state.close(demanded)
