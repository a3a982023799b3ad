"""A thread's program as `items`: a loop or branch without a race is one leaf.

The items are a control-flow graph to search, with a point in front of each statement. Those of
`passes/cpu/loop_fission` are a new program, whose statements have moved: no structure fits both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence as Statements
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import OPAQUE, buffer_of, indices_of, mapped, nodes_in
from tvmtile.analysis.conflicts.dependence import ConflictScope, Distance
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.analysis.thread_effects import Effects
from tvmtile.analysis.uniformity import ThreadVariance, decisions
from tvmtile.ir.asynchronous import signalled, waited
from tvmtile.ir.barriers import arrivals, is_barrier, scope_of
from tvmtile.ir.calls import effect_of, is_extern_call, op_name
from tvmtile.ir.conditions import assumption_of, conjuncts
from tvmtile.ir.kernels import Launch, flattened, is_loop_exit, statements_of
from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.operands import constant, literal
from tvmtile.ir.operators import OperatorEffects, operator_of
from tvmtile.ir.rewriting import substitute, variables_of
from tvmtile.ir.threads import Group, group_of_region
from tvmtile.passes.gpu.barriers.checker import Checker
from tvmtile.passes.gpu.barriers.clusters import Cluster
from tvmtile.passes.gpu.barriers.dataflow import Walk
from tvmtile.passes.gpu.barriers.groups import (
    case_of,
    hands_over,
    seen_by,
    waits_apart,
)
from tvmtile.passes.gpu.barriers.handovers import Handovers
from tvmtile.passes.gpu.barriers.items import (
    Barrier,
    BarrierPoint,
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
    has_own_flow,
)
from tvmtile.passes.gpu.barriers.races import Race
from tvmtile.passes.gpu.barriers.refusals import settle

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_BRANCH_WEIGHT = 0.6  # so that a barrier beside a branch is better than one in each of its cases


class _Uniformity(ThreadVariance):
    """Divergence on a GPU: also of what other threads may be writing just now."""

    def __init__(self, launch: Launch, body: tirx.Stmt, written: frozenset[ir.Var]) -> None:
        self._written = written
        super().__init__(body, [loop.loop_var for loop in launch.threads])

    def acts(self, expression: ir.Expr) -> bool:
        return any(map(self._may_differ, _loads_and_calls(expression)))

    def _may_differ(self, node: Any) -> bool:
        if type(node) is ir.TensorLoad:
            return buffer_of(node) in self._written
        return effect_of(node) == OPAQUE or is_extern_call(node)


class _Warps:
    """Divergence within a warp: an index of threads that all of them have alike is a number.

    What does not diverge within the block, as `variance` knows it, does not within a warp.
    """

    def __init__(
        self,
        launch: Launch,
        effects: Effects,
        footprints: Footprints,
        body: tirx.Stmt,
        variance: _Uniformity,
    ) -> None:
        self._launch = launch
        self._threads = {loop.loop_var for loop in launch.threads}
        self._effects = effects
        self._footprints = footprints
        self._body = body
        self._within_block = variance

    @cached_property
    def _variance(self) -> _Uniformity:
        body = self._of_warp(self._body)
        return _Uniformity(self._launch, body, self._effects.written_by_blocks)

    def may_diverge(self, expression: ir.Expr) -> bool:
        """Tell whether an expression may have another value in another thread of a warp."""
        of_warp = self._of_warp(self._effects.resolved(expression))
        return self._within_block.may_diverge(of_warp) and self._variance.may_diverge(of_warp)

    def is_divergent(self, loop: tirx.For | tirx.While) -> bool:
        """Tell whether threads of a warp may go through a loop a different number of times."""
        return any(map(self.may_diverge, decisions(loop)))

    def _of_warp(self, node: Any) -> Any:
        return mapped(node, ((tirx.FloorDiv, *_COMPARISONS), self._number))

    def _number(self, expression: Any) -> ir.Expr:
        names = variables_of(expression)
        if not names or not self._threads.issuperset(names):
            return expression
        alike = self._footprints.are_alike_in_warps(expression)
        return tirx.const(0, str(expression.ty.dtype)) if alike else expression


@cached_per_node  # each group asks
def _has_warp_barrier(stmt: tirx.Stmt) -> bool:
    return any(is_barrier(s) and scope_of(s) == "warp" for s in nodes_in(stmt, tirx.Evaluate))


@cached_per_node  # each group asks
def _loads_and_calls(expression: ir.Expr) -> list[ir.Expr]:
    return nodes_in(expression, (ir.TensorLoad, ir.Call))


@dataclass(frozen=True)
class _Context:
    """The surroundings of a statement."""

    loops: tuple[Loop, ...] = ()
    """The loops around it."""
    conditions: tuple[ir.Expr, ...] = ()
    """The conditions that hold where a thread does it."""
    weight: float | None = 1.0
    """Of the places for barriers; None where barriers can't stand, since not all threads come."""

    def where(self, condition: ir.Expr, weight: float | None) -> _Context:
        """The surroundings in a case of a branch."""
        return replace(self, conditions=(*self.conditions, condition), weight=weight)


class Builder:
    """Makes items of statements.

    `effects` are those of the kernel, whatever barriers are in it; `footprints` compares accesses,
    given the names that are uniform. Barriers are looked for the threads of `group`, or the block's:
    they stand in their regions, and order what the kernel does there, but for what some of them do as a
    group. `blocks` reach each other's memory. Where it `forgives`, the
    author answers for races that no barrier can prevent. `is_for_cpu`, which runs the cases of a
    divergent branch one after the other: barriers can stand in them, and in vectors.
    """

    def __init__(
        self,
        launch: Launch,
        effects: Effects,
        footprints: Callable[[set[ir.Var]], Footprints],
        group: Group | None = None,
        blocks: int = 1,
        *,
        forgives: bool = False,
        is_for_cpu: bool = False,
    ) -> None:
        self._is_for_cpu = is_for_cpu
        self._body = launch.body
        self._effects = effects
        self._group = group
        self._around: list[Group] = []  # the regions around a statement
        self._warps_come = True  # whole warps come to a statement
        self._hands_over = False  # whether the outermost one, of some of the threads, does
        body = seen_by(launch.body, group)
        self._variance = _Uniformity(launch, body, effects.written_by_blocks)
        self._num_threads = launch.num_threads
        self._blocks = launch.blocks
        self._footprints = footprints(self._uniform_names(launch.body))
        self._warps = _Warps(launch, effects, self._footprints, body, self._variance)
        self._cluster = Cluster(self._footprints, blocks)
        hands_over = functools.partial(Handovers, launch, effects, self._footprints, group)
        self.checker = Checker(
            self._footprints,
            self._cluster,
            hands_over if blocks == 1 else None,
            forgives=forgives,
        )

    def _uniform_names(self, body: tirx.Stmt) -> set[ir.Var]:
        """The names that a block binds once, to a value that is the same for all threads."""
        return {
            stmt.var
            for stmt in flattened(body)
            if isinstance(stmt, tirx.Bind)
            and self._effects.is_bound_once(stmt.var)
            and not self._variance.may_diverge(stmt.value)
        }

    def _runs(self, loop: tirx.For, around: tuple[Loop, ...]) -> bool:
        """Tell whether the body of a loop certainly runs."""
        count = literal(loop.extent)
        if count is not None:
            return count >= 1
        analyzer = Analyzer()
        for outer in (*self._blocks, *(each.node for each in around if each.var is not None)):
            bounds = ir.Range.from_min_extent(outer.min, outer.extent)
            analyzer.bind(outer.loop_var, bounds, allow_override=True)
        return bool(analyzer.can_prove(loop.extent >= 1))

    def program(self) -> Sequence:
        """The items of the kernel.

        Raises
        ------
        DataRace
            If a barrier is needed where none can stand.
        """
        return self._sequence(self._body, _Context())

    def _sequence(self, stmt: tirx.Stmt, context: _Context, *, is_body: bool = False) -> Sequence:
        """The items of a statement, or of the body of a loop."""
        items = []
        for child in flattened(stmt):
            assumed = assumption_of(child)
            if assumed is not None and self._variance.may_diverge(assumed):
                context = context.where(assumed, context.weight)
            items.append(self._item(child, context))
        weight = context.weight if self._is_own_region else None
        points = [BarrierPoint(weight) if weight and accesses_of(item) else None for item in items]
        at_end = BarrierPoint(weight) if weight and is_body and any(points) else None
        return Sequence(items, [*points, at_end])

    def _item(self, stmt: tirx.Stmt, context: _Context) -> Item:
        if type(stmt) is tirx.Evaluate:
            return self._call(stmt, context) or self._leaf(stmt, context)
        if not self._effects.are_in(stmt):
            return Leaf(stmt, ())
        if type(stmt) is tirx.For or type(stmt) is tirx.While:
            return self._loop(stmt, context)
        if type(stmt) is tirx.IfThenElse:
            return self._branch(stmt, context)
        if type(stmt) is tirx.AttrStmt:
            return self._attribute(stmt, context)
        return self._leaf(stmt, context)

    def _call(self, stmt: tirx.Evaluate, context: _Context) -> Item | None:
        """The effect of a call beside its accesses, if any."""
        if is_barrier(stmt):
            scope = self._scope_of(stmt)
            comes = context.weight or (self._warps_come and scope == ConflictScope.WARP)
            return UserBarrier(stmt, Barrier(scope)) if comes and scope else Leaf(stmt, ())
        token, awaited = signalled(stmt), waited(stmt)
        if token is not None:
            return Signal(stmt, token, self._groups)
        if awaited is not None:
            return TokenWait(stmt, awaited, self._groups)
        if is_loop_exit(stmt):
            is_break = op_name(stmt.value) == "tirx.break_loop"
            return Exit(stmt, is_break) if context.weight else Leaf(stmt, ())
        return self._handover(stmt, context)

    def _handover(self, stmt: tirx.Evaluate, context: _Context) -> MbarrierStep | None:
        """The step of threads at an mbarrier; None of another statement."""
        op = operator_of(stmt)
        effects = OperatorEffects() if op is None else op.effects()
        mbarrier = effects.waits_at if effects.arrives_at is None else effects.arrives_at
        if mbarrier is None:
            return None
        parts = [part for condition in context.conditions for part in conjuncts(condition)]
        diverging = filter(self._variance.may_diverge, parts)
        resolved = self._effects.resolved
        ranks, waits = effects.ranks, effects.arrives_at is None
        active = self._cluster.arrivals(
            map(resolved, parts),
            map(resolved, diverging),
            None if ranks is None else [*map(resolved, ranks)],
            context.loops,
        )
        return MbarrierStep(
            stmt,
            self._read([stmt], context),
            self._effects.mbarrier(mbarrier),
            resolved(indices_of(mbarrier)[0]),
            effects.parity,
            active,
            waits,
            effects.with_copies,
            waits and self._is_of_first_phase(effects.parity, context.loops),
        )

    def _is_of_first_phase(self, parity: ir.Expr | None, loops: tuple[Loop, ...]) -> bool:
        """Tell whether a wait is for the first phase where the loops around it begin."""
        if parity is None:
            return False
        begin = {loop.var: loop.low for loop in loops if loop.var is not None}
        return constant(Analyzer().simplify(substitute(self._effects.resolved(parity), begin))) == 0

    def _attribute(self, stmt: tirx.AttrStmt, context: _Context) -> Item:
        group, outer = group_of_region(stmt), self._hands_over
        if group is not None:
            is_outermost = self._groups == ()
            self._hands_over = hands_over(stmt.body, group) if is_outermost else outer
            self._around.append(group)
        come, self._warps_come = self._warps_come, self._warps_come or group is not None
        body = self._sequence(stmt.body, context)
        self._warps_come = come
        region = Branch(stmt, (), [body], is_region=group is not None and group == self._group)
        if group is not None:
            self._around.pop()
            self._hands_over = outer
        return self._closed(region, context)

    @property
    def _is_own_region(self) -> bool:
        """Tell whether the threads that barriers are looked for, and no others, come to a statement."""
        return (self._around[-1] if self._around else None) == self._group

    @property
    def _groups(self) -> tuple[Group, ...] | None:
        """The groups, of some of the threads, that do a statement; None: it is not of their regions."""
        if self._group is None:
            return tuple(self._around)
        if self._group not in self._around:
            return None
        return tuple(self._around[self._around.index(self._group) + 1 :])

    def _scope_of(self, stmt: tirx.Evaluate) -> ConflictScope:
        """The threads that a barrier which is there already separates, of those that are looked at."""
        if scope_of(stmt) == "warp":
            return ConflictScope.WARP
        active = self._around[-1] if self._around else None
        if active is not None and (self._group is None or self._group not in active):
            return ConflictScope.NONE
        if waits_apart(stmt):
            return ConflictScope.WARPGROUP
        awaited, least = arrivals(stmt), self._num_threads if active is None else active.count
        waits_for_all = awaited is not None and (not awaited or awaited >= least)
        return ConflictScope.BLOCK if waits_for_all else ConflictScope.NONE

    def _leaf(self, stmt: tirx.Stmt, context: _Context) -> Leaf:
        accesses = self._read([stmt], context)
        here = dict.fromkeys(context.loops, Distance.SAME)
        for earlier in accesses:
            for later in accesses:
                if earlier.writes or not later.writes or earlier.is_opaque or later.is_opaque:
                    continue
                if earlier.is_of_device or (earlier.is_atomic and later.is_atomic):
                    continue
                if self._footprints.conflict(earlier, later, here):
                    settle(Race(earlier, later, in_statement=True), self.checker)
        return Leaf(stmt, accesses)

    def _loop(self, stmt: tirx.For | tirx.While, context: _Context) -> Item:
        weight = context.weight
        is_uniform = weight is not None and not self._variance.is_divergent(stmt)
        loop = self._effects.loop(stmt, is_uniform)
        runs = False
        if isinstance(stmt, tirx.For):
            runs = self._runs(stmt, context.loops)
            bounds = [stmt.min, stmt.extent]
            vector = stmt.kind == tirx.ForKind.VECTORIZED and not self._is_for_cpu
            if vector or stmt.kind == tirx.ForKind.PARALLEL:
                weight = None
        else:
            bounds = [stmt.condition]
        head = self._read(bounds, context)
        context = replace(context, weight=weight if is_uniform else None)
        inside = replace(context, loops=(*context.loops, loop))
        come = self._warps_come
        if come and not is_uniform and _has_warp_barrier(stmt):
            self._warps_come = not self._warps.is_divergent(stmt)
        body = self._sequence(stmt.body, inside, is_body=True)
        self._warps_come = come
        return self._closed(Iteration(stmt, loop, head, body, runs), context)

    def _branch(self, stmt: tirx.IfThenElse, context: _Context) -> Item:
        head = self._read([stmt.condition], context)
        taken = case_of(stmt, self._group)
        if taken is not None:
            return self._taken(stmt, taken, context)
        weight = context.weight
        is_uniform = weight is not None and not self._variance.may_diverge(stmt.condition)
        together = is_uniform or self._is_for_cpu
        inner = weight * _BRANCH_WEIGHT if weight and together else None
        come = self._warps_come
        if come and not is_uniform and _has_warp_barrier(stmt):
            self._warps_come = not self._warps.may_diverge(stmt.condition)
        cases = [self._sequence(stmt.then_case, context.where(stmt.condition, inner))]
        if stmt.else_case is not None:
            negated = tirx.Not(stmt.condition)
            cases.append(self._sequence(stmt.else_case, context.where(negated, inner)))
        elif is_uniform:
            cases.append(Sequence([], [None]))
        self._warps_come = come
        branch = Branch(stmt, head, cases, diverges=not is_uniform, is_for_cpu=self._is_for_cpu)
        return self._closed(branch, replace(context, weight=inner))

    def _taken(self, stmt: tirx.IfThenElse, number: int, context: _Context) -> Item:
        """A branch of which all threads take one case, if it is there, and others the other one."""
        negated = tirx.Not(stmt.condition)
        cases = [
            self._sequence(case, context.where(holds, context.weight if n == number else None))
            for n, (case, holds) in enumerate(
                zip(statements_of(stmt), (stmt.condition, negated), strict=False)
            )
        ]
        return self._closed(Branch(stmt, (), cases, diverges=True), context)

    def _read(self, expressions: Statements[Any], context: _Context) -> tuple[Effect, ...]:
        groups = self._groups
        if groups is None:
            return ()
        found: list[Effect] = []
        for expression in expressions:
            found += self._effects.of(
                expression,
                context.loops,
                context.conditions,
                groups=groups,
                hands_over=self._hands_over,
            )
        return tuple(map(self._footprints.first_like, found))

    def _closed(self, item: Branch | Iteration, context: _Context) -> Item:
        """A leaf, if no barrier is needed inside, or none of device memory can stand there."""
        if has_own_flow(item):
            return item
        walk = Walk(self.checker, of_device=context.weight is not None)
        found = walk.race_in(item, context.loops)
        if found is None:
            return Leaf(item.statement, item.accesses)
        if context.weight is None:
            settle(found, self.checker)
            return self._closed(item, context)
        return item
