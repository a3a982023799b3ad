"""A pipelined loop, written out by stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import mapped
from tvmtile.ir.asynchronous import asynchronously, kind_of, signal, wait
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import (
    reads_no_memory,
    replace_loop,
    seq,
    substitute,
    with_fresh_variables,
)
from tvmtile.passes.tile.pipelining.body import Body, PipelineStmt
from tvmtile.passes.tile.pipelining.phases import Phases
from tvmtile.passes.tile.pipelining.plan import PipelinePlan, other_annotations


@dataclass(frozen=True)
class _Group:
    """Adjacent units in the order that do the same iteration of the source loop."""

    stage: int
    units: list[PipelineStmt]
    are_async: list[bool]
    token: str | None
    """Of its asynchronous copies, if it has any: each iteration signals it once."""
    tokens: list[str | None]
    """Of each unit whose work goes on until the next iteration has issued its own."""
    on_mbarriers: list[bool]
    phases: Phases | None
    """Of its copies that complete on mbarriers, if it has any."""

    @property
    def copied(self) -> set[ir.Var]:
        """The tiles that it copies into asynchronously."""
        copies = [u for u, is_async in zip(self.units, self.are_async, strict=True) if is_async]
        return set().union(*(unit.writes for unit in copies))

    def uses(self, tiles: set[ir.Var]) -> bool:
        """Tell whether it touches some of the tiles."""
        return any(tiles & unit.touches.keys() for unit in self.units)


class Stages:
    """A pipelined loop that is written out: the stages that run ahead, the loop, and the rest.

    Some units copy asynchronously, some complete on an mbarrier. `in_flight` has the tokens of units
    whose work goes on until the next iteration has issued its own; `new_phases` makes the phases of the
    mbarriers of so many buffer copies.
    """

    def __init__(
        self,
        loop: tirx.For,
        plan: PipelinePlan,
        body: Body,
        are_async: Sequence[bool],
        on_mbarriers: Sequence[bool],
        in_flight: Mapping[int, str],
        new_token: Callable[[], str],
        new_phases: Callable[[int], Phases],
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._body = body
        self._var = loop.loop_var
        self._dtype = str(loop.loop_var.ty.dtype)
        issued = sorted(range(len(body.units)), key=lambda unit: plan.order[unit])
        self._groups = [
            _Group(
                stage,
                [body.units[i] for i in members],
                [are_async[i] for i in members],
                new_token() if any(are_async[i] and not on_mbarriers[i] for i in members) else None,
                [in_flight.get(i) for i in members],
                [on_mbarriers[i] for i in members],
                new_phases(plan.distance - stage + 1)
                if any(on_mbarriers[i] for i in members)
                else None,
            )
            for stage, members in (
                (stage, list(units)) for stage, units in groupby(issued, plan.stage.__getitem__)
            )
        ]
        self._setup: list[tirx.Stmt] = list(body.declarations)
        self._first = self._named("start", loop.min)
        self._count = self._named("count", loop.extent)

    def _named(self, name: str, value: ir.Expr) -> ir.Expr:
        """A bound of the loop, which is computed once."""
        if reads_no_memory(value):
            return value
        var = ir.Var(name, value.ty)
        self._setup.append(tirx.Bind(var, value))
        return var

    def emit(self) -> tirx.Stmt:
        distance = self._plan.distance
        ahead = [stmt for number in range(distance) for stmt in self._prologue(number)]
        steady = self._wait(distance)
        for group in self._groups:
            steady += [self._within(distance - group.stage, group), *self._signal(group)]
        loop = replace_loop(
            self._loop,
            min=self._first,
            extent=self._count,
            body=seq(steady),
            annotations=other_annotations(self._loop),
        )
        # What the last iterations leave in flight are empty batches, and copies that nothing has used.
        tokens = [token for group in self._groups for token in (group.token, *group.tokens)]
        drain = [wait(token, 0) for token in tokens if token]
        for group in self._groups:
            drain += group.phases.after(self._count) if group.phases else []
        return seq([*self._setup, *ahead, loop, *drain])

    # Asynchronous copies -----------------------------------------------------------------------
    #
    # Every iteration signals every token, also where it has no copy to issue: in those before the loop,
    # in the last ones, where a condition does not hold. So how many batches may be in flight at a wait
    # is one number for all. A drain that counts down would need the last iterations as code of their
    # own, which costs more instructions and registers than an empty batch an iteration does; with a
    # dynamic count of iterations it would need a branch for each.

    def _signal(self, group: _Group) -> list[tirx.Stmt]:
        return [signal(group.token)] if group.token else []

    def _wait(self, number: int) -> list[tirx.Stmt]:
        """At the start of an iteration: waits for what it uses and earlier ones have copied.

        They stand before the copies of the iteration, so that one barrier after them lets other threads
        see what has arrived and keeps the copies from elements that others still read.
        """
        found: list[tirx.Stmt] = []
        for group in self._groups:
            users = [
                user.stage
                for user in self._groups
                if group.stage < user.stage <= number and user.uses(group.copied)
            ]
            if group.token and users:
                behind = min(users) - group.stage - 1
                found.append(wait(group.token, min(behind, kind_of(group.token).max_behind)))
            if group.phases and users:
                found += self._await_phase(group.phases, number, min(users))
        return found

    def _await_phase(self, phases: Phases, number: int, stage: int) -> list[tirx.Stmt]:
        """Wait for what a stage needs of its iteration, if it has one to do."""
        ahead, count = number - stage, constant(self._count)
        if number < self._plan.distance:  # before the loop
            if count is not None and ahead >= count:
                return []
            iteration, is_there = self._number(ahead), count is not None
        else:
            iteration, is_there = self._var - self._first + self._number(ahead), ahead == 0
        waits = phases.awaited(_folded(iteration))
        return [waits if is_there else tirx.IfThenElse(iteration < self._count, waits, None)]

    # Iterations --------------------------------------------------------------------------------

    def _prologue(self, number: int) -> list[tirx.Stmt]:
        """A step before the loop, of the stages that have an iteration to do."""
        statements = self._wait(number)
        for group in self._groups:
            if group.stage <= number:
                statements += self._before(number - group.stage, group)
            statements += self._signal(group)
        return statements

    def _before(self, iteration: int, group: _Group) -> list[tirx.Stmt]:
        """A group before the loop, where it does one of the first iterations."""
        count = constant(self._count)
        if count is not None and iteration >= count:
            return []
        done = self._group(group, _folded(self._first + self._number(iteration)))
        if count is not None:
            return [done]
        return [tirx.IfThenElse(self._number(iteration) < self._count, done, None)]

    def _within(self, ahead: int, group: _Group) -> tirx.Stmt:
        """A group in the loop, where it is some iterations ahead."""
        if ahead == 0:
            return self._group(group, self._var)
        at = self._var + self._number(ahead)
        return tirx.IfThenElse(
            at < _folded(self._first + self._count), self._group(group, at), None
        )

    def _group(self, group: _Group, iteration: ir.Expr) -> tirx.Stmt:
        """What a stage does for an iteration, with the names that it needs."""
        bindings = self._body.bindings_for([unit.stmt for unit in group.units])
        statements = [
            (group.units[i].conditions, self._issued(group, i)) for i in range(len(group.units))
        ]
        end = [group.phases.ended(self._var - self._first)] if group.phases else []
        whole = seq([*bindings, *_joined(statements), *end])
        return with_fresh_variables(_folded(substitute(whole, {self._var: iteration})))

    def _issued(self, group: _Group, number: int) -> tirx.Stmt:
        """A unit whose asynchronous work goes on: until a later stage, or the next iteration's."""
        stmt, own = group.units[number].inner, group.tokens[number]
        if own is not None:
            return seq([asynchronously(own, stmt), signal(own), wait(own, 1)])
        if group.phases is not None and group.on_mbarriers[number]:
            return group.phases.begun(stmt, self._var - self._first)
        is_async = group.are_async[number] and group.token is not None
        return asynchronously(str(group.token), stmt) if is_async else stmt

    def _number(self, value: int) -> ir.Expr:
        return tirx.const(value, self._dtype)


def _joined(parts: Sequence[tuple[Sequence[Any], tirx.Stmt]]) -> list[tirx.Stmt]:
    """Statements under their conditions, adjacent ones with the same condition in one branch."""
    result: list[tirx.Stmt] = []
    position = 0
    while position < len(parts):
        conditions, stmt = parts[position]
        position += 1
        if not conditions:
            result.append(stmt)
            continue
        inside = [(conditions[1:], stmt)]
        while position < len(parts) and _begins(parts[position][0], conditions[0]):
            inside.append((parts[position][0][1:], parts[position][1]))
            position += 1
        result.append(tirx.IfThenElse(conditions[0], seq(_joined(inside)), None))
    return result


def _begins(conditions: Sequence[ir.Expr], condition: ir.Expr) -> bool:
    return bool(conditions) and structural_equal(conditions[0], condition)


def _folded(node: ir.Node) -> Any:
    """Compute what is constant, as of `0 * 32` where the iteration is known."""
    return mapped(
        node,
        (tirx.Add, lambda n: n.a + n.b),
        (tirx.Sub, lambda n: n.a - n.b),
        (tirx.Mul, lambda n: n.a * n.b),
        (tirx.FloorDiv, lambda n: tirx.floordiv(n.a, n.b)),
        (tirx.FloorMod, lambda n: tirx.floormod(n.a, n.b)),
    )
