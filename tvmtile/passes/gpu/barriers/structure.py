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
from tvmtile.ir.annotations import ARRIVE_COUNT
from tvmtile.ir.asynchronous import signalled, waited
from tvmtile.ir.calls import effect_of, is_extern_call, op_name
from tvmtile.ir.kernels import Launch, flattened, is_barrier, is_loop_exit
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scopes import is_private, is_shared
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

__all__ = ["Builder", "refuse"]

_BRANCH_WEIGHT = 0.6  # so that a barrier beside a branch is better than one in each of its cases


class _Uniformity(ThreadVariance):
    """Divergence on a GPU: also of what other threads may be writing just now."""

    def __init__(self, launch: Launch, written: set[ir.Var]) -> None:
        self._written = written
        super().__init__(launch.body, [loop.loop_var for loop in launch.threads])

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
    """

    def __init__(self, launch: Launch) -> None:
        self._effects = Effects(launch.body)
        self._variance = _Uniformity(launch, _written_tensors(launch.body, self._effects.written))
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
        conditions: tuple[Any, ...] = (),
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
        slots = [Slot(weight) if weight and _accesses_of(item) else None for item in items]
        at_end = Slot(weight) if weight and is_body and any(slots) else None
        return Sequence(items, [*slots, at_end])

    def _item(
        self,
        stmt: tirx.Stmt,
        loops: tuple[Loop, ...],
        conditions: tuple[Any, ...],
        weight: float | None,
    ) -> Item:
        if is_barrier(stmt):
            scope = _scope_of(stmt)
            return Wait(stmt, Barrier(scope)) if weight and scope else Leaf(stmt, ())
        token, awaited = signalled(stmt), waited(stmt)
        if token is not None:
            return Signal(stmt, token)
        if awaited is not None:
            return TokenWait(stmt, awaited)
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
            body = self.sequence(stmt.body, loops, conditions, weight)
            return self._closed(Branch(stmt, (), [body]), loops, weight)
        return self._leaf(stmt, loops, conditions)

    def _handover(
        self, stmt: tirx.Stmt, loops: tuple[Loop, ...], conditions: tuple[Any, ...]
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
            tuple(self._effects.of(stmt, loops, conditions)),
            self._effects.mbarrier(mbarrier),
            self._footprints.threads_where(on_threads),
            waits,
        )

    def _leaf(self, stmt: tirx.Stmt, loops: tuple[Loop, ...], conditions: tuple[Any, ...]) -> Leaf:
        accesses = tuple(self._effects.of(stmt, loops, conditions))
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
        conditions: tuple[Any, ...],
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
        conditions: tuple[Any, ...],
        weight: float | None,
    ) -> Item:
        head = self._read([stmt.condition], loops, conditions)
        is_uniform = weight is not None and not self._variance.may_diverge(stmt.condition)
        inner = weight * _BRANCH_WEIGHT if weight and is_uniform else None
        cases = [self.sequence(stmt.then_case, loops, (*conditions, stmt.condition), inner)]
        if stmt.else_case is not None:
            negated = (*conditions, tirx.Not(stmt.condition))
            cases.append(self.sequence(stmt.else_case, loops, negated, inner))
        elif is_uniform:
            cases.append(Sequence([], [None]))
        if not is_uniform:
            items = [item for case in cases for item in case.items]
            cases = [Sequence(items, [None] * (len(items) + 1))]
        branch = Branch(stmt, head, cases, diverges=not is_uniform)
        return self._closed(branch, loops, inner)

    def _read(
        self, expressions: Statements[Any], loops: tuple[Loop, ...], conditions: tuple[Any, ...]
    ) -> tuple[Access, ...]:
        found: list[Access] = []
        for expression in expressions:
            found += self._effects.of(expression, loops, conditions)
        return tuple(found)

    def _closed(
        self, item: Branch | Iteration, loops: tuple[Loop, ...], weight: float | None
    ) -> Item:
        """A leaf, if no barrier is needed inside, or none of device memory can stand there."""
        if _has_own_flow(item, inside_loop=False):
            return item
        race = self.checker.race(item, loops, {}, of_device=weight is not None)
        if race is None:
            return Leaf(item.statement, tuple(_accesses_of(item)))
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
    return DataRace(
        f"elements of {describe(later.root)} are {what} by other threads than those that have "
        f"{before} them before{where}, and no barrier can stand between: not all threads of the "
        "block come there together",
        location=later.location or earlier.location,
        help="end the branch, or the loop, that depends on the thread between the two",
    )


def _scope_of(stmt: Any) -> ConflictScope:
    """The threads that a barrier of the user's separates."""
    call = stmt.value
    if call.attrs is not None and ARRIVE_COUNT in call.attrs.keys():  # noqa: SIM118
        return ConflictScope.NONE
    return ConflictScope.WARP if call.args[0].value == "warp" else ConflictScope.BLOCK


def _children(item: Item) -> Iterator[Item]:
    if isinstance(item, Branch):
        for case in item.cases:
            yield from case.items
    elif isinstance(item, Iteration):
        yield from item.body.items


def _accesses_of(item: Item) -> list[Access]:
    if isinstance(item, Leaf | Handover):
        return list(item.accesses)
    found = list(item.head) if isinstance(item, Branch | Iteration) else []
    for child in _children(item):
        found += _accesses_of(child)
    return found


def _has_own_flow(item: Item, *, inside_loop: bool) -> bool:
    """Tell whether an item holds a barrier or a wait, or leaves a loop that is not in it."""
    if isinstance(item, Wait | Handover | Signal | TokenWait):
        return True
    if isinstance(item, Exit):
        return not inside_loop
    inside_loop = inside_loop or isinstance(item, Iteration)
    return any(_has_own_flow(child, inside_loop=inside_loop) for child in _children(item))
