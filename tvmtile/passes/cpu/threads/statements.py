"""What a statement is to the threads of a block: work of each or of the block, or a place to wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeGuard

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, indices_of, nodes_in
from tvmtile.analysis.effects import effects_of
from tvmtile.analysis.uniformity import ThreadVariance, VarianceOfGroups, check_alone
from tvmtile.errors import NestingError
from tvmtile.ir.annotations import ARRIVE_COUNT
from tvmtile.ir.barriers import arrivals, attributes_of, barrier_name, is_barrier, scope_of
from tvmtile.ir.kernels import Launch, is_parallel, leaves_loop, statements_of
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import contains, has_effect, substitute
from tvmtile.ir.scopes import is_of_block, is_private
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import WARP_SIZE, group_of_region
from tvmtile.passes.cpu.threads.accesses import Accesses

Guards: TypeAlias = tuple[tuple[ir.Var, bool], ...]
"""Bound conditions, and what each must be for a thread to take part."""


class Statements:
    """Answers for the statements of a kernel.

    `exchanged` are the buffers through which threads exchange values of registers.

    Attributes
    ----------
    variance : ThreadVariance
        What diverges between the threads of the group whose region is looked at, or of the block.
    first : int or None
        The first thread of that group; None of the block.
    """

    def __init__(
        self, launch: Launch, variance: ThreadVariance, exchanged: frozenset[ir.Var]
    ) -> None:
        self._launch = launch
        self._of_block = self.variance = variance
        self._of_groups = VarianceOfGroups(launch)
        self.first: int | None = None
        self._exchanged = exchanged
        self._bound: dict[ir.Var, ir.Expr] = {}

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

    def add_divergent(self, *variables: ir.Var) -> None:
        """Mark variables as divergent."""
        self._of_block.add(*variables)
        self._of_groups.add(*variables)

    def bind(self, stmt: tirx.Bind) -> None:
        """Take in what a name stands for that guards and bounds may use."""
        self._bound[stmt.var] = stmt.value

    def takes_part(self, stmt: tirx.Stmt, guards: Guards) -> bool:
        """Tell whether some thread reaches a block-level statement under guards.

        Raises
        ------
        NestingError
            If that depends on more than the index of the thread.
        """
        active = self._active(guards)
        if active is None:
            raise divergent(stmt)
        return active > 0

    def waits_for_active(self, barrier: tirx.Evaluate, guards: Guards) -> bool:
        """Tell whether a barrier under guards is one for the threads that pass them."""
        awaited = arrivals(barrier)
        if awaited is None:
            return False
        return scope_of(barrier) == "warp" or (awaited > 0 and awaited == self._active(guards))

    def _active(self, guards: Guards) -> int | None:
        """How many threads pass the guards; None if that depends on more than a thread's index."""
        if not guards:
            return self._launch.num_threads
        parts = [var if taken else tirx.Not(var) for var, taken in guards]
        test = self._inlined(tirx.all(*parts))
        if not self._is_of_threads(test):
            return None
        analyzer = Analyzer()
        tests = (substitute(test, thread) for thread in self._launch.all_threads())
        return sum(analyzer.can_prove(each) for each in tests)

    def _is_of_threads(self, value: ir.Expr) -> bool:
        """Tell whether a value depends on the thread's index only."""
        threads = {loop.loop_var for loop in self._launch.threads}
        return not contains(value, (ir.TensorLoad, ir.Call)) and not contains(
            value, ir.Var, lambda var: var not in threads
        )

    def _inlined(self, expression: ir.Expr) -> ir.Expr:
        while contains(expression, ir.Var, lambda var: var in self._bound):
            expression = substitute(expression, self._bound)
        return expression

    def is_per_thread(self, stmt: tirx.Stmt, guards: Guards) -> bool:
        """Tell whether each thread that guards let in does a statement for itself."""
        if self._differs(stmt) or _acts(stmt):
            return True
        return bool(guards) and not self._is_common(stmt, guards)

    def _differs(self, stmt: tirx.Stmt) -> bool:
        """Tell whether threads do different things, or each stores to an array of its own."""
        if self.variance.depends(stmt):
            return True
        in_group = self.variance is not self._of_block
        return in_group and any(map(self._of_block.depends, _stored_private(stmt, self._of_block)))

    def _is_common(self, stmt: tirx.Stmt, guards: Guards) -> bool:
        """Tell whether what a statement keeps is one for all threads that guards let in.

        That is a name, which work of the block under guards may use too, a variable of a group, or an
        element of a tile or a tensor: the one that comes first stores to it, if it is known who comes.
        """
        if isinstance(stmt, tirx.BufferStore) and is_private(buffer_of(stmt)):
            return not self._of_block.depends(buffer_of(stmt))
        is_kept = isinstance(stmt, tirx.Bind) or self._is_same_element(stmt)
        return is_kept and (self._active(guards) or 0) > 0

    def _is_same_element(self, stmt: tirx.Stmt) -> bool:
        """Tell whether all threads store the same to an element that is not one of each."""
        is_store = isinstance(stmt, tirx.BufferStore) and not is_private(buffer_of(stmt))
        return is_store and not self.is_per_thread(stmt, ())

    def is_block_level(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement is work that the threads of a block share."""
        if isinstance(stmt, tirx.Evaluate):
            op = operator_of(stmt)
            if op is None or not op.is_tile:
                return False
            if not self._differs(stmt):
                return True
            check_alone(op, stmt)
            return False
        if not is_parallel(stmt):
            return False
        if not self._differs(stmt):
            return True
        if _has_shared_effect(stmt):
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
        if isinstance(stmt, tirx.For | tirx.While) and self.variance.is_divergent(stmt):
            if self._ends_by_warps(stmt) and self._waits(stmt):
                return True
            self._refuse_waiting(stmt)
            return False
        return (
            leaves_loop(stmt)
            or self._waits(stmt)
            or self._conflicts_within(stmt)
            or self._stores_common_array(stmt)
        )

    def _ends_by_warps(self, loop: tirx.For | tirx.While) -> bool:
        """Tell whether threads leave a loop by its bounds alone, perhaps warp by warp.

        What only its warp waits for needs no more. Bounds that are known to differ in a warp are none.
        """
        if not self.variance.ends_divergently(loop):
            return False
        trip_count = self._inlined(loop.extent)
        if not self._is_of_threads(trip_count):
            return True
        analyzer = Analyzer()
        warps: dict[int, set[int]] = {}
        for thread in self._launch.all_threads():
            number = int(analyzer.simplify(substitute(self._launch.thread_index, thread)))
            count = analyzer.simplify(substitute(trip_count, thread))
            warps.setdefault(number // WARP_SIZE, set()).add(int(count))
        return all(len(counts) == 1 for counts in warps.values())

    def _stores_common_array(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement stores to what is kept once for all threads."""
        stored = _stored_private(stmt, self._of_block)
        return not all(map(self._of_block.depends, stored)) or contains(
            stmt, tirx.BufferStore, self._is_same_element
        )

    def _refuse_waiting(self, stmt: tirx.Stmt) -> None:
        with self.within(stmt):
            for child in statements_of(stmt):
                if is_barrier(child):
                    raise divergent(child)
                if self.is_block_level(child):
                    raise divergent(child)
                if self._stores_exchanged(child):
                    raise divergent(child, "an exchange of values between threads")
                self._refuse_waiting(child)

    def _waits(self, stmt: tirx.Stmt) -> bool:
        """Tell whether the threads wait for each other in a statement."""
        if is_barrier(stmt) or self.is_block_level(stmt) or self._stores_exchanged(stmt):
            return True
        with self.within(stmt):
            return any(map(self._waits, statements_of(stmt)))

    def _stores_exchanged(self, stmt: tirx.Stmt) -> bool:
        return isinstance(stmt, tirx.BufferStore) and buffer_of(stmt) in self._exchanged

    def overtakes(self, stmt: tirx.Stmt) -> TypeGuard[tirx.BufferStore]:
        """Tell whether a thread may overwrite what another one reads in the same statement."""
        if not isinstance(stmt, tirx.BufferStore) or not self.variance.depends(stmt):
            return False
        return is_of_block(buffer_of(stmt)) and contains(
            [stmt.value, *indices_of(stmt)],
            ir.TensorLoad,
            lambda load: (
                buffer_of(load).same_as(buffer_of(stmt))
                and not structural_equal(indices_of(load), indices_of(stmt))
            ),
        )

    def _conflicts_within(self, stmt: tirx.Stmt) -> bool:
        """Tell whether all threads must finish a part of a statement before another part."""
        if self.overtakes(stmt):
            return True
        loop = isinstance(stmt, tirx.For | tirx.While)
        if loop and Accesses(self.variance).add(stmt).conflicts_with_itself():
            return True
        children = statements_of(stmt)
        parts = [stmt.condition, *children] if isinstance(stmt, tirx.IfThenElse) else children
        before = Accesses(self.variance)
        for part in parts:
            if before.conflicts(Accesses(self.variance).add(part)):
                return True
            before.add(part)
        with self.within(stmt):
            return any(map(self._conflicts_within, children))


def may_change(value: ir.Expr) -> bool:
    """Tell whether recomputing a value later may give another result."""
    return has_effect(value) or contains(value, ir.TensorLoad)


def _acts(stmt: tirx.Stmt) -> bool:
    """Tell whether a statement has a side effect in every thread, though all do the same."""
    if is_parallel(stmt):
        return False
    if isinstance(stmt, tirx.Evaluate):
        op = operator_of(stmt)
        return has_effect(stmt.value) and (op is None or not (op.is_tile or op.once))
    if isinstance(stmt, tirx.Bind | tirx.BufferStore):
        return has_effect(stmt.value)
    return any(_acts(child) for child in statements_of(stmt))


def _has_shared_effect(stmt: tirx.Stmt) -> bool:
    """Tell whether other threads may see what a statement does."""
    return contains(stmt, tirx.BufferStore, lambda store: not is_private(buffer_of(store))) or (
        contains(stmt, tirx.Evaluate, lambda node: has_effect(node.value))
    )


def _stored_private(stmt: tirx.Stmt, variance: ThreadVariance) -> set[ir.Var]:
    """The private arrays that a statement stores and does not declare itself."""
    declared = {buffer_of(each) for each in nodes_in(stmt, tirx.AllocBuffer)}
    stored = {
        variance.root(access.buffer)
        for access in effects_of(stmt)
        if access.writes and is_private(access.buffer)
    }
    return stored - declared


def divergent(stmt: tirx.Stmt, name: str = "") -> NestingError:
    """The error that not all threads come to a statement, which is called by a name of its own."""
    name = name or _name_of(stmt)
    count = constant(attributes_of(stmt).get(ARRIVE_COUNT, 0)) if is_barrier(stmt) else None
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


def _name_of(stmt: tirx.Stmt) -> str:
    if is_barrier(stmt):
        return f"T.{barrier_name(stmt)}"
    op = operator_of(stmt)
    return "T.Parallel" if op is None else f"T.{op.name}"
