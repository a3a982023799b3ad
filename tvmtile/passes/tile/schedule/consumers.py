"""What the consumers of a specialised kernel do: all but the producer's copies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.analysis.kernel_info import KernelInfo
from tvmtile.ir.asynchronous import asynchronously, signal, wait
from tvmtile.ir.kernels import flattened
from tvmtile.ir.rewriting import seq, substitute, with_fresh_variables
from tvmtile.passes.tile.schedule.plan import work_of
from tvmtile.passes.tile.schedule.rings import Ring
from tvmtile.passes.tile.schedule.roles import Preload, Schedules, counters_of, parts_of
from tvmtile.passes.tile.schedule.schedules import Schedule


def consumers_of(
    body: tirx.Stmt,
    schedules: Schedules,
    tiles: KernelInfo,
    thread: ir.Expr,
    kind: str,
    preloads: Sequence[Preload] = (),
    without: Sequence[tirx.Stmt] = (),
) -> tirx.Stmt:
    """What the consumers do: all but the producer's copies.

    Tiles have their buffer copies in `body`; `schedules` are its loops by their variable. `thread` is a
    number among the consumers', who leave out the statements `without`.
    """

    def sequence(node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        kept = (
            child
            for child in flattened(node)
            if not any(map(child.same_as, without)) and not any(p.fills(child) for p in preloads)
        )
        return seq([mutator.mutate(child) for child in kept])

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        schedule = schedules.get(loop.loop_var)
        if schedule is None:
            return mutator.default_mutate(loop)
        own = [each for each in preloads if each.variable.same_as(loop.loop_var)]
        return seq(_Consumed(loop, schedule, tiles, thread, kind, own).statements())

    return seq(
        [
            *counters_of(schedules, preloads),
            mutated(body, (tirx.For, visit), (tirx.SeqStmt, sequence)),
        ]
    )


_Event: TypeAlias = tuple[int, tirx.Stmt]
"""A statement, and by how many iterations it is ahead of the others, or behind them."""


class _Consumed:
    """A loop as its consumers execute it: units, waits for tiles and products, and releases.

    The second product of a loop with a skew belongs to the iteration before. What is no whole iteration
    stands in a prologue and an epilogue then: if a product stood in a branch, ptxas would have each one
    wait for that before (C7514). In other loops only waits and releases are of neighbouring iterations,
    each in a branch of its own.

    A wait for a tile is a loop, past which ptxas moves no instruction. So what reads a tile under a
    product waits for the tile before that is issued, and what threads compute meanwhile is one piece of
    code, in which exponentials hide the rest.
    """

    def __init__(
        self,
        loop: tirx.For,
        schedule: Schedule,
        tiles: KernelInfo,
        thread: ir.Expr,
        kind: str,
        preloads: Sequence[Preload],
    ) -> None:
        self._schedule, self._rings, self._thread = schedule, schedule.rings, thread
        self._units = schedule.units
        self._body = parts_of(loop, schedule, tiles)
        self._space = schedule.space.of(loop)
        self._preloads = preloads
        works = {n: work_of(self._body.units[n], kind) for n in self._schedule.order}
        products = [n for n, work in works.items() if work is not None]
        ahead = _ahead(self._schedule, products)
        self._tokens = {
            n: f"{work.name}/{loop.loop_var.name}{n}"
            for n, work in works.items()
            if work is not None and self._goes_on(n, ahead)
        }
        self._awaited = self._awaited_before()
        self._following: dict[int, list[Ring]] = {}
        """The tiles that the next iteration waits for, by the product behind which that is done."""
        if ahead is not None:
            begin = [n for n in self._awaited if n <= products[0]]
            self._following[ahead] = [ring for n in begin for ring in self._awaited.pop(n)]

    def statements(self) -> list[tirx.Stmt]:
        """What consumers do in place of the loop."""
        ready = [each.ring.wait_until_full() for each in self._preloads]
        early, late = (
            [
                s
                for p in self._preloads
                if p.is_free_early == at
                for s in p.ring.release(self._thread)
            ]
            for at in (True, False)
        )
        counted = [s for each in self._preloads for s in each.counted()]
        if self._schedule.skew is not None:
            whole = self._space.begun(self._peeled(early))
        else:
            whole = [*self._space.begun(self._guarded()), *early]
        return [*self._body.declarations, *ready, *whole, *late, *self._space.counted(), *counted]

    def _goes_on(self, product: int, ahead: int | None) -> bool:
        """Tell whether a product goes on under statements behind it."""
        schedule = self._schedule
        if schedule.skew is not None or product in schedule.in_flight or product == ahead:
            return True
        behind = schedule.order[schedule.order.index(product) + 1 :][:1]
        unit = self._units[product]
        return not unit.conditions and any(not unit.conflicts(self._units[n]) for n in behind)

    def _awaited_before(self) -> dict[int, list[Ring]]:
        """Whose tiles are waited for before which unit: that which uses them first, or a product."""
        awaited: dict[int, list[Ring]] = {}
        product: int | None = None
        for number in self._schedule.order:
            product = number if number in self._tokens else product
            rings = [ring for ring in self._rings if ring.first == number]
            awaited.setdefault(number if product is None else product, []).extend(rings)
        return awaited

    # An iteration ----------------------------------------------------------------------------------

    def _events(self) -> list[_Event]:
        """An iteration; products are waited for where a unit needs them to be done.

        Each time the statements are made anew: a wait stands for what is in flight at its own place.
        """
        schedule, skew = self._schedule, self._schedule.skew
        events: list[_Event] = []
        going_on: list[int] = []

        def add(number: int, *statements: tirx.Stmt) -> None:
            offset = -1 if skew is not None and number == skew.second else 0
            events.extend((offset, stmt) for stmt in statements)

        def end(numbers: Sequence[int]) -> None:
            """Wait for products, and so for those that began before."""
            while any(number in going_on for number in numbers):
                first = going_on.pop(0)
                add(first, wait(self._tokens[first], 0))
                release(first)

        def release(number: int) -> None:
            for ring in self._rings:
                if ring.last == number:
                    tiles = set(self._schedule.filled(ring))
                    end([n for n in going_on if not tiles.isdisjoint(self._units[n].touches)])
                    add(number, *self._released(ring))

        for number in schedule.order if skew is None else skew.issued:
            add(number, *(ring.wait_until_full() for ring in self._awaited.get(number, ())))
            end([other for other in going_on if self._units[other].conflicts(self._units[number])])
            add(number, *self._begun(number))
            if following := self._following.get(number):
                waits = [ring.at(self._space.shifted(1)).wait_until_full() for ring in following]
                add(number, tirx.IfThenElse(self._space.is_followed, seq(waits), None))
            if number in self._tokens and number not in schedule.in_flight:
                going_on.append(number)
            else:
                release(number)
        end(list(going_on))
        return events

    def _begun(self, number: int) -> list[tirx.Stmt]:
        """A unit; with a token it goes on, in flight until the next iteration has issued its own."""
        stmt, token = self._body.units[number].stmt, self._tokens.get(number)
        if token is None:
            return [stmt]
        issued = [asynchronously(token, stmt), signal(token)]
        return [*issued, wait(token, 1)] if number in self._schedule.in_flight else issued

    def _released(self, ring: Ring) -> list[tirx.Stmt]:
        """Behind the last use in an iteration: the copy is free, or that of the iteration before."""
        if not ring.in_flight:
            return ring.release(self._thread)
        return ring.at(self._space.shifted(-1)).release(self._thread, self._space.is_later)

    # All iterations --------------------------------------------------------------------------------

    def _guarded(self) -> list[tirx.Stmt]:
        """A loop without a skew."""
        space = self._space
        statements = [stmt for _, stmt in self._events()]
        whole = [space.each([*self._body.bindings_for(statements), *statements])]
        following = [ring for rings in self._following.values() for ring in rings]
        if following:
            first = [ring.at(space.started()).wait_until_full() for ring in following]
            whole = [*space.if_any(first), *whole]
        if self._schedule.in_flight:
            # If sums in flight met those of a loop without iterations in front of the wait for them,
            # ptxas would have each product wait for the one before (C7515).
            whole += [wait(self._tokens[number], 0) for number in self._schedule.in_flight]
            for ring in self._rings:
                whole += ring.at(space.last).release(self._thread) if ring.in_flight else []
            whole = space.if_any(whole)
        return whole

    def _peeled(self, before_last: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """A loop with a skew; `before_last` stands before the last product, and where there is none."""
        space = self._space
        prologue, epilogue = (
            self._of(iteration, [stmt for at, stmt in self._events() if at == offset])
            for offset, iteration in ((0, space.started()), (-1, space.last))
        )
        steady = [
            stmt
            for offset, group in itertools.groupby(self._events(), lambda event: event[0])
            for stmt in self._of(space.shifted(-1) if offset else {}, [stmt for _, stmt in group])
        ]
        whole = [*prologue, *space.passed(), space.others(steady), *before_last, *epilogue]
        return space.if_any(whole, before_last)

    def _of(self, iteration: dict[ir.Var, Any], statements: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """Statements of an iteration, with the names that they need."""
        whole = seq([*self._body.bindings_for(statements), *statements])
        return list(flattened(with_fresh_variables(substitute(whole, iteration))))


def _ahead(schedule: Schedule, products: Sequence[int]) -> int | None:
    """The product behind which an iteration waits for tiles of the next one, if it does.

    That is the last one, where all are waited for before the iteration ends: the next ones are issued
    as soon as threads have used the sums then. A buffer copy is held meanwhile.
    """
    if not products or schedule.in_flight or not schedule.may_hold_a_copy:
        return None
    if schedule.skew is not None or schedule.condition is not None:
        return None
    is_last = products[-1] == schedule.order[-1]
    return None if is_last or schedule.units[products[-1]].conditions else products[-1]
