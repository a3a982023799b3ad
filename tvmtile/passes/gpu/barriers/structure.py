"""A thread's program as the items of `program`: a loop or branch without a race is one leaf."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Statements
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import OPAQUE, is_buffer_var
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.conflicts.dependence import Collision, ConflictScope
from tvmtile.analysis.conflicts.expressions import conjuncts
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Access, Effects, Loop
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.errors import DataRace, VerifyError
from tvmtile.ir.asynchronous import signalled, waited
from tvmtile.ir.calls import effect_of, is_extern_call, op_name
from tvmtile.ir.kernels import Launch, flattened, is_barrier, is_loop_exit, statements_of
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scopes import is_private, is_shared
from tvmtile.ir.threads import Group, group_of_region
from tvmtile.passes.gpu.barriers.groups import arrivals, case_of, hands_over, seen_by
from tvmtile.passes.gpu.barriers.program import (
    Barrier,
    Branch,
    Checker,
    Exit,
    Handover,
    Item,
    Iteration,
    Leaf,
    Race,
    Sequence,
    Signal,
    Slot,
    TokenWait,
    Wait,
    refused_before_arrival,
)

__all__ = ["Builder", "accesses_of", "refuse"]

_BRANCH_WEIGHT = 0.6  # so that a barrier beside a branch is better than one in each of its cases


class _Uniformity(ThreadVariance):
    """Divergence on a GPU: also of what other threads may be writing just now."""

    def __init__(self, launch: Launch, group: Group | None, written: set[ir.Var]) -> None:
        self._written = written
        threads = [loop.loop_var for loop in launch.threads]
        super().__init__(seen_by(launch.body, group), threads)

    def acts(self, expression: Any) -> bool:
        return contains(expression, (ir.TensorLoad, ir.Call), self._may_differ)

    def _may_differ(self, node: Any) -> bool:
        if isinstance(node, ir.TensorLoad):
            return node.source in self._written
        return effect_of(node) == OPAQUE or is_extern_call(node)


def _written_tensors(body: tirx.Stmt, names: set[ir.Var]) -> set[ir.Var]:
    """The written buffers that other blocks may write too, and their views."""
    aliases = Aliases(body)
    roots = {aliases.root(name) for name in names}
    written = roots.union(view for view in aliases.views if aliases.root(view) in roots)
    return {
        buffer
        for buffer in written
        if is_buffer_var(buffer) and not is_shared(buffer) and not is_private(buffer)
    }


class Builder:
    """Makes items of statements.

    Parameters
    ----------
    launch : Launch
        The kernel.
    group : Group or None
        The threads that barriers are looked for; None: those of the block. Their barriers stand in
        their regions, and order what the kernel does there, but for what some of them do as a group.
    """

    def __init__(self, launch: Launch, group: Group | None = None) -> None:
        self._group = group
        self._around: list[Group] = []  # the regions around a statement
        self._warps_come = True  # whole warps come to a statement
        self._hands_over = False  # whether the outermost one, of some of the threads, does
        self._effects = Effects(launch.body)
        written = _written_tensors(launch.body, self._effects.written)
        self._variance = _Uniformity(launch, group, written)
        self._num_threads = launch.num_threads
        self._analyzer = Analyzer()
        for loop in launch.blocks:
            self._bind(loop)
        self._footprints = Footprints(launch, self._uniform_names(launch.body))
        self.checker = Checker(self._footprints)

    @property
    def exchanges_through_device(self) -> bool:
        """Tell whether the kernel reads device memory that it writes."""
        return bool(self._effects.device_memory)

    def _uniform_names(self, body: tirx.Stmt) -> set[ir.Var]:
        """The names that a block binds once, to a value that is the same for all threads."""
        return {
            stmt.var
            for stmt in flattened(body)
            if isinstance(stmt, tirx.Bind)
            and self._effects.is_bound_once(stmt.var)
            and not self._variance.may_diverge(stmt.value)
        }

    def _bind(self, loop: tirx.For) -> None:
        bounds = ir.Range.from_min_extent(loop.min, loop.extent)
        self._analyzer.bind(loop.loop_var, bounds, allow_override=True)

    def sequence(
        self,
        stmt: tirx.Stmt,
        loops: tuple[Loop, ...] = (),
        conditions: tuple[ir.Expr, ...] = (),
        weight: float | None = 1.0,
        is_body: bool = False,
    ) -> Sequence:
        """The items of a statement.

        Parameters
        ----------
        stmt : Stmt
            Any.
        loops : tuple of Loop
            The loops around it.
        conditions : tuple of Expr
            What holds where a thread does it.
        weight : float or None
            Of the places for barriers; None where barriers can't stand, since not all threads come.
        is_body : bool
            It is the body of a loop.

        Raises
        ------
        DataRace
            If a barrier is needed where none can stand.
        """
        items = [self._item(child, loops, conditions, weight) for child in flattened(stmt)]
        weight = weight if self._is_own_region else None
        slots = [Slot(weight) if weight and accesses_of(item) else None for item in items]
        at_end = Slot(weight) if weight and is_body and any(slots) else None
        return Sequence(items, [*slots, at_end])

    def _item(
        self,
        stmt: tirx.Stmt,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        weight: float | None,
    ) -> Item:
        if is_barrier(stmt):
            scope = self._scope_of(stmt)
            comes = weight or (self._warps_come and scope == ConflictScope.WARP)
            return Wait(stmt, Barrier(scope)) if comes and scope else Leaf(stmt, ())
        token, awaited = signalled(stmt), waited(stmt)
        if token is not None:
            return Signal(stmt, token, self._groups)
        if awaited is not None:
            return TokenWait(stmt, awaited, self._groups)
        handover = self._handover(stmt, loops, conditions)
        if handover is not None:
            return handover
        if is_loop_exit(stmt):
            is_break = op_name(stmt.value) == "tirx.break_loop"
            return Exit(stmt, is_break) if weight else Leaf(stmt, ())
        if isinstance(stmt, tirx.For | tirx.While):
            return self._loop(stmt, loops, conditions, weight)
        if isinstance(stmt, tirx.IfThenElse):
            return self._branch(stmt, loops, conditions, weight)
        if isinstance(stmt, tirx.AttrStmt):
            return self._attribute(stmt, loops, conditions, weight)
        return self._leaf(stmt, loops, conditions)

    def _handover(
        self, stmt: tirx.Stmt, loops: tuple[Loop, ...], conditions: tuple[ir.Expr, ...]
    ) -> Handover | None:
        """What threads do at an mbarrier; None of another statement."""
        op = operator_of(stmt.value) if isinstance(stmt, tirx.Evaluate) else None
        if op is None or (op.releases() is None and op.acquires() is None):
            return None
        waits = op.releases() is None
        mbarrier = op.acquires() if waits else op.releases()
        on_threads = (
            self._effects.resolved(part)
            for condition in conditions
            for part in conjuncts(condition)
            if self._variance.may_diverge(part)
        )
        return Handover(
            stmt,
            self._read([stmt], loops, conditions),
            self._effects.mbarrier(mbarrier),
            self._footprints.threads_where(on_threads),
            waits,
            op.releases_copies(),
        )

    def _attribute(
        self,
        stmt: tirx.AttrStmt,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        weight: float | None,
    ) -> Item:
        group, outer = group_of_region(stmt), self._hands_over
        if group is not None:
            is_outermost = self._groups == ()
            self._hands_over = hands_over(stmt.body, group) if is_outermost else outer
            self._around.append(group)
        come, self._warps_come = self._warps_come, self._warps_come or group is not None
        body = self.sequence(stmt.body, loops, conditions, weight)
        self._warps_come = come
        region = Branch(stmt, (), [body], is_region=group is not None and group == self._group)
        if group is not None:
            self._around.pop()
            self._hands_over = outer
        return self._closed(region, loops, weight)

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

    def _scope_of(self, stmt: Any) -> ConflictScope:
        """The threads that a barrier which is there already separates, of those that are looked at."""
        if str(stmt.value.args[0].value) == "warp":
            return ConflictScope.WARP
        comers = self._around[-1] if self._around else None
        if comers is not None and (self._group is None or self._group not in comers):
            return ConflictScope.NONE
        awaited, least = arrivals(stmt), self._num_threads if comers is None else comers.count
        waits_for_all = awaited is not None and (not awaited or awaited >= least)
        return ConflictScope.BLOCK if waits_for_all else ConflictScope.NONE

    def _leaf(
        self, stmt: tirx.Stmt, loops: tuple[Loop, ...], conditions: tuple[ir.Expr, ...]
    ) -> Leaf:
        accesses = self._read([stmt], loops, conditions)
        for earlier in accesses:
            for later in accesses:
                if earlier.writes or not later.writes or earlier.is_opaque or later.is_opaque:
                    continue
                if earlier.is_of_device or (earlier.is_atomic and later.is_atomic):
                    continue
                if earlier.root.same_as(later.root) and self.checker.between(earlier, later, loops):
                    raise DataRace(
                        f"threads read elements of {describe(later.root)} that others write in the "
                        "same statement",
                        location=later.location,
                        help="read them into a local variable or a fragment first",
                    )
        return Leaf(stmt, accesses)

    def _loop(
        self,
        stmt: tirx.For | tirx.While,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        weight: float | None,
    ) -> Item:
        is_uniform = weight is not None and not self._variance.is_divergent(stmt)
        loop = self._effects.loop(stmt, is_uniform)
        runs = False
        if isinstance(stmt, tirx.For):
            runs = bool(self._analyzer.can_prove(loop.extent >= 1))
            self._bind(stmt)
            bounds = [stmt.min, stmt.extent]
            if stmt.kind in (tirx.ForKind.VECTORIZED, tirx.ForKind.PARALLEL):
                weight = None
        else:
            bounds = [stmt.condition]
        head = self._read(bounds, loops, conditions)
        inner = weight if is_uniform else None
        body = self.sequence(stmt.body, (*loops, loop), conditions, inner, is_body=True)
        return self._closed(Iteration(stmt, loop, head, body, runs, loops), loops, inner)

    def _branch(
        self,
        stmt: tirx.IfThenElse,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        weight: float | None,
    ) -> Item:
        head = self._read([stmt.condition], loops, conditions)
        taken = case_of(stmt, self._group)
        if taken is not None:
            return self._taken(stmt, taken, loops, conditions, weight)
        is_uniform = weight is not None and not self._variance.may_diverge(stmt.condition)
        inner = weight * _BRANCH_WEIGHT if weight and is_uniform else None
        come = self._warps_come
        self._warps_come = come and not self._variance.may_diverge(stmt.condition)
        cases = [self.sequence(stmt.then_case, loops, (*conditions, stmt.condition), inner)]
        if stmt.else_case is not None:
            negated = (*conditions, tirx.Not(stmt.condition))
            cases.append(self.sequence(stmt.else_case, loops, negated, inner))
        elif is_uniform:
            cases.append(Sequence([], [None]))
        self._warps_come = come
        branch = Branch(stmt, head, cases, diverges=not is_uniform)
        return self._closed(branch, loops, inner)

    def _taken(
        self,
        stmt: tirx.IfThenElse,
        number: int,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        weight: float | None,
    ) -> Item:
        """A branch of which all threads take one case, if it is there, and others the other one."""
        negated = tirx.Not(stmt.condition)
        cases = [
            self.sequence(case, loops, (*conditions, holds), weight if n == number else None)
            for n, (case, holds) in enumerate(
                zip(statements_of(stmt), (stmt.condition, negated), strict=False)
            )
        ]
        return self._closed(Branch(stmt, (), cases, diverges=True), loops, weight)

    def _read(
        self, expressions: Statements[Any], loops: tuple[Loop, ...], conditions: tuple[ir.Expr, ...]
    ) -> tuple[Access, ...]:
        groups = self._groups
        if groups is None:
            return ()
        found: list[Access] = []
        for expression in expressions:
            found += self._effects.of(
                expression, loops, conditions, groups=groups, hands_over=self._hands_over
            )
        return tuple(found)

    def _closed(
        self, item: Branch | Iteration, loops: tuple[Loop, ...], weight: float | None
    ) -> Item:
        """A leaf, if no barrier is needed inside, or none of device memory can stand there."""
        if _has_own_flow(item, inside_loop=False):
            return item
        race = self.checker.race(item, loops, {}, of_device=weight is not None)
        if race is None:
            return Leaf(item.statement, tuple(accesses_of(item)))
        if weight is None:
            raise refuse(race)
        return item


def refuse(race: Race) -> DataRace | VerifyError:
    """The error for a race that no barrier can prevent."""
    earlier, later = race.earlier, race.later
    if race.in_flight != Collision.NEVER:
        return refused_before_arrival(earlier, later)
    what = "written" if later.writes else "read"
    before = "written" if earlier.writes else "read"
    where = "" if earlier.location is None else f", at {earlier.location}"
    if earlier.groups != later.groups:
        first, second = (each.groups[-1:] or ("all threads",) for each in (earlier, later))
        return DataRace(
            f"elements of {describe(later.root)} are {what} by {second[0]} of the block and {before} "
            f"by {first[0]}{where}, which run at the same time: no barrier can stand between",
            location=later.location or earlier.location,
            help="let both groups come to a barrier, T.sync_threads(number, threads) or one of "
            "T.alloc_barrier, or give each a branch of its own, one after the other",
        )
    return DataRace(
        f"elements of {describe(later.root)} are {what} by other threads than those that have "
        f"{before} them before{where}, and no barrier can stand between: not all threads of the "
        "block come there together",
        location=later.location or earlier.location,
        help="end the branch, or the loop, that depends on the thread between the two",
    )


def _children(item: Item) -> Iterator[Item]:
    if isinstance(item, Branch):
        for case in item.cases:
            yield from case.items
    elif isinstance(item, Iteration):
        yield from item.body.items


def accesses_of(item: Item) -> list[Access]:
    """All accesses in an item, in their order."""
    if isinstance(item, Leaf | Handover):
        return list(item.accesses)
    found = list(item.head) if isinstance(item, Branch | Iteration) else []
    for child in _children(item):
        found += accesses_of(child)
    return found


def _has_own_flow(item: Item, *, inside_loop: bool) -> bool:
    """Tell whether an item holds a barrier, a wait or a region, or leaves a loop that is not in it."""
    if isinstance(item, Branch) and item.is_region:
        return True
    if isinstance(item, Wait | Handover | Signal | TokenWait):
        return True
    if isinstance(item, Exit):
        return not inside_loop
    inside_loop = inside_loop or isinstance(item, Iteration)
    return any(_has_own_flow(child, inside_loop=inside_loop) for child in _children(item))
