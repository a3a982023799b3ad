"""Steps of groups of threads at mbarriers: the items of a kernel, with known numbers."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from tvmtile._tvm import PURE, buffer_of, indices_of, is_buffer_var, mapped, nodes_in
from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.thread_effects import Effects
from tvmtile.ir.barriers import arrivals, is_barrier, scope_of
from tvmtile.ir.calls import effect_of, takes_address
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.extents import is_power_of_two
from tvmtile.ir.kernels import Launch
from tvmtile.ir.operands import constant, literal
from tvmtile.ir.rewriting import mentions, statements_in, variables_of
from tvmtile.ir.scopes import is_global, is_private
from tvmtile.ir.threads import Group
from tvmtile.passes.gpu.barriers.items import (
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

Values = dict[ir.Var, int]
"""Of the variables of loops, and of what their numbers of iterations depend on."""


class UnknownHandover(Exception):
    """The operations of threads at mbarriers depend on values that are not known here."""


class Number:
    """An integer, or a condition, that depends on the iterations of loops."""

    def __init__(self, expression: ir.Expr) -> None:
        self.become(expression)
        self._known: dict[tuple[int, ...], int] = {}

    def become(self, expression: ir.Expr) -> None:
        """Take the place of another expression."""
        self.expression = expression
        self.names = variables_of(expression)

    def is_known(self, values: Values) -> bool:
        return all(name in values for name in self.names)

    def at(self, values: Values) -> int:
        if not self.is_known(values):
            raise UnknownHandover
        key = tuple(values[name] for name in self.names)
        if key not in self._known:
            try:
                found = evaluate(self.expression, values, lambda _: False, 0).numbers
            except NotSeparable:
                raise UnknownHandover from None
            self._known[key] = int(found)
        return self._known[key]


@dataclass(eq=False)
class Do:
    """Accesses; those that complete on an mbarrier with its number."""

    accesses: list[tuple[Effect, Number | None]]

    @cached_property
    def ends(self) -> list[dict[ir.Var, int]]:
        """The iterations of loops, by access, from which on it is no longer done."""
        return [ends_of(access) for access, _ in self.accesses]


def ends_of(access: Effect) -> dict[ir.Var, int]:
    """The number of first iterations, by loop, of an access that only these do."""
    return {
        each.a: end
        for each in access.conditions
        if isinstance(each, tirx.LT) and isinstance(each.a, ir.Var)
        if (end := literal(each.b)) is not None
    }


@dataclass(eq=False)
class Meet:
    """An arrival or a wait at an mbarrier: its number, and the parity that is waited for."""

    item: MbarrierStep
    number: Number
    parity: Number | None


@dataclass(eq=False)
class BatchEnd:
    """The end of a batch of the group's asynchronous work, or a wait for it."""

    item: Signal | TokenWait


@dataclass(eq=False)
class Sync:
    """A barrier of all threads that are looked at, or of some, those of each warp for themselves."""

    threads: int | None = None
    """A bit each; None of all."""
    in_warps: bool = False


@dataclass(eq=False)
class Case:
    """`then` where all parts hold, each for some threads, a bit each, or a condition on iterations.

    Of the steps of a group the parts are conditions only.
    """

    parts: list[int | Number]
    then: list[Step]
    other: list[Step]

    @property
    def is_plain(self) -> bool:
        """Tell whether it holds accesses only: nothing waits, nor is waited for."""
        return all(
            isinstance(step, Do) or (isinstance(step, Case) and step.is_plain)
            for step in (*self.then, *self.other)
        )


@dataclass(eq=False)
class Repeat:
    """A loop."""

    var: ir.Var
    low: Number
    extent: Number
    body: list[Step]


Step = Do | Meet | BatchEnd | Sync | Case | Repeat


def accesses_in(steps: Iterable[Step]) -> Iterator[Effect]:
    """All accesses of steps, done or not."""
    for step in steps:
        if isinstance(step, Do):
            yield from (access for access, _ in step.accesses)
        elif isinstance(step, Case):
            yield from accesses_in([*step.then, *step.other])
        elif isinstance(step, Repeat):
            yield from accesses_in(step.body)


def steps_of_group(steps: Iterable[Step], group: int, footprints: Footprints) -> list[Step]:
    """The steps of some threads: branches by thread are decided, accesses of others left out."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Case):
            masks = [part for part in step.parts if isinstance(part, int)]
            parts = [part for part in step.parts if not isinstance(part, int)]
            is_taken = all(mask & group for mask in masks)
            then = steps_of_group(step.then, group, footprints) if is_taken else []
            if is_taken and not parts:
                found += then
                continue
            other = steps_of_group(step.other, group, footprints)
            found += [Case([*parts], then, other)] if is_taken else other
        elif isinstance(step, Repeat):
            body = steps_of_group(step.body, group, footprints)
            found.append(replace(step, body=body))
        elif isinstance(step, Do):
            own = [each for each in step.accesses if footprints.threads_of(each[0]) & group]
            found += [Do(own)] if own else []
        else:
            found.append(step)
    return found


class Reader:
    """Makes steps of items, in which names and scalars of a thread have their values."""

    def __init__(
        self,
        launch: Launch,
        effects: Effects,
        footprints: Footprints,
        group: Group | None,
        barriers: Barriers,
    ) -> None:
        self._effects, self._footprints, self._group = effects, footprints, group
        self._barriers = barriers
        self._of_all = ConflictScope.of_threads(launch.num_threads)
        self._body = launch.body
        self._threads = {loop.loop_var for loop in launch.threads}
        calls = nodes_in(launch.body, ir.Call)
        self._shared_scalars = {
            name
            for call in calls
            for name in (variables_of(call) if takes_address(call) else call.args)
            if is_buffer_var(name)
        }
        for view in statements_in(launch.body, tirx.DeclBuffer):
            self._shared_scalars.update(variables_of(view.data))
        self._scalars: dict[ir.Var, ir.Expr] = {}
        self._names: dict[ir.Var, ir.Expr] = {}
        self._symbols: dict[tvm_ffi.StructuralKey, ir.Var] = {}
        self._inner: set[ir.Var] = set()
        self._active: int | None = footprints.all_threads
        self.masks: list[int] = []
        self.open_loops: list[Repeat] = []
        self.numbers: list[Number] = []

    @property
    def uniform(self) -> list[ir.Var]:
        """The values that all threads have alike, from the beginning to the end."""
        given = undefined_vars(self._body, [])
        return [*self._symbols.values(), *(name for name in given if name not in self._threads)]

    def steps(self, sequence: Sequence) -> list[Step]:
        steps: list[Step] = []
        for point, item in itertools.zip_longest(sequence.points, sequence.items):
            barrier = None if point is None else self._barriers.get(point)
            if barrier is not None and barrier.scope >= self._of_all:
                steps.append(Sync())
            elif barrier is not None:
                steps += self._in_warps()
            if item is not None:
                steps += self._of(item)
        return steps

    def _has_steps(self, item: Item) -> bool:
        """Tell whether threads wait or arrive somewhere in an item, also at barriers to be inserted."""
        if not isinstance(item, Branch | Iteration):
            return not isinstance(item, Leaf)
        sequences = item.cases if isinstance(item, Branch) else [item.body]
        return any(
            any(point in self._barriers for point in sequence.points)
            or any(map(self._has_steps, sequence.items))
            for sequence in sequences
        )

    def _of(self, item: Item) -> Iterator[Step]:
        if isinstance(item, Exit):
            raise UnknownHandover
        if isinstance(item, Branch | Iteration):
            if not self._has_steps(item):
                self._forget(item.statement)
                yield self._do(accesses_of(item))
                return
            yield self._do(item.head)
            if isinstance(item, Iteration):
                yield self._loop(item)
            elif isinstance(item.statement, tirx.IfThenElse):
                yield self._branch(item, item.statement)
            else:
                yield from self.steps(item.cases[0])
            return
        if isinstance(item, Leaf):
            self._note(item.statement)
            yield self._do(item.accesses)
            yield from self._barrier(item.statement)
        elif isinstance(item, MbarrierStep):
            yield self._do(item.accesses)
            parity = None if item.parity is None else self._number(item.parity)
            yield Meet(item, self._number(item.index), parity)
        elif isinstance(item, UserBarrier):
            if self._group is None and item.barrier.scope >= self._of_all:
                yield Sync()
            else:
                yield from self._barrier(item.statement)
        else:
            yield BatchEnd(item)

    def _barrier(self, stmt: tirx.Stmt) -> Iterator[Sync]:
        """A barrier of all threads that come to a statement, or of those of each warp."""
        if not is_barrier(stmt) or not self._active:
            return
        if scope_of(stmt) == "warp":
            yield from self._in_warps()
        elif arrivals(stmt) == self._active.bit_count():
            yield Sync(self._active)

    def _in_warps(self) -> Iterator[Sync]:
        """A barrier of the threads of each warp that are active."""
        threads = self._active or 0
        while threads:  # each group is of one warp
            self.masks.append(self._footprints.warps_of(threads & -threads))
            threads &= ~self.masks[-1]
        if self._active:
            yield Sync(self._active, in_warps=True)

    def _do(self, accesses: Iterable[Effect]) -> Do:
        def completing(access: Effect) -> Number | None:
            on = access.completes_on
            return None if on is None else self._number(indices_of(on)[0])

        return Do([(access, completing(access)) for access in accesses])

    def _branch(self, item: Branch, stmt: tirx.IfThenElse) -> Case:
        parts: list[int | Number] = []
        for part in conjuncts(self._effects.resolved(stmt.condition)):
            holds = self._footprints.threads_where([part])
            if holds | self._footprints.threads_where([tirx.Not(part)]) == (
                self._footprints.all_threads
            ):
                self.masks.append(holds)
                parts.append(holds)
            else:
                parts.append(self._number(part))
        before, around = dict(self._scalars), self._active
        cases = []
        for case, active in zip(item.cases, _threads_of_cases(parts, around), strict=False):
            self._scalars, self._active = dict(before), active
            cases.append(self.steps(case))
        self._scalars, self._active = before, around
        self._forget(stmt)
        return Case(parts, cases[0], cases[1] if len(cases) > 1 else [])

    def _loop(self, item: Iteration) -> Repeat:
        stmt = item.statement
        if not isinstance(stmt, tirx.For) or literal(item.loop.step) != 1:
            raise UnknownHandover
        self._forget(stmt)
        extent = self._number(item.loop.extent)
        low = self._number(item.loop.low)
        is_open = constant(extent.expression) is None
        if is_open and self._inner:
            raise UnknownHandover
        self._inner.add(stmt.loop_var)
        repeat = Repeat(stmt.loop_var, low, extent, self.steps(item.body))
        self._inner.discard(stmt.loop_var)
        self._forget(stmt)
        if is_open:
            if constant(low.expression) != 0:
                raise UnknownHandover
            self.open_loops.append(repeat)
        return repeat

    def _number(self, expression: ir.Expr) -> Number:
        number = Number(self._value(expression))
        self.numbers.append(number)
        return number

    def _note(self, stmt: tirx.Stmt) -> None:
        """Take in what a scalar of the thread, or a name, is from here on."""
        if type(stmt) is tirx.Bind:
            if self._effects.is_bound_once(stmt.var) and ir.is_prim_expr(stmt.value):
                self._names[stmt.var] = self._value(stmt.value)
            return
        self._forget(stmt)
        if type(stmt) is tirx.BufferStore and self._is_scalar(buffer_of(stmt)):
            self._scalars[buffer_of(stmt)] = self._value(stmt.value)

    def _forget(self, stmt: tirx.Stmt) -> None:
        for store in nodes_in(stmt, tirx.BufferStore):
            self._scalars.pop(buffer_of(store), None)

    def _is_scalar(self, buffer: ir.Var) -> bool:
        is_single = math.prod(constant(n) or 0 for n in buffer.ty.shape) == 1
        return is_single and is_private(buffer) and buffer not in self._shared_scalars

    def _value(self, expression: ir.Expr) -> ir.Expr:
        """An expression of loops and of symbols, which are what is the same for all threads."""
        known = mapped(
            self._effects.resolved(expression),
            (ir.Var, lambda name: self._names.get(name, name)),
            (ir.TensorLoad, self._loaded),
            (ir.Call, self._called),
            (ir.prim.BitwiseAnd, _remainder),
            (ir.prim.BitwiseXor, _other_parity),
        )
        return Analyzer().simplify(known)

    def _loaded(self, load: ir.TensorLoad) -> ir.Expr:
        if buffer_of(load) in self._scalars:
            return self._scalars[buffer_of(load)]
        written = map(self._effects.root, self._effects.written)
        if not is_global(buffer_of(load)) or self._effects.root(buffer_of(load)) in set(written):
            return tirx.Var("unknown", load.ty.dtype)
        return self._symbol(load)

    def _called(self, call: ir.Call) -> ir.Expr:
        if effect_of(call) > PURE:
            return tirx.Var("unknown", call.ty.dtype)
        return self._symbol(call)

    def _symbol(self, node: Any) -> ir.Expr:
        """A name for a value that is the same wherever it is asked for."""
        if any(mentions(node, name) for name in (*self._threads, *self._inner)):
            return node
        key = tvm_ffi.StructuralKey(node)
        if key not in self._symbols:
            self._symbols[key] = tirx.Var("symbol", node.ty.dtype)
        return self._symbols[key]


def _threads_of_cases(parts: list[int | Number], around: int | None) -> list[int | None]:
    """The threads that take the two cases of a branch; None of those that are not known."""
    if around is None:
        return [None, None]
    masks = [part for part in parts if isinstance(part, int)]
    taking = functools.reduce(operator.and_, masks, around)
    if len(masks) == len(parts):
        return [taking, around & ~taking]
    return [taking, None if masks else around]


def _remainder(node: Any) -> ir.Expr:
    """`a & 2**n - 1` as a remainder."""
    mask = literal(node.b)
    if mask is None or not is_power_of_two(mask + 1):
        return node
    return tirx.floormod(node.a, mask + 1)


def _other_parity(node: Any) -> ir.Expr:
    """`a % 2 ^ 1` as a remainder."""
    if literal(node.b) != 1 or type(node.a) is not tirx.FloorMod or literal(node.a.b) != 2:
        return node
    return tirx.floormod(node.a.a + 1, 2)
