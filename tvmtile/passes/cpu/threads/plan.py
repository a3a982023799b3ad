"""Where to cut a block's body so that its threads can run one after the other.

The items are a program to write down: declarations move in front of an open run, divergent branches
become guards. Those of `passes/gpu/barriers/items` are a control-flow graph to search, with every
statement where it was; what both ask of a statement is in `ir/barriers` and `analysis/uniformity`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.ir.barriers import is_barrier, is_grid_barrier
from tvmtile.ir.kernels import Launch, flattened, is_loop_exit, statements_of, with_statements
from tvmtile.ir.rewriting import for_loop, substitute
from tvmtile.ir.scopes import is_private
from tvmtile.ir.threads import group_of_region
from tvmtile.passes.cpu.threads.accesses import Accesses
from tvmtile.passes.cpu.threads.exchange import exchange_values
from tvmtile.passes.cpu.threads.statements import Guards, Statements, divergent, may_change


@dataclass
class Run:
    """Statements that a thread executes without waiting for another one."""

    statements: list[tirx.Stmt] = field(default_factory=list)
    """What each thread does."""
    guards: Guards = ()
    """Of the threads that take part."""


@dataclass
class Once:
    """A statement that the block, or a group, executes, not its threads."""

    statement: tirx.Stmt
    thread: int | None = None
    """The first one of the group: what it keeps, all of them do."""


@dataclass
class Private:
    """The declaration of a private array that diverges between threads, or of a view of one."""

    declaration: tirx.AllocBuffer | tirx.DeclBuffer


@dataclass
class Nested:
    """A loop or a branch that all threads of the block, or of a group, go through together."""

    bodies: list[list[Item]]
    rebuild: Callable[[list[tirx.Stmt]], tirx.Stmt]
    thread: int | None = None
    """As of `Once`."""


Item: TypeAlias = "Run | Once | Private | Nested"


@dataclass(frozen=True)
class CutBody:
    """A block's body, cut."""

    items: list[Item]
    """What the block does, in order."""
    variance: ThreadVariance
    """Which values diverge between its threads."""


def plan_threads(launch: Launch) -> CutBody:
    """Cut the body of a kernel where its threads wait for each other.

    Raises
    ------
    NestingError
        If they wait where not all of them come.
    """
    exchanged = exchange_values(launch)
    threads = [loop.loop_var for loop in launch.threads]
    variance = ThreadVariance(exchanged.body, threads)
    launch.body = exchanged.body
    planner = _Cutter(variance, Statements(launch, variance, exchanged.buffers))
    return CutBody(planner.cut(exchanged.body, ()), variance)


class _Cutter:
    def __init__(self, variance: ThreadVariance, statements: Statements) -> None:
        self._variance = variance
        self._statements = statements

    def cut(self, body: tirx.Stmt, guards: Guards) -> list[Item]:
        """The items of a sequence that all threads go through, or those that the guards let in."""
        sequence = _Sequence(self._variance, guards)
        for stmt in flattened(body):
            self._add(sequence, stmt, guards)
        return sequence.items

    def _add(self, sequence: _Sequence, stmt: tirx.Stmt, guards: Guards) -> None:
        if isinstance(stmt, tirx.AttrStmt) and group_of_region(stmt) is not None:
            with self._statements.within(stmt):
                for child in flattened(stmt.body):
                    self._add(sequence, child, guards)
        elif isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer):
            private = self._variance.root(buffer_of(stmt))
            diverges = is_private(private) and self._variance.depends(private)
            sequence.declare(Private(stmt) if diverges else Once(stmt))
        elif is_loop_exit(stmt):
            sequence.add(Once(stmt))
        elif is_barrier(stmt):
            if guards and not self._statements.waits_for_active(stmt, guards):
                raise divergent(stmt)
            if is_grid_barrier(stmt):
                sequence.add(Once(stmt))
            sequence.end_run()
        elif self._statements.is_block_level(stmt):
            if self._statements.takes_part(stmt, guards):
                sequence.add(Once(stmt, self._statements.first))
        elif self._statements.must_cut(stmt):
            self._cut_inside(sequence, stmt, guards)
        elif self._statements.overtakes(stmt):
            value = tirx.Var("value", str(stmt.value.ty.dtype))
            self._add_to_run(sequence, tirx.Bind(value, stmt.value))
            store = tirx.BufferStore(buffer_of(stmt), value, indices_of(stmt), stmt.span)
            self._add_to_run(sequence, store)
        elif self._statements.is_per_thread(stmt, guards):
            self._add_to_run(sequence, stmt)
        elif isinstance(stmt, tirx.Bind) and not may_change(stmt.value):
            sequence.declare(Once(stmt, self._statements.first))
        else:
            sequence.add(Once(stmt, self._statements.first))

    def _add_to_run(self, sequence: _Sequence, stmt: tirx.Stmt) -> None:
        if isinstance(stmt, tirx.Bind):
            self._statements.bind(stmt)
        sequence.per_thread(stmt)

    # Loops and branches with cuts inside ---------------------------------------------------------

    def _cut_inside(self, sequence: _Sequence, stmt: tirx.Stmt, guards: Guards) -> None:
        variance = self._statements.variance
        if isinstance(stmt, tirx.IfThenElse) and variance.may_diverge(stmt.condition):
            self._cut_divergent_branch(sequence, stmt, guards)
            return
        if isinstance(stmt, tirx.For) and variance.is_divergent(stmt):
            self._cut_divergent_loop(sequence, stmt, guards)
            return
        bodies = [self.cut(child, guards) for child in statements_of(stmt)]
        first = self._statements.first
        sequence.add(Nested(bodies, lambda bodies: with_statements(stmt, bodies), first))

    def _cut_divergent_branch(
        self, sequence: _Sequence, branch: tirx.IfThenElse, guards: Guards
    ) -> None:
        condition = tirx.Var("active", "bool")
        self._add_to_run(sequence, tirx.Bind(condition, branch.condition))
        for case, taken in zip(statements_of(branch), (True, False), strict=False):
            for item in self.cut(case, (*guards, (condition, taken))):
                sequence.add(item)

    def _cut_divergent_loop(self, sequence: _Sequence, loop: tirx.For, guards: Guards) -> None:
        """Step all threads through a loop together, as often as the one with most iterations does."""
        first, trips = (ir.Var(name, loop.loop_var.ty) for name in ("first", "trips"))
        step, steps = (ir.Var(name, loop.loop_var.ty) for name in ("step", "steps"))
        self._statements.add_divergent(first, trips)
        dtype = str(step.ty.dtype)
        most = tirx.decl_buffer((1,), dtype, name="most", scope="shared")
        larger = tirx.max(tirx.BufferLoad(most, [0]), trips)
        bounds = Run(guards=guards)
        for stmt in (
            tirx.Bind(first, loop.min),
            tirx.Bind(trips, loop.extent),
            tirx.BufferStore(most, larger, [0]),
        ):
            bounds.statements.append(stmt)
            if isinstance(stmt, tirx.Bind):
                self._statements.bind(stmt)
        active = tirx.Var("active", "bool")
        inside = _Sequence(self._variance, guards)
        self._add_to_run(inside, tirx.Bind(active, step < trips))
        body = substitute(loop.body, {loop.loop_var: first + step})
        for item in self.cut(body, (*guards, (active, True))):
            inside.add(item)
        for item in (
            Once(tirx.AllocBuffer(most)),
            Once(tirx.BufferStore(most, tirx.const(0, dtype), [0])),
            bounds,
            Once(tirx.Bind(steps, tirx.BufferLoad(most, [0]))),
            Nested([inside.items], lambda bodies: for_loop(step, steps, *bodies)),
        ):
            sequence.add(item)


class _Sequence:
    """Collects items; statements of threads join the run that is open."""

    def __init__(self, variance: ThreadVariance, guards: Guards) -> None:
        self.items: list[Item] = []
        self._variance = variance
        self._guards = guards
        self._run: Run | None = None
        self._accesses = Accesses(variance)

    def end_run(self) -> None:
        self._run = None
        self._accesses = Accesses(self._variance)

    def add(self, item: Item) -> None:
        """Add what ends the open run."""
        self.end_run()
        self.items.append(item)

    def declare(self, item: Item) -> None:
        """Add a declaration; it depends on no memory, so the open run stays open."""
        position = len(self.items) - (0 if self._run is None else 1)
        self.items.insert(position, item)

    def per_thread(self, stmt: tirx.Stmt) -> None:
        accesses = Accesses(self._variance).add(stmt)
        if self._accesses.conflicts(accesses):
            self.end_run()
        if self._run is None:
            self._run = Run(guards=self._guards)
            self.items.append(self._run)
        self._run.statements.append(stmt)
        self._accesses.add(stmt)
