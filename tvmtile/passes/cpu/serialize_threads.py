"""SerializeThreads: a CPU runs the threads of a block one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeGuard

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, indices_of, mapped, nodes_in
from tvmtile.analysis.active_threads import ActiveThreads
from tvmtile.analysis.effects import effects_of
from tvmtile.analysis.thread_effects import Effects
from tvmtile.analysis.uniformity import VarianceOfGroups
from tvmtile.errors import NestingError
from tvmtile.ir.annotations import ARRIVE_COUNT
from tvmtile.ir.barriers import (
    SERIAL,
    arrivals,
    attributes_of,
    barrier_name,
    is_barrier,
    is_grid_barrier,
    scope_of,
    sync,
)
from tvmtile.ir.extents import linear_in
from tvmtile.ir.kernels import (
    Launch,
    flattened,
    is_loop_exit,
    is_parallel,
    leaves_loop,
    statements_of,
    with_kernels,
    with_launch_body,
    with_statements,
)
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, for_loop, has_effect, replace_loop, seq, substitute
from tvmtile.ir.scopes import is_of_block, is_private
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import WARP_SIZE, group_of_region, without_groups
from tvmtile.passes.cpu.loop_fission import (
    ByBlock,
    Guards,
    Item,
    ItemBuilder,
    Nested,
    Private,
    emit_runs,
    may_change,
)
from tvmtile.passes.exchange_values import exchange_values
from tvmtile.passes.gpu.insert_barriers import with_barriers

_WORK = "tvmtile.work"


@prim_func_pass(
    "SerializeThreads",
    requires=(Property.EXITS_ARE_BRANCHES, Property.GROUPS),
    establishes=(Property.NO_THREADS,),
)
def SerializeThreads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove the thread loops of a kernel; code that uses the thread index gets loops over threads.

    A tile program describes the work of a block, and most programs never name a thread: their body
    stays as it is. Where one does, the meaning is that of a GPU: all threads go through the body
    together, and a barrier separates what is before it from what is after it. InsertBarriers' analysis
    puts in those that are understood, and the body is cut at all of them into runs, each of which
    becomes a loop over the threads (this is loop fission, as in MCUDA and POCL). A tile operator or a
    `T.Parallel` is the work of the whole block: it is done once, between two barriers, and so is any
    other statement that is the same for all threads.

    A loop or a branch with a barrier inside stays outside of the loops over threads; the condition of a
    branch that diverges between threads is then kept per thread, and a loop whose bounds differ is
    stepped through by all threads together, each as often as its own bounds say. A private array
    (`T.alloc_local`, `T.alloc_var`) that lives across a barrier gets an element for each thread; a
    value bound before one is computed again, or kept if it was read from memory. Shuffles and
    reductions over threads go through a shared array.

    The pass comes before LowerTileOp because a tile operator is still one statement there, which is
    what tells the work of a block from that of a thread. An operator on a private array, such as
    `T.clear` of one, is the work of a thread. The index of the only thread along an axis is 0, on which
    nothing depends.

    Raises
    ------
    DataRace
        If elements are exchanged in a loop that threads leave at different times.
    NestingError
        If a barrier or a tile operator stands where some threads come and others don't. Tile operators
        may stand in a branch that depends on nothing but the index of the thread: its threads do the
        work.
    """

    def serialize(kernel: tirx.For) -> tirx.Stmt:
        launch = Launch(kernel)
        alone = [loop for loop in launch.threads if constant(loop.extent) == 1]
        zero = {loop.loop_var: tirx.const(0, str(loop.loop_var.ty.dtype)) for loop in alone}
        kernel = with_launch_body(kernel, substitute(launch.body, zero))
        launch.body = Launch(_with_barriers(kernel)).body
        launch.body = exchange_values(launch)
        cutter = _Cutter(launch)
        items = cutter.cut(launch.body, ())
        body = without_groups(emit_runs(items, launch, cutter.variance_of_block))
        for block in reversed(launch.blocks):
            body = replace_loop(block, body=body)
        return body

    return with_kernels(func, serialize)


def _with_barriers(kernel: tirx.For) -> tirx.For:
    """A kernel with barriers where its threads, and the work that they share, wait for each other."""
    launch = Launch(kernel)
    works: list[tirx.Stmt] = []
    kernel = with_launch_body(kernel, _Statements(launch).hidden(launch.body, works))
    threads = {loop.loop_var for loop in launch.threads}
    if contains(launch.body, ir.Var, threads.__contains__):
        kernel = with_barriers(kernel, Effects(Launch(kernel)))

    def shown(node: tirx.Evaluate) -> tirx.Stmt:
        number = attributes_of(node).get(_WORK) if is_barrier(node) else None
        return node if number is None else seq([sync(SERIAL), works[number], sync(SERIAL)])

    return mapped(kernel, (tirx.Evaluate, shown))


class _Statements:
    """The statements of a kernel, as the threads see them: work of each or of all, or places to wait.

    Attributes
    ----------
    variance : ThreadVariance
        What diverges between the threads of the group whose region is looked at, or of the block.
    first : int or None
        The first thread of that group; None of the block.
    active : ActiveThreads
        The threads that come to where the caller is, if that is known.
    """

    def __init__(self, launch: Launch) -> None:
        self.active = ActiveThreads(launch)
        self.variance_of_block = self.variance = self.active.variance
        self._of_groups = VarianceOfGroups(launch)
        self._threads = [loop.loop_var for loop in launch.threads_fastest_first]
        self.first: int | None = None

    @contextmanager
    def within(self, stmt: tirx.Stmt) -> Iterator[None]:
        """Look at what stands in a statement, which may be the region of a group."""
        outer, group = (self.variance, self.first), group_of_region(stmt)
        if group is not None:
            self.variance, self.first = self._of_groups.between(group), group.first
        try:
            yield
        finally:
            self.variance, self.first = outer

    def restricted_to(self, condition: ir.Expr, *, holds: bool) -> AbstractContextManager[None]:
        """Let those threads come for which a divergent condition holds, or does not."""
        value, mask = self.active.value_of(condition), self.active.mask
        if value is None or mask is None:
            return self.active.restricted_to(None)
        return self.active.restricted_to(mask & (value.astype(bool) == holds))

    def hidden(self, stmt: tirx.Stmt, works: list[tirx.Stmt]) -> tirx.Stmt:
        """A statement with barriers in the place of the work that is not of each thread.

        That is put into `works`, whose indices the barriers have; so is what a thread does to a tile
        by an operator. A store that overtakes the reads of other threads comes after them.
        """
        is_apart = self._is_divergent_loop(stmt) and not contains(stmt, tirx.Evaluate, is_barrier)
        if self.is_block_level(stmt) or self._is_same_element(stmt):
            return _hidden(stmt, works)
        if (is_apart or not statements_of(stmt)) and contains(stmt, tirx.Evaluate, _fills_tile):
            return _hidden(stmt, works)
        if self._overtakes(stmt):
            value = tirx.Var("value", str(stmt.value.ty.dtype))
            store = tirx.BufferStore(buffer_of(stmt), value, indices_of(stmt), stmt.span)
            return seq([tirx.Bind(value, stmt.value), store])
        if is_apart:
            return stmt
        children = statements_of(stmt)
        with self.within(stmt):
            found = [self.hidden(child, works) for child in children]
        is_same = all(map(tirx.Stmt.same_as, found, children))
        return stmt if is_same else with_statements(stmt, found)

    def is_per_thread(self, stmt: tirx.Stmt, *, guarded: bool) -> bool:
        """Tell whether each thread that comes does a statement for itself."""
        return self._differs(stmt) or _acts(stmt) or (guarded and not self._is_common(stmt))

    def _differs(self, stmt: tirx.Stmt) -> bool:
        """Tell whether threads do different things, or each stores to an array of its own."""
        if self.variance.depends(stmt):
            return True
        in_group = self.variance is not self.variance_of_block
        return in_group and any(map(self.variance_of_block.depends, self._stored_private(stmt)))

    def _is_common(self, stmt: tirx.Stmt) -> bool:
        """Tell whether what a statement keeps is one for all threads that come.

        That is a name, which work of the block under guards may use too, a variable of a group, or an
        element of a tile or a tensor: the one that comes first stores to it, if it is known who comes.
        """
        if isinstance(stmt, tirx.BufferStore) and is_private(buffer_of(stmt)):
            return not self.variance_of_block.depends(buffer_of(stmt))
        is_kept = isinstance(stmt, tirx.Bind) or self._is_same_element(stmt)
        return is_kept and self.active.mask is not None and bool(self.active.mask.any())

    def _is_same_element(self, stmt: tirx.Stmt) -> bool:
        """Tell whether all threads store the same to an element that is not one of each."""
        is_store = isinstance(stmt, tirx.BufferStore) and not is_private(buffer_of(stmt))
        return is_store and not self.is_per_thread(stmt, guarded=False)

    def is_block_level(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement is work that the threads of a block share."""
        op = operator_of(stmt)
        if not is_parallel(stmt) and (op is None or not op.is_tile):
            return False
        if not self._differs(stmt):
            return True
        if is_parallel(stmt) and _has_shared_effect(stmt):
            raise NestingError(
                "T.Parallel shares its iterations out to the threads, but the result of this one "
                "depends on which thread runs an iteration",
                help="take the loop's variables in place of T.get_thread_binding(), or write a loop of "
                "every thread with T.serial",
                location=first_location(stmt),
            )
        return False

    def must_cut(self, stmt: tirx.Stmt) -> bool:
        """Tell whether threads can't run a loop or a branch one after the other."""
        if not statements_of(stmt):
            return False
        barriers = [*filter(is_barrier, nodes_in(stmt, tirx.Evaluate))]
        if self._is_divergent_loop(stmt):
            if barriers and not self._ends_by_warps(stmt):
                raise _divergent(barriers[0])
            return bool(barriers)
        return (
            bool(barriers)
            or leaves_loop(stmt)
            or not all(map(self.variance_of_block.depends, self._stored_private(stmt)))
            or self._updates_rows(stmt)
        )

    def _is_divergent_loop(self, stmt: tirx.Stmt) -> TypeGuard[tirx.For | tirx.While]:
        return isinstance(stmt, tirx.For | tirx.While) and self.variance.is_divergent(stmt)

    def _ends_by_warps(self, loop: tirx.For | tirx.While) -> bool:
        """Tell whether threads leave a loop by its bounds alone, perhaps warp by warp.

        What only its warp waits for needs no more. Bounds that are known to differ in a warp are none.
        """
        if not self.variance.ends_divergently(loop):
            return False
        counts = self.active.value_of(loop.extent)
        if counts is None:
            return True
        warps = (counts[first : first + WARP_SIZE] for first in range(0, len(counts), WARP_SIZE))
        return all((warp == warp[0]).all() for warp in warps)

    def _stored_private(self, stmt: tirx.Stmt) -> set[ir.Var]:
        """The private arrays that a statement stores and does not declare itself."""
        declared = {buffer_of(each) for each in nodes_in(stmt, tirx.AllocBuffer)}
        stored = {
            self.variance_of_block.root(access.buffer)
            for access in effects_of(stmt)
            if access.writes and is_private(access.buffer)
        }
        return stored - declared

    def _updates_rows(self, loop: tirx.Stmt) -> bool:
        """Tell whether neighbouring threads update neighbouring elements of a tile in a loop.

        LLVM vectorises over the threads where they go through it together.
        """
        if not isinstance(loop, tirx.For) or not self._threads:
            return False
        elements = [each for each in effects_of(loop) if is_of_block(each.buffer) and each.indices]
        read = {each.root for each in elements if each.reads}
        return any(
            each.writes
            and each.root in read
            and (linear_in(each.indices[-1], self._threads[0]) or (0,))[0] == 1
            for each in elements
        )

    def _overtakes(self, stmt: tirx.Stmt) -> TypeGuard[tirx.BufferStore]:
        """Tell whether a thread may overwrite what another one reads in the same statement."""
        if not isinstance(stmt, tirx.BufferStore) or not self.variance.depends(stmt):
            return False
        return not is_private(buffer_of(stmt)) and contains(
            [stmt.value, *indices_of(stmt)],
            ir.TensorLoad,
            lambda load: (
                buffer_of(load).same_as(buffer_of(stmt))
                and not structural_equal(indices_of(load), indices_of(stmt))
            ),
        )


class _Cutter(_Statements):
    """Cuts a block's body at its barriers."""

    def cut(self, body: tirx.Stmt, guards: Guards) -> list[Item]:
        """The items of a sequence that all threads go through, or those that the guards let in."""
        sequence = ItemBuilder(guards)
        for stmt in flattened(body):
            self._add(sequence, stmt, guards)
        return sequence.items

    def _add(self, sequence: ItemBuilder, stmt: tirx.Stmt, guards: Guards) -> None:
        if isinstance(stmt, tirx.AttrStmt) and group_of_region(stmt) is not None:
            with self.within(stmt):
                for child in flattened(stmt.body):
                    self._add(sequence, child, guards)
        elif isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer):
            private = self.variance_of_block.root(buffer_of(stmt))
            diverges = is_private(private) and self.variance_of_block.depends(private)
            sequence.declare(Private(stmt) if diverges else ByBlock(stmt))
        elif is_loop_exit(stmt):
            sequence.add(ByBlock(stmt))
        elif is_barrier(stmt):
            self._check_barrier(stmt)
            sequence.add(*([ByBlock(stmt)] if is_grid_barrier(stmt) else []))
        elif self.is_block_level(stmt):
            if self.active.mask is None:
                raise _divergent(stmt)
            sequence.add(ByBlock(stmt, self.first))
        elif self.must_cut(stmt):
            self._cut_inside(sequence, stmt, guards)
        elif self.is_per_thread(stmt, guarded=bool(guards)):
            self._add_to_run(sequence, stmt)
        elif isinstance(stmt, tirx.Bind) and not may_change(stmt.value):
            sequence.declare(ByBlock(stmt, self.first))
        else:
            sequence.add(ByBlock(stmt, self.first))

    def _check_barrier(self, barrier: tirx.Evaluate) -> None:
        """Make sure that a barrier is for the threads that come to it."""
        active, awaited = self.active.mask, arrivals(barrier)
        is_of_active = active is not None and (active.all() or awaited == active.sum() > 0)
        if scope_of(barrier) not in (SERIAL, "warp") and not is_of_active:
            raise _divergent(barrier)

    def _add_to_run(self, sequence: ItemBuilder, stmt: tirx.Stmt) -> None:
        if isinstance(stmt, tirx.Bind):
            self.active.note(stmt)
        sequence.per_thread(stmt)

    def _cut_inside(self, sequence: ItemBuilder, stmt: tirx.Stmt, guards: Guards) -> None:
        if isinstance(stmt, tirx.IfThenElse) and self.variance.may_diverge(stmt.condition):
            condition = tirx.Var("active", "bool")
            self._add_to_run(sequence, tirx.Bind(condition, stmt.condition))
            for case, taken in zip(statements_of(stmt), (True, False), strict=False):
                with self.restricted_to(stmt.condition, holds=taken):
                    sequence.add(*self.cut(case, (*guards, (condition, taken))))
        elif isinstance(stmt, tirx.For) and self.variance.is_divergent(stmt):
            for child in flattened(self._stepped(stmt)):
                self._add(sequence, child, guards)
        else:
            bodies = [self.cut(child, guards) for child in statements_of(stmt)]
            sequence.add(Nested(bodies, lambda bodies: with_statements(stmt, bodies), self.first))

    def _stepped(self, loop: tirx.For) -> tirx.Stmt:
        """A loop that all threads step through together, as often as the one with most iterations."""
        first, trips = (ir.Var(name, loop.loop_var.ty) for name in ("first", "trips"))
        step, steps = (ir.Var(name, loop.loop_var.ty) for name in ("step", "steps"))
        self.variance_of_block.add(first, trips)
        self._of_groups.add(first, trips)
        dtype = str(step.ty.dtype)
        most = tirx.decl_buffer((1,), dtype, name="most", scope="shared")
        larger = tirx.max(tirx.BufferLoad(most, [0]), trips)
        body = substitute(loop.body, {loop.loop_var: first + step})
        return seq(
            [
                tirx.AllocBuffer(most),
                tirx.BufferStore(most, tirx.const(0, dtype), [0]),
                tirx.Bind(first, loop.min),
                tirx.Bind(trips, loop.extent),
                tirx.BufferStore(most, larger, [0]),
                sync(SERIAL),
                tirx.Bind(steps, tirx.BufferLoad(most, [0])),
                for_loop(step, steps, tirx.IfThenElse(step < trips, body, None)),
            ]
        )


def _hidden(work: tirx.Stmt, works: list[tirx.Stmt]) -> tirx.Stmt:
    works.append(work)
    return sync(SERIAL, {_WORK: len(works) - 1})


def _fills_tile(node: tirx.Evaluate) -> bool:
    op = operator_of(node)
    return op is not None and op.is_tile and any(is_of_block(buffer_of(it)) for it in op.writes())


def _acts(stmt: tirx.Stmt) -> bool:
    """Tell whether a statement has a side effect in every thread, though all do the same."""
    if is_parallel(stmt):
        return False
    if isinstance(stmt, tirx.Evaluate | tirx.Bind | tirx.BufferStore):
        op = operator_of(stmt)
        return has_effect(stmt.value) and (op is None or not (op.is_tile or op.by == "block"))
    return any(map(_acts, statements_of(stmt)))


def _has_shared_effect(stmt: tirx.Stmt) -> bool:
    """Tell whether other threads may see what a statement does."""
    return contains(stmt, tirx.BufferStore, lambda store: not is_private(buffer_of(store))) or (
        contains(stmt, tirx.Evaluate, lambda node: has_effect(node.value))
    )


def _divergent(stmt: tirx.Stmt) -> NestingError:
    """The error that not all threads come to a statement."""
    op, count = operator_of(stmt), None
    name = "T.Parallel" if op is None else f"T.{op.name}"
    if is_barrier(stmt):
        is_ours = scope_of(stmt) == SERIAL
        name = "an exchange of values between threads" if is_ours else f"T.{barrier_name(stmt)}"
        count = constant(attributes_of(stmt).get(ARRIVE_COUNT, 0))
    if count:
        return NestingError(
            f"{name} stands where some threads of the block come and is for {count}: a "
            "CPU runs groups of threads one after the other, and none can wait for another",
            help="let what a group needs be done before it begins, in a branch of its own, where the "
            "compiler lets the threads wait",
            location=first_location(stmt),
        )
    return NestingError(
        f"{name} stands where some threads of the block come and others don't",
        help="all threads must come to a barrier or a tile operator: move it out of the branch or loop "
        "that depends on the thread or on a thread's values",
        location=first_location(stmt),
    )
