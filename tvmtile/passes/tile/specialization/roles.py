"""What the two roles of a specialised kernel do."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mapped, mutated
from tvmtile.analysis.accesses import accesses_of
from tvmtile.ir.asynchronous import CP_ASYNC, asynchronously, signal, wait
from tvmtile.ir.kernels import flattened
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import (
    contains,
    defined_in,
    has_effect,
    mentions,
    replace_loop,
    retyped,
    seq,
    substitute,
    variables_of,
    with_fresh_variables,
)
from tvmtile.ir.scopes import is_shared
from tvmtile.passes.tile.pipelining import Body, KernelTiles, body_of, has_effects, work_of
from tvmtile.passes.tile.specialization.candidates import Candidate, Unsuitable
from tvmtile.passes.tile.specialization.loops import one_of, rolled
from tvmtile.passes.tile.specialization.preloads import Preload
from tvmtile.passes.tile.specialization.ring import Ring
from tvmtile.passes.tile.specialization.skew import skewed

__all__ = ["Producer", "Split", "Splits", "consumers_of", "producer_of"]


@dataclass(frozen=True)
class Split:
    """A loop that is split."""

    candidate: Candidate
    """The loop as it was."""
    rings: list[Ring]
    """Of its tiles."""
    counter: ir.Var | None
    """Counts the iterations of former executions of the loop, and of others with its tiles, where there
    may be some.
    """

    @property
    def variable(self) -> ir.Var:
        """The variable of the loop."""
        return self.candidate.loop.loop_var

    def filled(self, ring: Ring) -> list[ir.Var]:
        """The tiles of a ring."""
        return [tile for unit in ring.units for tile in self.candidate.units[unit].writes]

    def counted(self, loop: tirx.For) -> list[tirx.Stmt]:
        """What counts the iterations of an execution of the loop."""
        if self.counter is None:
            return []
        # A loop whose end lies before its beginning has no iterations.
        executed = tirx.max(loop.extent, tirx.const(0, str(loop.extent.ty.dtype)))
        total = tirx.BufferLoad(self.counter, [0]) + executed
        return [tirx.BufferStore(self.counter, total, [0])]


Splits = Mapping[ir.Var, Split]
"""By the variable of the loop."""


def _counters(splits: Splits, preloads: Sequence[Preload]) -> list[tirx.Stmt]:
    """Counters that begin."""
    counters = [*(each.counter for each in splits.values()), *(each.counter for each in preloads)]
    return [
        statement
        for counter in dict.fromkeys(each for each in counters if each is not None)
        for statement in (
            tirx.AllocBuffer(counter),
            tirx.BufferStore(counter, tirx.const(0, str(counter.ty.dtype)), [0]),
        )
    ]


def _parts(loop: tirx.For, split: Split, tiles: KernelTiles) -> Body:
    body = body_of(loop, tiles, split=True)
    assert len(body.units) == len(split.candidate.units), "the loop was split before"
    return body


# Consumers ---------------------------------------------------------------------------------------


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
        return seq(_consuming(loop, split, _parts(loop, split, tiles), thread, kind, own))

    return seq(
        [*_counters(splits, preloads), mutated(body, (tirx.For, visit), (tirx.SeqStmt, sequence))]
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
    counted = [*split.counted(loop), *(stmt for each in preloads for stmt in each.counted())]
    if split.candidate.skew is not None:
        parts = skewed(loop, split.candidate.skew, split.rings, body, thread, kind, early)
        return [*body.declarations, *ready, *parts, *late, *counted]
    tokens = {
        number: f"{work.name}/{loop.loop_var.name}{number}"
        for number in (*split.candidate.in_flight, *_going_on(split.candidate, kind))
        if (work := work_of(body.units[number], kind)) is not None
    }
    statements = _iteration(loop, split, body, tokens, thread)
    used = body.bindings_for(statements)
    whole: list[tirx.Stmt] = [rolled(loop, [*used, *statements])]
    if split.candidate.in_flight:
        whole += [wait(tokens[number], 0) for number in split.candidate.in_flight]
        whole = _if_any(loop, [*whole, *_released_last(split, loop, thread)])
    return [*body.declarations, *ready, *whole, *early, *late, *counted]


def _if_any(loop: tirx.For, statements: list[tirx.Stmt]) -> list[tirx.Stmt]:
    """What is done if a loop has an iteration.

    If sums in flight met those of a loop without iterations in front of the wait for them, ptxas would
    have each product wait for the one before (C7515).
    """
    if (constant(loop.extent) or 0) > 0:
        return statements
    return [tirx.IfThenElse(loop.extent > 0, seq(statements), None)]


def _going_on(candidate: Candidate, kind: str) -> list[int]:
    """Products that go on under statements behind them, to the end of the iteration at most."""
    return [
        number
        for number, following in itertools.pairwise(candidate.order)
        if number not in candidate.in_flight
        and not candidate.units[number].conditions
        and work_of(candidate.units[number], kind) is not None
        and not candidate.units[number].conflicts(candidate.units[following])
    ]


def _iteration(
    loop: tirx.For, split: Split, body: Body, tokens: Mapping[int, str], thread: ir.Expr
) -> list[tirx.Stmt]:
    """The statements of an iteration; products are waited for where one needs them to be done.

    What reads a tile under a product waits for the tile before that is issued: a wait is a loop, past
    which ptxas would move no instruction of what threads compute meanwhile.
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
                statements.extend(_released(ring, loop, thread))

    awaited: dict[int, list[tirx.Stmt]] = {}
    product: int | None = None
    for number in split.candidate.order:
        product = number if number in tokens else product
        before = number if product is None else product
        waits = [ring.wait_until_full() for ring in split.rings if ring.first == number]
        awaited.setdefault(before, []).extend(waits)

    for number in split.candidate.order:
        statements += awaited.get(number, [])
        end([other for other in going_on if units[other].conflicts(units[number])])
        statements += _begun(
            body.units[number].stmt, tokens.get(number), in_flight=number in in_flight
        )
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


def _released(ring: Ring, loop: tirx.For, thread: ir.Expr) -> list[tirx.Stmt]:
    """Behind the last use in an iteration: the copy is free, or that of the iteration before."""
    if not ring.in_flight:
        return ring.release(thread)
    return ring.release(thread, ring.iteration - one_of(loop), loop.loop_var > loop.min)


def _released_last(split: Split, loop: tirx.For, thread: ir.Expr) -> list[tirx.Stmt]:
    """Behind the loop: the copies of the last iteration."""
    last = loop.min + loop.extent - one_of(loop)
    return [
        statement
        for ring in split.rings
        if ring.in_flight
        for statement in ring.release(thread, substitute(ring.iteration, {split.variable: last}))
    ]


# Producer ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Producer:
    """What the producer does."""

    body: tirx.Stmt
    """The copies, in the loops and under the conditions around them, and what they need."""
    replayed: list[tirx.Stmt]
    """What it does of the kernel besides: index tiles, bounds."""

    def needed_by(self, others: tirx.Stmt) -> list[tirx.Stmt]:
        """The replayed statements that write what other statements need."""
        return [
            stmt
            for stmt in self.replayed
            if any(mentions(others, buffer) for buffer in _written_in([stmt]))
        ]

    def apart_from(self, others: tirx.Stmt) -> tuple[list[tirx.Stmt], tirx.Stmt]:
        """The body with buffers of its own for what others compute too, and their allocations."""
        own = {buffer: retyped(buffer) for buffer in _written_in(self.needed_by(others))}
        return [tirx.AllocBuffer(buffer) for buffer in own.values()], substitute(self.body, own)


def producer_of(
    body: tirx.Stmt,
    splits: Splits,
    tiles: KernelTiles,
    thread: ir.Expr,
    preloads: Sequence[Preload] = (),
) -> Producer:
    """What the producer does.

    `thread` is a number among the producer's; the rest is as of `consumers_of`.

    Raises
    ------
    Unsuitable
        If the copies depend on what only consumers know.
    """
    slicer = _Slicer(body, splits, tiles, thread, preloads)
    whole = with_fresh_variables(seq([*_counters(splits, preloads), *slicer.slice()]))
    _check_known(whole, body)
    return Producer(whole, slicer.replayed)


class _Slicer:
    """Keeps the loops to be split, what is around them, and what they need."""

    def __init__(
        self,
        body: tirx.Stmt,
        splits: Splits,
        tiles: KernelTiles,
        thread: ir.Expr,
        preloads: Sequence[Preload],
    ) -> None:
        self.replayed: list[tirx.Stmt] = []
        self._preloads = preloads
        self._body = body
        self._splits = splits
        self._tiles = tiles
        self._thread = thread
        self._filled: set[ir.Var] = set()

    def slice(self) -> list[tirx.Stmt]:
        kept = self._of(self._body)
        self._check_replayed(kept)
        return kept

    def _of(self, stmt: tirx.Stmt) -> list[tirx.Stmt]:
        """What a statement is to the producer; nothing where there are no loops to be split."""
        if isinstance(stmt, tirx.For) and stmt.loop_var in self._splits:
            return self._producing(stmt, self._splits[stmt.loop_var])
        if not contains(stmt, tirx.For, lambda loop: loop.loop_var in self._splits):
            return []
        if isinstance(stmt, tirx.SeqStmt):
            return self._sequence(stmt)
        if isinstance(stmt, tirx.For):
            self._check_pure(stmt.min, stmt.extent)
            return [replace_loop(stmt, body=seq(self._of(stmt.body)))]
        if isinstance(stmt, tirx.IfThenElse):
            self._check_pure(stmt.condition)
            other = None if stmt.else_case is None else seq(self._of(stmt.else_case))
            return [tirx.IfThenElse(stmt.condition, seq(self._of(stmt.then_case)), other)]
        if isinstance(stmt, tirx.AttrStmt):
            return [tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, seq(self._of(stmt.body)))]
        raise Unsuitable("the loop is inside of a statement that only consumers do")

    def _sequence(self, stmt: tirx.SeqStmt) -> list[tirx.Stmt]:
        """The loops, and before them what they use."""
        kept: list[tirx.Stmt] = []
        used: set[ir.Var] = set()
        for child in reversed(list(flattened(stmt))):
            parts = self._needed(child, used)
            used |= self._used(parts)
            kept = [*parts, *kept]
        return kept

    def _needed(self, child: tirx.Stmt, used: set[ir.Var]) -> list[tirx.Stmt]:
        """What a statement is to the producer, of whose later ones something is used."""
        if isinstance(child, tirx.Bind):
            if child.var not in used:
                return []
            self._check_pure(child.value)
            return [child]
        for each in self._preloads:
            if each.fills(child):
                self._filled.add(each.tile)
                copies = [_arriving(child, each.ring)]
                return [*each.ring.fill([], copies, self._thread), *each.counted()]
        parts = self._of(child)
        if parts or used.isdisjoint(self._roots_written(child)):
            return parts
        self.replayed.insert(0, child)
        return [child]

    def _used(self, statements: Sequence[tirx.Stmt]) -> set[ir.Var]:
        """The names and buffers that statements need, but for what the producer fills."""
        used = {self._tiles.root(var) for stmt in statements for var in variables_of(stmt)}
        return used - self._filled

    def _roots_written(self, *statements: tirx.Stmt) -> list[ir.Var]:
        return [self._tiles.root(buffer) for buffer in _written_in(statements)]

    def _check_replayed(self, kept: list[tirx.Stmt]) -> None:
        """Make sure that what is used is computed by the producer, and that it may compute it."""
        own = self._roots_written(*self.replayed)
        for root in dict.fromkeys(own):
            if root not in self._tiles.allocated or not _is_private(root):
                raise Unsuitable(f"the copies depend on {root.name}, which only consumers know")
            if self._tiles.views_of(root):
                raise Unsuitable(f"the copies depend on {root.name}, which has views")
        everywhere = self._roots_written(self._body)
        for root in self._used(kept):
            if everywhere.count(root) != own.count(root):
                raise Unsuitable(f"the copies depend on {root.name}, which only consumers know")
        if any(has_effects(stmt) for stmt in self.replayed):
            raise Unsuitable(f"the copies depend on {own[0].name}, which is not just computed")

    def _check_pure(self, *values: object) -> None:
        for value in values:
            if has_effect(value):
                raise Unsuitable(f"{value} has an effect, which the copies would repeat")

    def _producing(self, loop: tirx.For, split: Split) -> list[tirx.Stmt]:
        body = _parts(loop, split, self._tiles)
        for number in split.candidate.producers:
            self._filled.update(body.units[number].writes)
        statements: list[tirx.Stmt] = []
        for ring in split.rings:
            by_threads = split.candidate.by_threads.intersection(ring.units)
            loops = [
                asynchronously(CP_ASYNC.name, body.units[number].stmt)
                for number in ring.units
                if number in by_threads
            ]
            copies = [
                _arriving(body.units[number].stmt, ring)
                for number in ring.units
                if number not in by_threads
            ]
            statements += ring.fill(loops, copies, self._thread)
        used = body.bindings_for(statements)
        inner = rolled(loop, [*used, *statements])
        return [inner, *split.counted(loop)]


def _written_in(statements: Sequence[tirx.Stmt]) -> list[ir.Var]:
    """The buffers that statements write, once for each time."""
    return [a.buffer for stmt in statements for a in accesses_of(stmt) if a.writes]


def _is_private(buffer: ir.Var) -> bool:
    """Tell whether each of two roles may have such a buffer for itself."""
    return is_shared(buffer) or buffer.ty.storage_scope == "local"


def _arriving(stmt: tirx.Stmt, ring: Ring) -> tirx.Stmt:
    """A copy, which arrives on the mbarrier of a ring."""

    def rewrite(call: ir.Call) -> ir.Expr:
        op = operator_of(call)
        begun = op.begun_on(ring.arrives_on) if op is not None and op.is_tile else None
        return call if begun is None else begun.to_call(call.span)

    return mapped(stmt, (ir.Call, rewrite))


def _check_known(producer: tirx.Stmt, body: tirx.Stmt) -> None:
    """Make sure that it uses no name that something else in the kernel binds."""
    bound = defined_in(body)
    unknown = next((var for var in variables_of(producer) if var in bound), None)
    if unknown is not None:
        raise Unsuitable(f"the copies depend on {unknown.name}, which only consumers know")
