"""Combine the values of all threads of a block: by shuffles, then through shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.combiners import Combiner
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import nest, seq
from tvmtile.ir.scopes import SHARED_SCOPE
from tvmtile.ir.threads import ALL_LANES, WARP_SIZE
from tvmtile.ir.types import Index

_HALVES = (16, 8, 4, 2, 1)
_MOST_UNROLLED = 64


def shuffled(shuffle: Callable[..., ir.Expr], value: ir.Expr, lane: int) -> ir.Expr:
    """The value of another lane, by one of TVM's `tvm_warp_shuffle` functions."""
    return shuffle(tirx.const(ALL_LANES, "uint32"), value, lane, WARP_SIZE, WARP_SIZE)


def butterfly(
    total: ir.Expr,
    assign: Callable[[ir.Expr], tirx.Stmt],
    combiner: Combiner,
    distances: Iterable[int],
) -> tirx.Stmt:
    """Combine a lane's total with those at distances: after each, twice as many have the same."""
    steps: list[tirx.Stmt] = []
    for distance in distances:
        theirs: Any = shuffled(T.tvm_warp_shuffle_xor, total, distance)
        if combiner.repeats:  # all lanes come to a shuffle, whatever their totals are
            named = tirx.Var("theirs", str(total.ty.dtype))
            steps.append(tirx.Bind(named, theirs))
            theirs = named
        steps.append(assign(combiner.combine(theirs, total)))
    return seq(steps)


def per_thread(extents: Sequence[Index], body: Callable[[list[ir.Var]], tirx.Stmt]) -> tirx.Stmt:
    """Loops that every thread runs in full: unrolled where they are short."""
    count = 1
    for extent in extents:
        count *= constant(extent) or _MOST_UNROLLED + 1
    is_short = count <= _MOST_UNROLLED
    return nest(extents, body, tirx.ForKind.UNROLLED if is_short else tirx.ForKind.SERIAL)


def combine_over_block(
    totals: ir.Var,
    combiner: Combiner,
    thread: Index,
    threads: int,
    results: ir.Var | None = None,
) -> tirx.Stmt:
    """Combine the values of all threads of the block, in every thread.

    `totals` is an array of any rank that every thread has for itself; `results`, `totals` itself where
    absent, is another one for what comes out: it is read from shared memory, so that passes see that it
    is the same in all threads. Of a block with a partial warp fewer lanes are put together by shuffles:
    as many as divide the threads.
    """
    target = totals if results is None else results
    extents = list(totals.ty.shape)
    dtype = str(totals.ty.dtype)

    lanes = math.gcd(threads, WARP_SIZE)
    distances = [half for half in _HALVES if half < lanes]

    def in_simdgroup(indices: list[ir.Var]) -> tirx.Stmt:
        total = tirx.BufferLoad(totals, indices)
        return butterfly(
            total, lambda value: tirx.BufferStore(totals, value, indices), combiner, distances
        )

    if threads == lanes and results is None:
        return per_thread(extents, in_simdgroup)
    groups = threads // lanes
    exchange = tirx.decl_buffer([*extents, groups], dtype, name="exchange", scope=SHARED_SCOPE)
    group = tirx.floordiv(thread, lanes)

    def leave(indices: list[ir.Var]) -> tirx.Stmt:
        mine = tirx.BufferStore(exchange, tirx.BufferLoad(totals, indices), [*indices, group])
        return tirx.IfThenElse(tirx.floormod(thread, lanes) == 0, mine, None)

    def take(indices: list[ir.Var]) -> tirx.Stmt:
        total = tirx.BufferLoad(target, indices)
        theirs = [tirx.BufferLoad(exchange, [*indices, other]) for other in range(groups)]
        values = [theirs[0], *(combiner.combine(value, total) for value in theirs[1:])]
        return seq([tirx.BufferStore(target, value, indices) for value in values])

    return seq(
        [
            tirx.AllocBuffer(exchange),
            per_thread(extents, in_simdgroup),
            per_thread(extents, leave),
            per_thread(extents, take),
        ]
    )


@dataclass(frozen=True)
class Prefix:
    """The combined values of the preceding threads of a group."""

    combiner: Combiner
    """How values are put together."""
    dtype: str
    """Of the values."""
    thread: Index
    """The number of a thread in its block."""
    threads: int
    """Threads of the block."""
    group: int
    """Threads of a group, a power of two that divides those of the block."""

    def exclusive(self, total: ir.Var, before: ir.Var, everything: ir.Var | None) -> tirx.Stmt:
        """Set `before` to what the threads before this one have in `total`.

        All are arrays of one element that every thread has for itself. `total` is changed; `everything`
        gets what all threads of the group have together.
        """
        own, so_far = (tirx.BufferLoad(array, [0]) for array in (total, before))
        lanes = min(self.group, WARP_SIZE)
        lane = tirx.floormod(self.thread, lanes)
        statements: list[tirx.Stmt] = []
        distance = 1
        while distance < lanes:
            other = shuffled(T.tvm_warp_shuffle_up, own, distance)
            statements.append(tirx.BufferStore(before, other, [0]))
            added = tirx.BufferStore(total, self.combiner.combine(own, so_far), [0])
            statements.append(tirx.IfThenElse(lane >= distance, added, None))
            distance *= 2
        statements.append(tirx.BufferStore(before, shuffled(T.tvm_warp_shuffle_up, own, 1), [0]))
        none = tirx.BufferStore(before, self.combiner.identity(self.dtype), [0])
        statements.append(tirx.IfThenElse(lane == 0, none, None))
        if self.group > WARP_SIZE:
            statements.append(self._over_simdgroups(own, before, everything))
        elif everything is not None:
            last = tirx.floordiv(tirx.floormod(self.thread, WARP_SIZE), lanes) * lanes + lanes - 1
            whole = shuffled(T.tvm_warp_shuffle, own, last)
            statements.append(tirx.BufferStore(everything, whole, [0]))
        return seq(statements)

    def _over_simdgroups(
        self, own: ir.Expr, before: ir.Var, everything: ir.Var | None
    ) -> tirx.Stmt:
        """The last lane of every simdgroup stores its total; the others add up the preceding ones."""
        combine, count = self.combiner.combine, self.group // WARP_SIZE
        exchange = tirx.decl_buffer(
            (self.threads // WARP_SIZE,), self.dtype, name="exchange", scope=SHARED_SCOPE
        )
        place = tirx.floordiv(self.thread, WARP_SIZE)
        first = tirx.floordiv(self.thread, self.group) * count
        is_last = tirx.floormod(self.thread, WARP_SIZE) == WARP_SIZE - 1
        leave = tirx.IfThenElse(is_last, tirx.BufferStore(exchange, own, [place]), None)
        statements: list[tirx.Stmt] = [tirx.AllocBuffer(exchange), leave]
        if everything is not None:
            none = tirx.BufferStore(everything, self.combiner.identity(self.dtype), [0])
            statements.append(none)
        for number in range(count):
            theirs = tirx.BufferLoad(exchange, [first + number])
            so_far = tirx.BufferLoad(before, [0])
            with_theirs = tirx.BufferStore(before, combine(theirs, so_far), [0])
            statements.append(tirx.IfThenElse(place > first + number, with_theirs, None))
            if everything is not None:
                total = combine(theirs, tirx.BufferLoad(everything, [0]))
                statements.append(tirx.BufferStore(everything, total, [0]))
        return seq(statements)
