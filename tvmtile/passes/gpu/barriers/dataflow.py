"""The forward walk through a thread's program, and the accesses in it that no barrier separates.

Threads go through uniform loops and branches together, so what all of them do is one sequence of
statements. Two accesses race if a path leads from one to the other without a barrier, and two threads
touch one element. The state at a place of the program is the set of accesses that are open there:
those since the last barrier, each with the iterations, of the loops around, that it was done in, and
with the points passed since. A loop is gone through until the state where it begins is that of all its
iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.passes.gpu.barriers.checker import Checker, Step
from tvmtile.passes.gpu.barriers.clusters import Done
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
)
from tvmtile.passes.gpu.barriers.races import Race, may_race
from tvmtile.passes.gpu.barriers.state import (
    Distances,
    Paths,
    PendingAccess,
    SignalCounts,
    State,
    after_barrier,
)


def _has_waited(opened: PendingAccess, state: State) -> bool:
    """Tell whether an access that no barrier has ordered is behind one of warps in a state."""
    is_new = opened.ordered == ConflictScope.NONE
    return is_new and opened._replace(ordered=ConflictScope.WARP) in state


_Sides = tuple[frozenset[tuple[Effect, int]], Distances]
"""Two accesses, each with its block, whichever comes first, and how many iterations lie between."""


class _OtherOrder:
    """Conflicts where parts that run at the same time are gone through in the other order.

    `look` finds them when they are asked for. The parts stand in some loops.
    """

    def __init__(self, loops: tuple[Loop, ...], look: Callable[[_OtherOrder], None]) -> None:
        self._loops = loops
        self._look = look
        self._found: set[_Sides] | None = None

    def excuses(self, earlier: PendingAccess, done: Done) -> bool:
        """Tell whether an access comes after another one only where the text says so.

        Of two that loops repeat, one comes before the other and after it: both must be ordered.
        """
        accesses = earlier.access, done.access
        if all(any(loop not in self._loops for loop in each.loops) for each in accesses):
            return False
        if self._found is None:
            self._found = set()
            self._look(self)
        return self._sides(earlier, done) not in self._found

    def note(self, earlier: PendingAccess, done: Done) -> None:
        """Two accesses conflict."""
        assert self._found is not None
        self._found.add(self._sides(earlier, done))

    def _sides(self, earlier: PendingAccess, done: Done) -> _Sides:
        both = frozenset([(earlier.access, earlier.block), (done.access, done.block)])
        return both, frozenset(each for each in earlier.distances if each[0] in self._loops)


class Walk:
    """Goes through a program in its order; a conflict is a race.

    Parameters
    ----------
    bits : mapping of BarrierPoint to int
        One for each point that accesses note when they are passed, in the order of the program.
    barriers_wait : bool
        In front of each new barrier every thread waits for its asynchronous copies.
    barriers : dict of BarrierPoint to Barrier
        Those that stand in points.
    of_device : bool
        Conflicts of device memory count.
    """

    def __init__(
        self,
        checker: Checker,
        bits: Mapping[BarrierPoint, int] | None = None,
        barriers_wait: bool = False,
        barriers: Barriers | None = None,
        *,
        of_device: bool = True,
    ) -> None:
        self.chosen = 0
        """The points that hold a new barrier of the whole block."""
        self.here = 0
        """The point that was passed last."""
        self._checker = checker
        self._bits = bits or {}
        self._barriers = {} if barriers is None else barriers
        self._barriers_wait = barriers_wait
        self._of_device = of_device
        self._footprints, self._cluster = checker.footprints, checker.cluster
        self._rivals: Mapping[Effect, Collection[Effect]] = {}
        self._exits: list[tuple[State, State]] = []
        self._other_orders: list[_OtherOrder] = []
        self._noted: _OtherOrder | None = None

    def race_in(self, part: Item | Sequence, loops: tuple[Loop, ...] = ()) -> Race | None:
        """A race in a part of a program that is in some loops, taken alone."""
        try:
            self._through(part, loops)
        except Race as race:
            return race
        return None

    def _through(self, part: Item | Sequence, loops: tuple[Loop, ...]) -> None:
        self._exits = [(State(), State())]
        self._rivals = self._checker.rivals_in(part, loops)
        if not self._rivals:
            return
        state = State(barriers_wait=self._barriers_wait)
        if isinstance(part, Sequence):
            self._sequence(part, state, loops)
        else:
            self._item(part, state, loops)

    def is_separated(self, later: Effect, scope: ConflictScope, paths: Paths) -> bool:  # noqa: ARG002
        """Tell whether barriers on all paths to an access order it, for threads of a scope."""
        return all(path & self.chosen for path in paths)

    def separate(self, later: Effect, scope: ConflictScope, paths: Paths) -> int:  # noqa: ARG002
        """Order an access, on each of some paths to it: the points that get a barrier."""
        return 0

    def _sequence(self, sequence: Sequence, state: State, loops: tuple[Loop, ...]) -> State:
        state = state.copy()  # it changes from here on
        for together in self._checker.steps_in(sequence):
            for steps in self._at_once(together) if len(together) > 1 else [together]:
                order = self._other_order(steps, state, loops)
                if order is not None:
                    self._other_orders.append(order)
                for point, item in steps:
                    state = self._item(item, self._at(point, state), loops)
                if order is not None:
                    self._other_orders.pop()
        return self._at(sequence.points[-1], state)

    def _at_once(self, steps: list[Step]) -> Iterator[list[Step]]:
        """Steps that different threads do at the same time, but for those that a barrier separates."""
        first = 0
        for number, (point, _) in enumerate(steps):
            if number and point in self._barriers:
                yield steps[first:number]
                first = number
        yield steps[first:]

    def _other_order(
        self, steps: list[Step], state: State, loops: tuple[Loop, ...]
    ) -> _OtherOrder | None:
        """The other order of the parts of some steps; None where there is none, or nobody asks."""
        if self._noted is not None or self._checker.excused is not None:
            return None
        parts = [case for _, item in steps for case in self._checker.parts_of(item)]
        if len(parts) < 2:
            return None
        before = state.copy()
        return _OtherOrder(loops, lambda order: self._backwards(parts, before, loops, order))

    def _backwards(
        self, parts: list[Sequence], state: State, loops: tuple[Loop, ...], order: _OtherOrder
    ) -> None:
        """Go through parts from the last one on, and note what conflicts."""
        kept = self._noted, self._exits, self._other_orders, self.here
        around = self._other_orders[: self._other_orders.index(order)]
        self._noted, self._exits, self._other_orders = order, [(State(), State())], around
        for part in reversed(parts):
            state = self._sequence(part, state, loops)
        self._noted, self._exits, self._other_orders, self.here = kept

    def _at(self, point: BarrierPoint | None, state: State) -> State:
        if point is None:
            return state
        if point in self._barriers:
            state = after_barrier(state, self._barriers[point])
        bit = self._bits.get(point)
        if bit:
            self.here = bit
            state.pass_slot(bit)
            if bit & self.chosen:
                state.close(bit)
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
            return self._branch(item, state, loops)
        return self._iteration(item, state, loops)

    def _branch(self, item: Branch, state: State, loops: tuple[Loop, ...]) -> State:
        first, *others = item.paths
        joined = self._sequence(first, state, loops)
        for case in others:
            joined.add_all(self._sequence(case, state, loops))
        waits = any(opened.ordered == ConflictScope.WARP for opened, _ in joined)
        if waits and item.diverges and not item.is_for_cpu:
            # Some threads do not come, and do not wait for their warps there.
            joined.add_all(state.moved(lambda o: o if _has_waited(o, joined) else None))
        return joined

    def _handed_over(self, state: State, item: MbarrierStep) -> State:
        if item.waits and self._noted is not None and not item.is_of_first_phase:
            return state  # it may be over before the part that comes later begins
        change = self._told_by(item) if item.waits else self._released_by(item)
        known = self._checker.handed_over.setdefault(item, {})  # loops come here again and again

        def behind(opened: PendingAccess) -> PendingAccess | None:
            if opened not in known:
                known[opened] = change(opened)
            return known[opened]

        return state.moved(behind)

    def _told_by(self, item: MbarrierStep) -> Callable[[PendingAccess], PendingAccess | None]:
        """A filter for accesses of which threads know that wait; None of one that all know of."""
        everyone = self._cluster.all_threads

        def told(opened: PendingAccess) -> PendingAccess | None:
            opened = opened.known_to(item, self._cluster)
            return None if opened.known == everyone else opened

        return told

    def _released_by(self, item: MbarrierStep) -> Callable[[PendingAccess], PendingAccess]:
        """A filter for accesses whose threads arrive at an mbarrier, or one that knows of it."""
        active = item.active

        def arrives(opened: PendingAccess, block: int) -> bool:
            if self._cluster.in_block(block, opened.known) & active.threads[block]:
                return True
            is_close = opened.ordered != ConflictScope.NONE
            arrived = active.threads[block]
            arrived = self._footprints.warps_of(arrived) if is_close else arrived
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
            return opened.arrived(wait.awaited) if opened.is_of(wait) else opened

        return state.moved(after)

    def _iteration(self, item: Iteration, before: State, loops: tuple[Loop, ...]) -> State:
        loop, state = item.loop, self._entering(item, before)
        end, broken, reached = self._fixed_point(item, state, (*loops, loop))
        if loop.var is None:
            after = reached.moved(lambda opened: opened.leaving(loop))
        else:
            after = end.moved(lambda opened: opened.after(loop))
        after.add_all(broken.moved(lambda opened: opened.leaving(loop)))
        if not item.runs:
            after.add_all(before)
        return after

    def _entering(self, item: Iteration, before: State) -> State:
        counted = self._checker.counted_in(item)
        return before.moved(lambda opened: opened.entering(item.loop, counted))

    def _fixed_point(
        self, item: Iteration, state: State, inside: tuple[Loop, ...]
    ) -> tuple[State, State, State]:
        """The states at the end of an iteration, at a `break`, and at the next iteration."""
        loop = item.loop
        reached = state.empty()
        while True:
            self._exits.append((state.empty(), state.empty()))
            end = self._sequence(item.body, state, inside)
            broken, continued = self._exits.pop()
            end.add_all(continued)
            next_one = end.moved(lambda opened: self._checker.in_next_iteration(opened, loop))
            if loop.var is None:  # a `while` evaluates its condition again
                next_one = self._accesses(item.head, next_one, inside[:-1])
            reached.add_all(next_one)
            if not state.add_all(reached):
                return end, broken, reached

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
        closed = 0
        for each in done:
            closed |= self._check(state, each)
        if closed:
            state.close(closed)
        for block, own, places in done:
            distances = self._checker.distances_of(own, loops)
            signals = None if own.token is None else SignalCounts()
            on = () if own.mbarrier is None else ((own.mbarrier, place) for place in places)
            state.open(
                PendingAccess(
                    own, distances, ConflictScope.NONE, signals, block, places, frozenset(on)
                )
            )
        return state

    def _check(self, state: State, done: Done) -> int:
        """Look for conflicts with an access; the points that they need a barrier in."""
        later = done.access
        if later.is_of_device and not self._of_device:
            return 0
        needed = 0
        for earlier, paths in state.of(self._rivals[later]):
            if not may_race(earlier.access, later) or earlier.is_on_its_way:
                continue
            if earlier.places.isdisjoint(done.places) or self.is_separated(
                later, ConflictScope.BLOCK, paths
            ):
                continue
            if later.ordering is not None and not earlier.is_of_iteration_before(later.ordering):
                continue
            known = self._cluster.in_block(done.block, earlier.known)
            if known and not self._footprints.threads_of(later) & ~known:
                continue
            scope, in_flight = self._checker.conflict(earlier, later)
            if scope <= earlier.ordered:
                continue
            if self._checker.is_settled(earlier.access, later):
                continue
            if any(order.excuses(earlier, done) for order in self._other_orders):
                continue
            if self._noted is not None:
                self._noted.note(earlier, done)
                continue
            if 0 in paths:
                raise Race(earlier.access, later, in_flight=in_flight)
            needed |= self.separate(later, scope, paths)
        return needed
