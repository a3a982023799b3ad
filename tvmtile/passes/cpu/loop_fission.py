"""Loop fission: a body that threads wait in becomes loops over the threads, one a run between waits.

The items of a body are written down; a run recomputes or recalls the values that earlier ones bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, mapped, ranges_of
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.errors import InvalidOperand
from tvmtile.ir.kernels import Launch
from tvmtile.ir.rewriting import contains, for_loop, has_effect, seq, substitute, variables_of

Guards: TypeAlias = tuple[tuple[ir.Var, bool], ...]
"""Bound conditions, and what each must be for a thread to take part."""


@dataclass
class Run:
    """Statements that a thread executes without waiting for another one."""

    statements: list[tirx.Stmt] = field(default_factory=list)
    """The work of each thread."""
    guards: Guards = ()
    """Of the threads that take part."""


@dataclass
class ByBlock:
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
    """As of `ByBlock`."""


Item: TypeAlias = "Run | ByBlock | Private | Nested"


class ItemBuilder:
    """Collects items; statements of threads join the run that is open."""

    def __init__(self, guards: Guards = ()) -> None:
        self.items: list[Item] = []
        self._guards = guards
        self._run: Run | None = None

    def add(self, *items: Item) -> None:
        """End the open run, and add what comes behind it."""
        self._run = None
        self.items += items

    def declare(self, item: Item) -> None:
        """Add a declaration; it depends on no memory, so the open run stays open."""
        self.items.insert(len(self.items) - (self._run is not None), item)

    def per_thread(self, stmt: tirx.Stmt) -> None:
        """Add what each thread does."""
        if self._run is None:
            self._run = Run(guards=self._guards)
            self.items.append(self._run)
        self._run.statements.append(stmt)


def may_change(value: ir.Expr) -> bool:
    """Tell whether recomputing a value later may give another result."""
    return has_effect(value) or contains(value, ir.TensorLoad)


def emit_runs(
    items: Sequence[Item],
    launch: Launch,
    variance: ThreadVariance,
    scope: str = "local",
    kind: tirx.ForKind = tirx.ForKind.SERIAL,
) -> tirx.Stmt:
    """Turn the items of a body into statements, with a loop over the threads of each run.

    The variance says which values diverge between threads. Values are kept in `scope` from one run to
    another; `kind` is that of the outermost of the loops.
    """
    return _RunEmitter(items, launch, variance, scope, kind).emit(items)


class _RunEmitter:
    def __init__(
        self,
        sequence: Sequence[Item],
        launch: Launch,
        variance: ThreadVariance,
        scope: str,
        kind: tirx.ForKind,
    ) -> None:
        self._scope = scope
        self._kind = kind
        self._variance = variance
        self._launch = launch
        self._threads = [loop.loop_var for loop in launch.threads]
        items = list(_items_in(sequence))
        self._uses = {id(item): variables_of(_own_parts(item)) for item in items}
        self._values: dict[ir.Var, ir.Expr] = {}
        self._home: dict[ir.Var, Run] = {}
        for run in (item for item in items if isinstance(item, Run)):
            for stmt in run.statements:
                if isinstance(stmt, tirx.Bind):
                    self._values[stmt.var] = stmt.value
                    self._home[stmt.var] = run
        self._kept = {
            var: self._storage(var)
            for item in items
            for var in self._needed(item)
            if may_change(self._values[var])
        }
        self._local: dict[ir.Var, Run] = {}
        self._stacked: dict[ir.Var, ir.Var] = {}
        self._place(sequence)

    def emit(self, items: Sequence[Item]) -> tirx.Stmt:
        statements: list[tirx.Stmt] = []
        for item in items:
            if isinstance(item, ByBlock):
                statements += self._of_first(item, item.statement)
            elif isinstance(item, Nested):
                nested = item.rebuild([self.emit(body) for body in item.bodies])
                statements += self._of_first(item, nested)
            elif isinstance(item, Private):
                if buffer_of(item.declaration) in self._stacked:
                    statements.append(self._stacked_declaration(item.declaration))
            else:
                statements += self._emit_run(item, items)
        return seq(statements)

    # Values bound in one run and used in another --------------------------------------------------

    def _needed(self, item: Item) -> list[ir.Var]:
        """Bindings of other runs that an item uses, in the order of their dependences."""
        needed: list[ir.Var] = []

        def need(var: ir.Var) -> None:
            home = self._home.get(var)
            if home is None or home is item or var in needed:
                return
            if not may_change(self._values[var]):
                for used in variables_of(self._values[var]):
                    need(used)
            needed.append(var)

        for var in self._uses[id(item)]:
            need(var)
        return needed

    def _storage(self, var: ir.Var) -> ir.Var:
        return tirx.decl_buffer(
            (self._launch.num_threads,), str(var.ty.dtype), name=var.name, scope=self._scope
        )

    def _recall(self, var: ir.Var) -> ir.Expr:
        if var in self._kept:
            return tirx.BufferLoad(self._kept[var], [self._launch.thread_index])
        return self._values[var]

    # Private arrays --------------------------------------------------------------------------------

    def _place(self, items: Sequence[Item]) -> None:
        """Decide which arrays live in one run, and which need an element for each thread."""
        for item in items:
            if isinstance(item, Nested):
                for body in item.bodies:
                    self._place(body)
            if not isinstance(item, Private):
                continue
            buffer = buffer_of(item.declaration)
            root = self._variance.root(buffer)
            if not root.same_as(buffer):
                self._place_view(buffer, root)
                continue
            users = [user for user in _items_in(items) if self._uses_array(user, root)]
            first = users[0] if users else None
            if len(users) == 1 and isinstance(first, Run) and any(item is first for item in items):
                self._local[buffer] = first
            elif users:
                self._stacked[buffer] = self._stack(buffer)

    def _place_view(self, view: ir.Var, root: ir.Var) -> None:
        if root in self._local:
            self._local[view] = self._local[root]
        elif root in self._stacked:
            self._stacked[view] = self._stack(view)

    def _uses_array(self, item: Item, root: ir.Var) -> bool:
        return any(
            is_buffer_var(var) and self._variance.root(var).same_as(root)
            for var in self._uses[id(item)]
        )

    def _stack(self, buffer: ir.Var) -> ir.Var:
        """The copies of all threads one after the other, along the first axis."""
        ty = buffer.ty
        shape = [self._launch.num_threads * ty.shape[0], *ty.shape[1:]]
        return tirx.decl_buffer(shape, str(ty.dtype), name=buffer.name, scope=ty.storage_scope)

    def _stacked_declaration(self, declaration: Any) -> tirx.Stmt:
        stacked = self._stacked[buffer_of(declaration)]
        if isinstance(declaration, tirx.AllocBuffer):
            return tirx.AllocBuffer(stacked, declaration.annotations, declaration.span)
        data = substitute(declaration.data, self._stacked)
        return tirx.DeclBuffer(stacked, data=data, span=declaration.span)

    def _stacked_accesses(self, stmt: tirx.Stmt) -> tirx.Stmt:
        def place(buffer: ir.Var, index: ir.Expr) -> ir.Expr:
            offset = self._launch.thread_index * buffer.ty.shape[0]
            if isinstance(index, tirx.Ramp):
                return tirx.Ramp(offset + index.base, index.stride, index.lanes)
            return offset + index

        def moved(node: Any) -> Any:
            buffer = buffer_of(node)
            stacked = self._stacked.get(buffer)
            if stacked is None:
                return node
            if isinstance(node, ir.TensorRegion):
                first, *others = ranges_of(node)
                first = ir.Range.from_min_extent(place(buffer, first.min), first.extent)
                return tirx.BufferRegion(stacked, [first, *others])
            index, *rest = indices_of(node)
            indices = [place(buffer, index), *rest]
            if isinstance(node, tirx.BufferStore):
                return tirx.BufferStore(stacked, node.value, indices, node.span)
            return tirx.BufferLoad(stacked, indices)

        result = mapped(stmt, ((ir.TensorLoad, tirx.BufferStore, ir.TensorRegion), moved))
        self._check_no_address(result)
        return result

    def _check_no_address(self, stmt: tirx.Stmt) -> None:
        for var in variables_of(stmt):
            if var in self._stacked:
                raise InvalidOperand(
                    f"the address of the private array {var.name} is used after a barrier",
                    help="on a CPU the threads' copies lie in one array: use its elements",
                )

    # Runs ------------------------------------------------------------------------------------------

    def _emit_run(self, run: Run, items: Sequence[Item]) -> list[tirx.Stmt]:
        if all(
            isinstance(stmt, tirx.Bind) and stmt.var not in self._kept for stmt in run.statements
        ):
            return []  # the runs that use the values compute them
        body = self._recollections(run)
        inner: list[tirx.Stmt] = [
            *(
                item.declaration
                for item in items
                if isinstance(item, Private) and self._local.get(buffer_of(item.declaration)) is run
            ),
            *self._statements(run),
        ]
        guarded = seq(inner)
        for condition, taken in reversed(run.guards):
            test = condition if taken else tirx.Not(condition)
            guarded = tirx.IfThenElse(test, guarded, None)
        body.append(guarded)
        kept = [
            tirx.AllocBuffer(buffer) for var, buffer in self._kept.items() if self._home[var] is run
        ]
        return [*kept, self._over_threads(run, seq(body))]

    def _recollections(self, item: Item) -> list[tirx.Stmt]:
        return [tirx.Bind(var, self._recall(var)) for var in self._needed(item)]

    def _of_first(self, item: ByBlock | Nested, stmt: tirx.Stmt) -> list[tirx.Stmt]:
        """The work that a group does once, with the values of its first thread."""
        if item.thread is None:
            return [stmt]
        values: dict[ir.Var, Any] = {
            var: tirx.const(int(index), str(var.ty.dtype))
            for var, index in self._launch.indices_of(item.thread).items()
        }
        values |= {var: ir.Var(var.name, var.ty) for var in self._needed(item)}
        body = self._stacked_accesses(seq([*self._recollections(item), stmt]))
        return [substitute(body, values)]

    def _statements(self, run: Run) -> Iterator[tirx.Stmt]:
        for stmt in run.statements:
            yield stmt
            if isinstance(stmt, tirx.Bind) and stmt.var in self._kept:
                buffer = self._kept[stmt.var]
                yield tirx.BufferStore(buffer, stmt.var, [self._launch.thread_index])

    def _over_threads(self, run: Run, body: tirx.Stmt) -> tirx.Stmt:
        """A loop over the threads whose variables, and whose recollections, are its own."""
        body = self._stacked_accesses(body)
        fresh: dict[ir.Var, Any] = {
            var: ir.Var(var.name, var.ty) for var in (*self._threads, *self._needed(run))
        }
        body = substitute(body, fresh)
        *inner, outermost = self._launch.threads_fastest_first
        for loop in inner:
            body = for_loop(fresh[loop.loop_var], loop.extent, body)
        return for_loop(fresh[outermost.loop_var], outermost.extent, body, self._kind)


def _items_in(items: Sequence[Item]) -> Iterator[Item]:
    for item in items:
        yield item
        for body in item.bodies if isinstance(item, Nested) else ():
            yield from _items_in(body)


def _own_parts(item: Item) -> list[ir.Node]:
    """The parts of an item that use what threads keep."""
    if isinstance(item, Run):
        return [*(condition for condition, _ in item.guards), *item.statements]
    if isinstance(item, Private) or item.thread is None:
        return []
    return [
        item.statement if isinstance(item, ByBlock) else item.rebuild([seq([])] * len(item.bodies))
    ]
