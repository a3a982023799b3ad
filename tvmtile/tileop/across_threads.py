"""Combine the values of the threads of a block: by shuffles, then through shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidOperand
from tvmtile.ir.combiners import Combiner
from tvmtile.ir.extents import is_power_of_two
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import for_loop, nest, seq
from tvmtile.ir.scopes import SHARED_SCOPE
from tvmtile.ir.threads import ALL_LANES, WARP_SIZE
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import Digit, gaps
from tvmtile.tileop.registry import LoweringContext

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


def all_reduce(
    totals: ir.Var,
    each: Callable[[Callable[[list[Any]], tirx.Stmt]], tirx.Stmt],
    combiner: Combiner,
    digits: Iterable[Digit],
    context: LoweringContext,
    results: ir.Var | None = None,
) -> tirx.Stmt:
    """Combine the totals of the threads whose numbers differ in some digits, in each of them.

    `totals` is an array that every thread has for itself, and `each` makes loops over its elements.
    Lanes of a warp combine theirs by shuffles, and others through shared memory. `results`, `totals`
    itself where absent, is another array for what comes out: it is read from shared memory, so that
    passes see that it is the same in all threads.

    Raises
    ------
    InvalidOperand
        If a layout of the user's leaves threads beside groups of those that combine.
    """
    digits = list(digits)
    for together in (digit.stride * digit.extent for digit in digits):
        if context.threads % together:
            raise InvalidOperand(
                f"values in {together} threads are combined, and {context.threads} of the block "
                "come to it",
                help=f"give a layout over a number of threads that divides {context.threads}, or leave "
                "it to the compiler",
                location=context.location,
            )
    lanes, groups = _lanes_and_groups(digits)
    distances = [lane.stride * 2**n for lane in lanes for n in range(lane.extent.bit_length() - 1)]

    def across_lanes(indices: list[Any]) -> tirx.Stmt:
        total = tirx.BufferLoad(totals, indices)
        return butterfly(
            total, lambda value: tirx.BufferStore(totals, value, indices), combiner, distances
        )

    shuffles = [each(across_lanes)] if distances else []
    if not groups and results is None:
        return seq(shuffles)
    target = totals if results is None else results
    slots = gaps(context.threads, lanes)
    shape = [*totals.ty.shape, math.prod(slot.extent for slot in slots)]
    dtype = str(totals.ty.dtype)
    exchange = tirx.decl_buffer(shape, dtype, "exchange", scope=SHARED_SCOPE)
    others = {digit: tirx.Var("g", "int32") for digit in groups}
    mine, theirs = (_slot(slots, values, context) for values in ({}, others))
    is_first = [_value(digit, context) == 0 for digit in lanes]

    def leave(indices: list[Any]) -> tirx.Stmt:
        store = tirx.BufferStore(exchange, tirx.BufferLoad(totals, indices), [*indices, mine])
        return tirx.IfThenElse(tirx.all(*is_first), store, None) if is_first else store

    def take(indices: list[Any]) -> tirx.Stmt:
        total, new = tirx.BufferLoad(target, indices), tirx.BufferLoad(exchange, [*indices, theirs])
        step: tirx.Stmt = tirx.BufferStore(target, combiner.combine(new, total), indices)
        for digit, variable in reversed(others.items()):
            step = for_loop(variable, digit.extent, step)
        return seq([tirx.BufferStore(target, combiner.identity(dtype), indices), step])

    return seq([*shuffles, tirx.AllocBuffer(exchange), each(leave), each(take)])


def all_reduce_over_block(
    totals: ir.Var, combiner: Combiner, context: LoweringContext, results: ir.Var | None = None
) -> tirx.Stmt:
    """Combine the totals of all threads, in each of them."""
    each = partial(per_thread, totals.ty.shape)
    return all_reduce(totals, each, combiner, gaps(context.threads, []), context, results)


def _lanes_and_groups(digits: Iterable[Digit]) -> tuple[list[Digit], list[Digit]]:
    """The digits of a thread's number that are bits of the lane's, and the others."""
    lanes, groups = [], []
    for digit in digits:
        is_of_bits = digit.stride < WARP_SIZE and is_power_of_two(digit.stride)
        inner = math.gcd(digit.extent, WARP_SIZE // digit.stride) if is_of_bits else 1
        outer, within = digit.split(inner)
        lanes += [within] if within.extent > 1 else []
        groups += [outer] if outer.extent > 1 else []
    return lanes, groups


def _value(digit: Digit, context: LoweringContext) -> ir.Expr:
    return digit.value_in(context.thread_index, context.threads)


def _slot(slots: Iterable[Digit], others: Mapping[Digit, Any], context: LoweringContext) -> ir.Expr:
    """The place of a thread among those that exchange; some of its digits have other values."""
    analyzer = Analyzer()
    context.bind_threads(analyzer)
    for digit, given in others.items():
        analyzer.bind(given, ir.Range(0, digit.extent))
    number: ir.Expr = tirx.const(0, "int32")
    weight = 1
    for slot in slots:
        value = _value(slot, context)
        for digit, given in others.items():
            if slot.stride <= digit.stride < slot.stride * slot.extent:
                value = value + (given - _value(digit, context)) * (digit.stride // slot.stride)
        number = number + value * weight
        weight *= slot.extent
    return analyzer.simplify(number)


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
