"""FindGroups: branches that let in whole warps are the regions of groups of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, tirx

from tvmtile._tvm import Mutator, mapped, mutated
from tvmtile.analysis.active_threads import ActiveThreads, Condition, Threads
from tvmtile.analysis.kernel_info import info_of
from tvmtile.analysis.uniformity import ThreadVariance, VarianceOfGroups, check_alone
from tvmtile.errors import NestingError
from tvmtile.ir.annotations import ARRIVE_COUNT, BARRIER_ID, OWN_BARRIERS
from tvmtile.ir.barriers import (
    attributes_of,
    barrier_name,
    is_barrier,
    is_barrier_of_blocks,
    scope_of,
)
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import Launch, is_parallel, with_kernels, with_launch_body
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import WARP_SIZE, Group, group_region


@prim_func_pass(
    "FindGroups", requires=(Property.EXITS_ARE_BRANCHES,), establishes=(Property.GROUPS,)
)
def FindGroups(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make regions of groups of threads of the branches on the index of a thread.

    A case of a branch that lets in whole warps which follow each other, and not all of those that come
    to the branch, belongs to these threads: tile operators and `T.Parallel` in it are their work, and
    `T.sync_threads()` is a barrier of theirs; of the whole block where `tl.disable_thread_storage_sync`
    says that the author places the barriers. The
    condition is evaluated for every thread, so it may have any form; what it says besides, the same for
    all threads, becomes a branch inside.

    Raises
    ------
    NestingError
        If a tile operator or a `T.Parallel` stands where other threads come than whole warps, or where
        that is not known before the kernel runs.
    """
    own_barriers = func.attrs is not None and bool(func.attrs.get(OWN_BARRIERS, False))

    def find(kernel: tirx.For) -> tirx.For:
        launch = Launch(kernel)
        if launch.num_threads == 1 or not info_of(kernel).names_threads:
            return kernel  # RunScalarEffectsOnce has seen to it that all threads go the same way
        found = with_launch_body(kernel, _GroupFinder(launch).regions())
        return with_launch_body(found, _Workers(Launch(found), own_barriers=own_barriers).checked())

    return with_kernels(func, find)


_OF_BLOCK = {"tirx.tvm_thread_allreduce": "T.syncthreads_count, _and or _or"}
"""Functions that all threads of a block do together, whatever their groups."""


class _GroupFinder:
    """Finds the regions of a kernel.

    What conditions say besides the index of a thread is left open: who comes is who may come.
    """

    def __init__(self, launch: Launch) -> None:
        self._body = launch.body
        self._active = ActiveThreads(launch)

    def regions(self) -> tirx.Stmt:
        return mutated(self._body, (tirx.IfThenElse, self._branch), (tirx.Bind, self._active.noted))

    def _branch(self, branch: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        condition, mask = Condition(branch.condition, self._active), self._active.mask
        if not condition.on_threads or mask is None:
            return mutator.default_mutate(branch)
        taken, test = mask & condition.taken, branch.condition
        then_case, else_case = branch.then_case, branch.else_case
        if condition.others and else_case is None and _is_part(taken, mask):
            test, inner = tirx.all(*condition.on_threads), tirx.all(*condition.others)
            then_case = tirx.IfThenElse(inner, then_case, None, branch.span)
        elif condition.others:
            with self._active.restricted_to(taken):
                then_case = mutator.mutate(then_case)
            otherwise = None if else_case is None else mutator.mutate(else_case)
            return tirx.IfThenElse(test, then_case, otherwise, branch.span)
        then_case = self._case(then_case, taken, mutator)
        if else_case is not None:
            else_case = self._case(else_case, mask & ~taken, mutator)
        if (taken == mask).all():
            return then_case
        return tirx.IfThenElse(test, then_case, else_case, branch.span)

    def _case(self, body: tirx.Stmt, threads: Threads, mutator: Mutator) -> tirx.Stmt:
        is_part = _is_part(threads, self._active.mask)
        with self._active.restricted_to(threads):
            body = mutator.mutate(body)
        group = _group_of(threads)
        return group_region(group, body) if group is not None and is_part else body


def _is_part(threads: Threads, mask: Threads | None) -> bool:
    """Tell whether threads are a group, and not all that come."""
    return _group_of(threads) is not None and not (threads == mask).all()


class _Workers:
    """Looks at who comes to the work that threads share, in a kernel with its regions."""

    def __init__(self, launch: Launch, *, own_barriers: bool) -> None:
        self._body = launch.body
        self._whole = {BARRIER_ID: 0, ARRIVE_COUNT: launch.num_threads} if own_barriers else {}
        self._active = ActiveThreads(launch)
        self._variance = self._active.variance
        self._of_groups = VarianceOfGroups(launch)

    def checked(self) -> tirx.Stmt:
        return mutated(
            self._body,
            (tirx.IfThenElse, self._branch),
            ((tirx.For, tirx.While), self._loop),
            (tirx.Bind, self._active.noted),
            (tirx.Evaluate, self._evaluate),
        )

    @property
    def _between_active(self) -> ThreadVariance:
        """The variance between the threads that come, where they are a group."""
        mask = self._active.mask
        group = None if mask is None or mask.all() else _group_of(mask)
        return self._variance if group is None else self._of_groups.between(group)

    def _branch(self, branch: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        if not self._between_active.may_diverge(branch.condition):
            return mutator.default_mutate(branch)
        condition = Condition(branch.condition, self._active)
        with self._active.entering(condition, holds=True):
            then_case = mutator.mutate(branch.then_case)
        else_case = branch.else_case
        if else_case is not None:
            with self._active.entering(condition, holds=False):
                else_case = mutator.mutate(else_case)
        return tirx.IfThenElse(branch.condition, then_case, else_case, branch.span)

    def _loop(self, loop: tirx.For | tirx.While, mutator: Mutator) -> tirx.Stmt:
        if is_parallel(loop):
            is_shared = not self._variance.depends(loop)
            return self._shared_work(loop, "T.Parallel") if is_shared else loop
        if not self._between_active.is_divergent(loop):
            return mutator.default_mutate(loop)
        with self._active.restricted_to(None):
            return mutator.default_mutate(loop)

    def _evaluate(self, node: tirx.Evaluate, _: Mutator) -> tirx.Stmt:
        if is_barrier_of_blocks(node):
            self._need_all(node, f"T.{barrier_name(node)}")
        elif op_name(node.value) in _OF_BLOCK:
            self._need_all(node, _OF_BLOCK[op_name(node.value)])
        if is_barrier(node):
            return self._barrier(node)
        op = operator_of(node)
        if op is None or not op.is_tile or op.by == "thread":
            return node
        if self._variance.depends(node.value):
            node = self._of_group(node)
            if self._depends_on_thread(node):
                check_alone(op, node)
                return node
        return self._shared_work(node, f"T.{op.name}")

    def _of_group(self, node: tirx.Evaluate) -> tirx.Evaluate:
        """An operator with what is the same for all threads of a group, as `tx // 32`, as numbers."""
        group = _group_of(self._active.mask)
        if group is None:
            return node

        def known(expression: Any) -> Any:
            values = self._active.value_of(expression)
            if values is None or np.ptp(values[self._active.mask]) != 0:
                return expression
            return tirx.const(int(values[group.first]), expression.ty.dtype)

        return tirx.Evaluate(
            mapped(node.value, ((ir.Var, tirx.FloorDiv, tirx.FloorMod), known)), node.span
        )

    def _depends_on_thread(self, node: tirx.Evaluate) -> bool:
        if not self._variance.depends(node.value):
            return False
        group = _group_of(self._active.mask)
        return group is None or self._of_groups.between(group).depends(node.value)

    def _need_all(self, node: tirx.Evaluate, name: str) -> None:
        if self._active.mask is None or not self._active.mask.all():
            raise NestingError(
                f"{name} stands where some threads of the block come and others don't",
                help="all threads of the block have to come: move it out of the branch or loop that "
                "depends on the thread",
                location=first_location(node),
            )

    def _barrier(self, node: tirx.Evaluate) -> tirx.Stmt:
        """A barrier for all threads that come, of a group, or of the block: how many these are."""
        mask = self._active.mask
        group = None if mask is None or mask.all() else _group_of(mask)
        attrs = attributes_of(node)
        if group is None or ARRIVE_COUNT in attrs or scope_of(node) != "shared":
            return node
        call: ir.Call = node.value
        attrs |= self._whole or {ARRIVE_COUNT: group.count}
        counted = ir.Call(call.op, call.args, attrs, span=call.span, ret_ty=call.ty)
        return tirx.Evaluate(counted, node.span)

    def _shared_work(self, stmt: tirx.Stmt, name: str) -> tirx.Stmt:
        mask = self._active.mask
        if mask is None:
            raise NestingError(
                f"{name} stands where some threads of the block come and others don't",
                help="which ones has to be known before the kernel runs, and they have to be whole "
                "warps: make it a condition on T.get_thread_binding(), or move it out of the branch or "
                "loop that depends on a thread's values",
                location=first_location(stmt),
            )
        if not mask.any():
            return seq([])
        if not mask.all() and _group_of(mask) is None:
            raise NestingError(
                f"{name} stands where {_listed(mask)} come, which are no whole warps that "
                "follow each other",
                help=f"the work is shared out over warps of {WARP_SIZE} threads: let in a range of "
                f"them, such as `if tx < {WARP_SIZE}:`, or move it out of the branch",
                location=first_location(stmt),
            )
        return stmt


def _group_of(threads: Threads | None) -> Group | None:
    """The group that threads are; None where they are no whole warps that follow each other."""
    if threads is None or not threads.any():
        return None
    numbers = np.flatnonzero(threads)
    group = Group(int(numbers[0]), len(numbers))
    is_range = int(numbers[-1]) - group.first + 1 == group.count
    is_whole = group.first % WARP_SIZE == 0 and group.count % WARP_SIZE == 0
    return group if is_range and is_whole else None


def _listed(threads: Threads) -> str:
    """Threads as a message names them."""
    numbers = np.flatnonzero(threads)
    gaps = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = [0, *(gaps + 1)], [*gaps, len(numbers) - 1]
    pairs = [(int(numbers[a]), int(numbers[b])) for a, b in zip(firsts, lasts, strict=True)]
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in pairs[:3]]
    return f"threads {', '.join(shown)}{', ...' if len(pairs) > 3 else ''} of {len(threads)}"
