"""Values that diverge from thread to thread, and statements that a block executes once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeGuard

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, is_buffer_var, mutated, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.errors import NestingError
from tvmtile.ir.kernels import Launch, is_parallel, leaves_loop, statements_of
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.rewriting import has_effect, statements_in, variables_in
from tvmtile.ir.scopes import is_private
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import Group, Regions, group_of_region

_EFFECT = 0
"""Stands for what every thread does for itself among the sources of a value."""


class ThreadVariance:
    """The variables and private arrays of a block whose values diverge between its threads.

    A value diverges if it is computed from a thread's index, from another divergent value, or by an
    operation that every thread does for itself. A private array diverges if a divergent value is stored
    to it, or any value at a divergent index or under a divergent condition. One that a group of threads
    alone uses in its regions does where it diverges between the threads of the group.

    The statements are visited once, for a graph of what flows where, and most of it is never looked at:
    what is asked for is followed back, to the indices of the threads. Its nodes are addresses of
    variables, and numbers for conditions.

    Parameters
    ----------
    body : Stmt
        What a block does.
    threads : iterable of Var
        The indices of its threads.
    may_be_private : callable
        Tells which arrays to follow. Of a fragment only what each thread stores or copies by itself
        diverges: products and `T.Parallel` share its elements out.
    group : Group, optional
        Compare its threads only, in its regions and outside of any; all of them come to a region of
        a group that they are a part of.

    Attributes
    ----------
    root : callable
        Gives the array that a view looks at.
    """

    def __init__(
        self,
        body: tirx.Stmt,
        threads: Iterable[ir.Var],
        may_be_private: Callable[[ir.Var], bool] = is_private,
        group: Group | None = None,
    ) -> None:
        self._group = group
        self._body = body
        self.root = Aliases(body).root
        self._is_followed = may_be_private
        self._divergent = {_EFFECT, *map(hash, threads)}
        self._uniform: set[int] = set()
        self._flows: defaultdict[int, list[_Flow]] = defaultdict(list)  # to each node
        self._names: dict[int, tuple[Any, list[int]]] = {}  # by address; keeps the node alive
        self._conditions = 0
        self._visit(body, _Around([], None, []), in_parallel=False)

    def depends(self, node: ir.Node) -> bool:
        """Tell whether a statement or an expression uses a divergent value."""
        return any(map(self._diverges, self._names_in(node)))

    def may_diverge(self, expression: ir.Expr) -> bool:
        """Tell whether an expression may have another value in another thread."""
        return self.depends(expression) or self.acts(expression)

    def acts(self, expression: ir.Expr) -> bool:
        """Tell whether threads may get different values of an expression of uniform operands."""
        return has_effect(expression)

    def is_divergent(self, loop: tirx.For | tirx.While) -> bool:
        """Tell whether threads may go through a loop a different number of times."""
        return any(map(self.may_diverge, decisions(loop)))

    def ends_divergently(self, loop: tirx.For | tirx.While) -> TypeGuard[tirx.For]:
        """Tell whether it is by their bounds alone that threads leave a loop at different times."""
        exits = _conditions_of_exits(loop.body)
        return isinstance(loop, tirx.For) and not any(map(self.may_diverge, exits))

    def add(self, *variables: ir.Var) -> None:
        """Mark variables as divergent."""
        self._divergent.update(map(hash, variables))
        self._uniform.clear()

    def _names_in(self, node: ir.Node) -> list[int]:
        known = self._names.get(hash(node))
        if known is None:
            known = node, [hash(self.root(var)) for var in variables_in(node)]
            self._names[hash(node)] = known
        return known[1]

    # The graph ---------------------------------------------------------------------------------

    def _diverges(self, node: int) -> bool:
        """Tell whether a divergent node flows into one."""
        before = {node: node}  # the node that another one was found from
        pending = [node]
        while pending:
            last = pending.pop()
            if last in self._divergent:
                while before[last] != last:
                    last = before[last]
                    self._divergent.add(last)
                return True
            if last not in self._uniform:
                for source in (s for flow in self._flows.get(last, ()) for s in self._of(flow)):
                    if source not in before:
                        before[source] = last
                        pending.append(source)
        self._uniform.update(before)
        return False

    def _of(self, flow: _Flow) -> Iterator[int]:
        """The nodes that flow into one."""
        yield from flow.nodes
        for expression in flow.expressions:
            if type(expression) is tirx.BufferStore:
                yield from self._of(_Flow([expression.value, *indices_of(expression)], flow.acts))
                continue
            yield from self._names_in(expression)
            if flow.acts and self.acts(expression):
                yield _EFFECT
        if flow.array is not None:
            yield from self._guards_of(flow.array, flow.around)

    def _visit(self, stmt: Any, around: _Around, *, in_parallel: bool) -> None:
        # The iterations of T.Parallel are distributed: what one does is done once.
        acts = not in_parallel
        kind = type(stmt)
        if kind is tirx.Bind:
            self._flows[hash(stmt.var)].append(_Flow([stmt.value], acts))
        elif kind is tirx.BufferStore:
            buffer = buffer_of(stmt)
            if is_private(buffer) if in_parallel else self._is_followed(buffer):
                self._flow_into(buffer, _Flow([stmt], acts, around, buffer))
        elif kind is tirx.Evaluate:
            self._visit_call(stmt.value, around, in_parallel=in_parallel)
        elif kind is tirx.IfThenElse:
            around = self._guarded(around, [stmt.condition], acts)
        elif kind is tirx.AttrStmt:
            group = group_of_region(stmt)
            if group is not None and self._group is not None:
                if not group.overlaps(self._group):
                    return
                around = _Around([], None, []) if self._group in group else around
            elif group is not None:
                around = _Around(around.guards, group, [])
        elif kind is tirx.For or kind is tirx.While:
            around = self._guarded(around, decisions(stmt), acts)
            if kind is tirx.For:
                self._flows[hash(stmt.loop_var)].append(_Flow([stmt.min, stmt.extent], acts))
                in_parallel = in_parallel or is_parallel(stmt)
        for child in statements_of(stmt):
            self._visit(child, around, in_parallel=in_parallel)

    def _guarded(self, around: _Around, expressions: list[ir.Expr], acts: bool) -> _Around:
        """The nodes that diverge where a statement under a further condition does."""
        guards = self._condition(_Flow(expressions, acts, nodes=around.guards))
        if around.group is None:
            return _Around(guards, None, guards)
        own = self._condition(_Flow(expressions, acts, nodes=around.own))
        return _Around(guards, around.group, own)

    def _condition(self, flow: _Flow) -> list[int]:
        self._conditions -= 1
        self._flows[self._conditions].append(flow)
        return [self._conditions]

    @cached_property
    def _owners(self) -> dict[int, Group]:
        return {} if self._group is not None else _owners(self._body, self.root, self._is_followed)

    def _guards_of(self, buffer: ir.Var, around: _Around) -> list[int]:
        """The guards that decide which threads store to an array, of those that use it."""
        owner = self._owners.get(hash(self.root(buffer))) if self._owners else None
        is_own = owner is not None and owner == around.group
        return around.own if is_own else around.guards

    def _visit_call(self, call: ir.Expr, around: _Around, *, in_parallel: bool) -> None:
        op = operator_of(call)
        if op is not None and op.is_tile:
            for buffer in map(buffer_of, op.writes()):
                if is_private(buffer):
                    self._flow_into(buffer, _Flow([call], False, around, buffer))
                elif self._is_followed(buffer) and op.role != "product":
                    self._flow_into(buffer, _Flow([call]))
        elif not in_parallel and has_effect(call):
            # Every thread makes the call, and may write what it is given.
            for given in filter(is_buffer_var, _given(call)):
                if is_private(given):
                    self._flow_into(given, _Flow(nodes=[_EFFECT]))

    def _flow_into(self, buffer: ir.Var, flow: _Flow) -> None:
        self._flows[hash(self.root(buffer))].append(flow)


class VarianceOfGroups:
    """Values that diverge between the threads of each group of a block.

    Threads of other groups may have other values of what both use, such as of the number of a stage.
    """

    def __init__(self, launch: Launch) -> None:
        self._body = launch.body
        self._threads = [axis.loop_var for axis in launch.threads]
        self._found: dict[Group, ThreadVariance] = {}
        self._added: list[ir.Var] = []

    def between(self, group: Group) -> ThreadVariance:
        """The variance between the threads of a group, in its regions and outside of any."""
        if group not in self._found:
            self._found[group] = ThreadVariance(self._body, self._threads, group=group)
            self._found[group].add(*self._added)
        return self._found[group]

    def add(self, *variables: ir.Var) -> None:
        """Mark variables as divergent in all groups."""
        self._added += variables
        for variance in self._found.values():
            variance.add(*variables)


def check_alone(op: TileOp, stmt: tirx.Stmt) -> None:
    """Make sure that each thread can do an operator by itself.

    Raises
    ------
    NestingError
        If it is a product to a tile that the threads share.
    """
    if op.role == "product" and not all(is_private(buffer_of(result)) for result in op.writes()):
        raise NestingError(
            f"T.{op.name} is the work of all threads that come to it, but its operands depend on the "
            "thread",
            help="take the same tiles in all threads, or let each group of warps come to a product of "
            "its own: `if T.get_thread_binding() < 128: T.gemm(...)`",
            location=first_location(stmt),
        )


class _Around(NamedTuple):
    """The conditions and loops around a statement."""

    guards: list[int]
    """The nodes of the conditions around it."""
    group: Group | None
    """The group of the innermost region."""
    own: list[int]
    """The nodes of the conditions within that region."""


class _Flow(NamedTuple):
    """The flow into a node."""

    expressions: Sequence[Any] = ()
    """The expressions that a value is computed from; of a store, its value and its indices."""
    acts: bool = False
    """Every thread computes them for itself."""
    around: _Around = _Around([], None, [])
    array: ir.Var | None = None
    """The surroundings of a statement that changes an array."""
    nodes: Sequence[int] = ()
    """Further nodes."""


def _owners(
    body: tirx.Stmt, root: Callable[[ir.Var], ir.Var], is_followed: Callable[[ir.Var], bool]
) -> dict[int, Group]:
    """The arrays that one group alone uses, in its regions; all may store outside of any."""
    if not any(map(group_of_region, statements_in(body, tirx.AttrStmt))):
        return {}
    regions = Regions()
    users: defaultdict[int, set[Group | None]] = defaultdict(set)

    def use(var: ir.Var, _: Mutator) -> ir.Var:
        if is_buffer_var(var) and is_followed(var):
            users[hash(root(var))].add(regions.group)
        return var

    def store(node: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        if regions.group is not None:
            return mutator.default_mutate(node)
        for expression in (node.value, *indices_of(node)):
            mutator.mutate(expression)
        return node

    mutated(
        body,
        (tirx.AttrStmt, regions.visit),
        ((tirx.AllocBuffer, tirx.DeclBuffer), lambda declaration, _: declaration),
        (tirx.BufferStore, store),
        (ir.Var, use),
    )
    only = {array: next(iter(groups)) for array, groups in users.items() if len(groups) == 1}
    return {array: group for array, group in only.items() if group is not None}


def decisions(loop: tirx.For | tirx.While) -> list[ir.Expr]:
    """The expressions that decide how often a loop runs."""
    bounds = [loop.min, loop.extent] if isinstance(loop, tirx.For) else [loop.condition]
    return [*bounds, *(_conditions_of_exits(loop.body) if leaves_loop(loop.body) else ())]


def _conditions_of_exits(stmt: tirx.Stmt) -> list[ir.Expr]:
    """The conditions under which a statement leaves the loop around it."""
    if isinstance(stmt, tirx.For | tirx.While) or not leaves_loop(stmt):
        return []
    own = [stmt.condition] if isinstance(stmt, tirx.IfThenElse) else []
    return own + [c for child in statements_of(stmt) for c in _conditions_of_exits(child)]


def _given(argument: ir.Expr) -> Iterator[ir.Var]:
    """The buffers whose elements or addresses a call gets; what only an index reads is none of them."""
    if type(argument) is ir.Call:
        for each in argument.args[:]:
            yield from _given(each)
    elif type(argument) is ir.TensorLoad:
        yield buffer_of(argument)
    elif not ir.is_prim_expr(argument):
        yield from nodes_in(argument, ir.Var)
