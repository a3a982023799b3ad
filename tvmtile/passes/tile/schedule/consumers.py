"""What the consumers of a specialised kernel do: all but the producer's copies."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.asynchronous import asynchronously, signal, wait
from tvmtile.ir.kernels import flattened
from tvmtile.ir.rewriting import seq, substitute, with_fresh_variables
from tvmtile.passes.tile.schedule.body import Body, KernelTiles
from tvmtile.passes.tile.schedule.candidates import Candidate, CrossIterationOverlap
from tvmtile.passes.tile.schedule.iteration_space import IterationSpace
from tvmtile.passes.tile.schedule.plan import work_of
from tvmtile.passes.tile.schedule.rings import Ring
from tvmtile.passes.tile.schedule.roles import Preload, Split, Splits, counters_of, parts_of


def consumers_of(
    body: tirx.Stmt,
    splits: Splits,
    tiles: KernelTiles,
    thread: ir.Expr,
    kind: str,
    preloads: Sequence[Preload] = (),
    without: Sequence[tirx.Stmt] = (),
) -> tirx.Stmt:
    """What the consumers do: all but the producer's copies.

    Tiles have their buffer copies in `body`; `splits` are its loops by their variable. `thread` is a
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
        split = splits.get(loop.loop_var)
        if split is None:
            return mutator.default_mutate(loop)
        own = [each for each in preloads if each.variable.same_as(loop.loop_var)]
        return seq(_consuming(loop, split, parts_of(loop, split, tiles), thread, kind, own))

    return seq(
        [*counters_of(splits, preloads), mutated(body, (tirx.For, visit), (tirx.SeqStmt, sequence))]
    )


def _consuming(
    loop: tirx.For,
    split: Split,
    body: Body,
    thread: ir.Expr,
    kind: str,
    preloads: Sequence[Preload],
) -> list[tirx.Stmt]:
    ready = [each.ring.wait_until_full() for each in preloads]
    early, late = (
        [stmt for p in preloads if p.is_free_early == is_early for stmt in p.ring.release(thread)]
        for is_early in (True, False)
    )
    space = split.space.of(loop)
    counted = [*space.counted(), *(stmt for each in preloads for stmt in each.counted())]
    if split.candidate.skew is not None:
        parts = skewed(space, split.candidate.skew, split.rings, body, thread, kind, early)
        return [*body.declarations, *ready, *space.begun(parts), *late, *counted]
    products = [n for n in split.candidate.order if work_of(body.units[n], kind) is not None]
    ahead = _ahead(split.candidate, products)
    tokens = {
        number: f"{work.name}/{loop.loop_var.name}{number}"
        for number in (*split.candidate.in_flight, *_going_on(split.candidate, products, ahead))
        if (work := work_of(body.units[number], kind)) is not None
    }
    awaited = _awaited(split, tokens)
    begin = [number for number in awaited if ahead is not None and number <= products[0]]
    following = [ring for number in begin for ring in awaited.pop(number)]
    behind = {ahead: following} if ahead is not None and following else {}
    statements = _iteration(space, split, body, tokens, thread, awaited, behind)
    used = body.bindings_for(statements)
    whole = [space.each([*used, *statements])]
    if following:
        first = [ring.wait_until_full(space.number_of_first) for ring in following]
        whole = [*space.if_any(first), *whole]
    if split.candidate.in_flight:
        # If sums in flight met those of a loop without iterations in front of the wait for them, ptxas
        # would have each product wait for the one before (C7515).
        whole += [wait(tokens[number], 0) for number in split.candidate.in_flight]
        whole = space.if_any([*whole, *_released_last(split, space, thread)])
    return [*body.declarations, *ready, *space.begun(whole), *early, *late, *counted]


def _ahead(candidate: Candidate, products: Sequence[int]) -> int | None:
    """The product behind which an iteration waits for tiles of the next one, if it does.

    That is the last one, where all are waited for before the iteration ends: the next ones are issued
    as soon as threads have used the sums then. A buffer copy is held meanwhile.
    """
    if not products or candidate.in_flight or not candidate.may_hold_a_copy:
        return None
    if candidate.condition is not None or candidate.units[products[-1]].conditions:
        return None
    return None if products[-1] == candidate.order[-1] else products[-1]


def _going_on(candidate: Candidate, products: Sequence[int], ahead: int | None) -> list[int]:
    """Products that go on under statements behind them, to the end of the iteration at most."""
    return [
        number
        for number, following in itertools.pairwise(candidate.order)
        if number in products
        and number not in candidate.in_flight
        and not candidate.units[number].conditions
        and (number == ahead or not candidate.units[number].conflicts(candidate.units[following]))
    ]


def _awaited(split: Split, tokens: Mapping[int, str]) -> dict[int, list[Ring]]:
    """Whose tiles are waited for before which statement.

    What reads a tile under a product waits for the tile before that is issued: a wait is a loop, past
    which ptxas would move no instruction of what threads compute meanwhile.
    """
    awaited: dict[int, list[Ring]] = {}
    product: int | None = None
    for number in split.candidate.order:
        product = number if number in tokens else product
        before = number if product is None else product
        rings = [ring for ring in split.rings if ring.first == number]
        awaited.setdefault(before, []).extend(rings)
    return awaited


def _iteration(
    space: IterationSpace,
    split: Split,
    body: Body,
    tokens: Mapping[int, str],
    thread: ir.Expr,
    awaited: Mapping[int, Sequence[Ring]],
    behind: Mapping[int, Sequence[Ring]],
) -> list[tirx.Stmt]:
    """The statements of an iteration; products are waited for where one needs them to be done.

    The tiles of `awaited` are waited for before statements, those that the next iteration has in
    `behind` after them.
    """
    units, in_flight = split.candidate.units, split.candidate.in_flight
    statements: list[tirx.Stmt] = []
    going_on: list[int] = []

    def end(numbers: list[int]) -> None:
        """Wait for products, and so for those that began before."""
        while any(number in going_on for number in numbers):
            first = going_on.pop(0)
            statements.append(wait(tokens[first], 0))
            release(first)

    def release(number: int) -> None:
        for ring in split.rings:
            if ring.last == number:
                tiles = set(split.filled(ring))
                end([other for other in going_on if not tiles.isdisjoint(units[other].touches)])
                statements.extend(_released(ring, space, thread))

    for number in split.candidate.order:
        statements += [ring.wait_until_full() for ring in awaited.get(number, ())]
        end([other for other in going_on if units[other].conflicts(units[number])])
        statements += _begun(
            body.units[number].stmt, tokens.get(number), in_flight=number in in_flight
        )
        if number in behind:
            waits = [ring.wait_until_full(space.number_after) for ring in behind[number]]
            statements.append(tirx.IfThenElse(space.is_followed, seq(waits), None))
        if number in tokens and number not in in_flight:
            going_on.append(number)
        else:
            release(number)
    end(list(going_on))
    return statements


def _begun(stmt: tirx.Stmt, token: str | None, *, in_flight: bool) -> list[tirx.Stmt]:
    """A statement; with a token it goes on, in flight until the next iteration has issued its own."""
    if token is None:
        return [stmt]
    issued = [asynchronously(token, stmt), signal(token)]
    return [*issued, wait(token, 1)] if in_flight else issued


def _released(ring: Ring, space: IterationSpace, thread: ir.Expr) -> list[tirx.Stmt]:
    """Behind the last use in an iteration: the copy is free, or that of the iteration before."""
    if not ring.in_flight:
        return ring.release(thread)
    return ring.release(thread, space.number_before, space.is_later)


def _released_last(split: Split, space: IterationSpace, thread: ir.Expr) -> list[tirx.Stmt]:
    """Behind the loop: the copies of the last iteration."""
    return [
        statement
        for ring in split.rings
        if ring.in_flight
        for statement in ring.release(thread, space.number_of_last)
    ]


# Products of two iterations at once ---------------------------------------------------------------


def skewed(
    space: IterationSpace,
    skew: CrossIterationOverlap,
    rings: Sequence[Ring],
    body: Body,
    thread: ir.Expr,
    kind: str,
    before_last: Sequence[tirx.Stmt] = (),
) -> list[tirx.Stmt]:
    """What consumers do in place of a loop.

    Another role fills the `rings`. `thread` is a number among the consumers'. What is `before_last` is
    done before the last product, and where there is none.
    """
    return _Skewed(space, skew, rings, body, thread, kind).statements(before_last)


class _Skewed:
    """Prologue, steady state and epilogue of a loop whose second product goes on (see its `skew`).

    What is no whole iteration stands before the loop and behind it: if a product stood in a branch,
    ptxas would have each one wait for that before (C7514). A wait for a tile is a loop, past which
    ptxas moves no instruction. So threads wait where products are issued: for the tiles of the
    statements between them, too, before the first one. What these compute and what waits for the
    second product is one piece of code then, in which exponentials hide the rest.
    """

    def __init__(
        self,
        space: IterationSpace,
        skew: CrossIterationOverlap,
        rings: Sequence[Ring],
        body: Body,
        thread: ir.Expr,
        kind: str,
    ) -> None:
        self._space = space
        self._skew = skew
        self._rings = rings
        self._body = body
        self._thread = thread
        self._tokens = {
            number: f"{work.name}/{space.loop.loop_var.name}{number}"
            for number in (skew.first, skew.second)
            if (work := work_of(body.units[number], kind)) is not None
        }

    def statements(self, before_last: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
        others = self._space.others(self._steady())
        whole = [*self._head(), others, *before_last, *self._tail()]
        return self._space.if_any(whole, before_last)

    def _head(self) -> list[tirx.Stmt]:
        """The first iteration, but for its second product."""
        skew = self._skew
        begin = [*self._done(*skew.leading[:-1]), *self._begun()]
        rest = [*self._ended(skew.first), *self._ran(*skew.early), *self._ran(*skew.late)]
        return [*self._of(self._space.first, [*begin, *rest]), *self._space.passed()]

    def _steady(self) -> list[tirx.Stmt]:
        """An iteration, with the second product of the one before."""
        skew, now, before = self._skew, dict[ir.Var, ir.Expr](), self._space.before
        return [
            *self._of(now, [*self._done(*skew.leading[:-1]), *self._begun()]),
            *self._of(before, [*self._ready(skew.second), *self._issued(skew.second)]),
            *self._of(now, [*self._ended(skew.first), *self._ran(*skew.early)]),
            *self._of(before, self._ended(skew.second)),
            *self._of(now, self._ran(*skew.late)),
        ]

    def _tail(self) -> list[tirx.Stmt]:
        """The second product of the last iteration."""
        return self._of(self._space.last, self._done(self._skew.second))

    def _begun(self) -> list[tirx.Stmt]:
        """The first product, and the waits of the statements behind it."""
        skew = self._skew
        between = (*skew.early, *skew.late)
        return [*self._ready(skew.first, *between), *self._issued(skew.first)]

    def _of(self, iteration: dict[ir.Var, ir.Expr], statements: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """Statements of an iteration, with the names that they need."""
        if not statements:
            return []
        whole = seq([*self._body.bindings_for(statements), *statements])
        return list(flattened(with_fresh_variables(substitute(whole, iteration))))

    # Each of these makes statements anew: a wait stands for what is in flight at its own place.

    def _done(self, *numbers: int) -> list[tirx.Stmt]:
        return [s for number in numbers for s in (*self._ready(number), *self._ran(number))]

    def _ran(self, *numbers: int) -> list[tirx.Stmt]:
        """Units whose tiles were waited for."""
        return [s for number in numbers for s in (*self._issued(number), *self._ended(number))]

    def _ready(self, *numbers: int) -> list[tirx.Stmt]:
        """Before units: the tiles that they are the first to use have come."""
        return [ring.wait_until_full() for ring in self._rings if ring.first in numbers]

    def _issued(self, number: int) -> list[tirx.Stmt]:
        """A unit; a product goes on until it is waited for."""
        stmt, token = self._body.units[number].stmt, self._tokens.get(number)
        return [stmt] if token is None else [asynchronously(token, stmt), signal(token)]

    def _ended(self, number: int) -> list[tirx.Stmt]:
        """Behind a unit: it is waited for, and the tiles that it used last are free."""
        token = self._tokens.get(number)
        statements = [] if token is None else [wait(token, 0)]
        for ring in self._rings:
            if ring.last == number:
                statements += ring.release(self._thread)
        return statements
