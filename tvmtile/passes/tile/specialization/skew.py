"""Loops of two products: the second, which depends on the first, goes on under the next iteration.

Where a statement between the products needs the sums of the first, the matrix unit would be idle for
as long as threads compute. So the second product of an iteration is issued behind the first one of the
next iteration, and goes on under the statements of that one that do not touch what it works on:

    first(0), others(0)
    for i in 1 .. n - 1:  first(i), second(i - 1), others(i)
    second(n - 1)

All other statements keep their order. What is no whole iteration stands before the loop and behind it:
if a product stood in a branch, ptxas would have each one wait for that before (C7514). A wait for a
tile is a loop, past which ptxas moves no instruction. So threads wait where products are issued: for
the tiles of the statements between them, too, before the first one. What these compute and what waits
for the second product is one piece of code then, in which exponentials hide the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.ir.asynchronous import asynchronously, signal, wait
from tvmtile.ir.kernels import flattened
from tvmtile.ir.operands import bits_of, static_shape
from tvmtile.ir.rewriting import seq, substitute, with_fresh_variables
from tvmtile.ir.scopes import is_fragment
from tvmtile.ir.threads import WARPGROUP
from tvmtile.passes.tile.pipelining import Body, PipelineStmt, work_of
from tvmtile.passes.tile.specialization.iteration_space import IterationSpace
from tvmtile.passes.tile.specialization.ring import Ring


class Unskewed(Exception):
    """The products of a loop don't overlap with the next iteration; the message is the reason."""


@dataclass(frozen=True)
class CrossIterationOverlap:
    """The statements of an iteration, in the order in which they are done."""

    leading: tuple[int, ...]
    """Up to the first product."""
    early: tuple[int, ...]
    """Those that run while the second product of the iteration before goes on."""
    late: tuple[int, ...]
    """Those that wait for it."""
    second: int
    """The second product."""

    @property
    def first(self) -> int:
        """The first product."""
        return self.leading[-1]

    @property
    def order(self) -> tuple[int, ...]:
        """All of them, in the order of an iteration."""
        return (*self.leading, *self.early, *self.late, self.second)


def skew_of(
    units: Sequence[PipelineStmt],
    producers: Collection[int],
    kind: str,
    threads: int,
    registers: int,
) -> CrossIterationOverlap | None:
    """How the products of a loop overlap with its next iteration; None where there are not two.

    The statements `producers` are another role's; `registers` is what each of the consumers has.

    Raises
    ------
    Unskewed
        If they don't.
    """
    own = [number for number in range(len(units)) if number not in producers]
    products = [number for number in own if work_of(units[number], kind) is not None]
    if len(products) != 2:
        return None
    first, second = products
    if second != own[-1]:
        raise Unskewed("the second product is not the last statement of the loop")
    for number in own:
        if units[number].binds or units[number].has_effects:
            raise Unskewed(f"{units[number].describe()} keeps its place")
    leading = tuple(number for number in own if number <= first)
    others = [number for number in own if first < number < second]
    shared = [var for number in leading for var in units[number].conflicts(units[second])]
    if shared:
        raise Unskewed(f"{shared[0].name} would be needed for two iterations at once")
    late = _behind(second, others, units)
    early = tuple(number for number in others if number not in late)
    if not early:
        raise Unskewed("all statements between the products wait for the second one")
    if threads > _MOST_THREADS:
        raise Unskewed(f"{threads // WARPGROUP} warpgroups take turns with the matrix unit")
    held = registers_held(units, own, threads)
    if held + _SPARE > registers:
        raise Unskewed(
            f"the fragments take {held} registers of a thread, of which it has {registers}; "
            f"{_SPARE} are for all else"
        )
    return CrossIterationOverlap(leading, early, late, second)


_MOST_THREADS = 2 * WARPGROUP
"""With more of them, one or another has a product to do while the rest compute.

Measured on an H200, bfloat16 attention of 4 x 16 x 4096, TFLOP/s without and with: head dim 128, two
warpgroups 551 and 617, causal 508 and 570; head dim 64, three warpgroups 484 and 446.
"""
_SPARE = 24
"""Registers of a thread for addresses, counters and what is computed on the way."""
_REGISTER_BITS = 32


def _behind(second: int, others: Sequence[int], units: Sequence[PipelineStmt]) -> tuple[int, ...]:
    """The statements that depend on the end of a product, directly or through others."""
    late = [second]
    for number in others:
        if any(units[number].conflicts(units[other]) for other in late):
            late.append(number)
    return tuple(late[1:])


def registers_held(units: Sequence[PipelineStmt], own: Sequence[int], threads: int) -> int:
    """What the fragments of some statements take of each thread's registers."""
    return sum(_registers_of(var, threads) for var in _fragments(units, own))


def _fragments(units: Sequence[PipelineStmt], own: Sequence[int]) -> list[ir.Var]:
    touched = (var for number in own for var in units[number].touches)
    return [var for var in dict.fromkeys(touched) if is_buffer_var(var) and is_fragment(var)]


def _registers_of(fragment: ir.Var, threads: int) -> int:
    bits = bits_of(fragment) * math.prod(static_shape(fragment))
    return -(-bits // _REGISTER_BITS // threads)


# Statements --------------------------------------------------------------------------------------


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
