"""FindGroups: branches that let in whole warps are the regions of groups of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tvm import ir, tirx

from tvmtile._tvm import mutated
from tvmtile.analysis.conflicts.expressions import conjuncts
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.errors import NestingError
from tvmtile.ir.annotations import ARRIVE_COUNT
from tvmtile.ir.kernels import Launch, is_barrier, is_parallel, with_kernels, with_launch_body
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, seq
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import WARP_SIZE, Group, group_region

__all__ = ["FindGroups"]

_Threads: TypeAlias = NDArray[np.bool_]
"""Of each thread of a block, whether it comes."""


@prim_func_pass(
    "FindGroups", requires=(Property.EXITS_ARE_BRANCHES,), establishes=(Property.GROUPS,)
)
def FindGroups(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Make regions of groups of threads of the branches on the index of a thread.

    A case of a branch that lets in whole warps which follow each other, and not all of those that come
    to the branch, belongs to these threads: tile operators and `T.Parallel` in it are their work, and
    `T.sync_threads()` is a barrier of theirs. The
    condition is evaluated for every thread, so it may have any form; what it says besides, the same for
    all threads, becomes a branch inside.

    Raises
    ------
    NestingError
        If a tile operator or a `T.Parallel` stands where other threads come than whole warps, or where
        that is not known before the kernel runs.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float32"), n: T.int32):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                x = T.alloc_buffer((32, 32), "float32", scope="shared.dyn")
                y = T.alloc_buffer((32, 32), "float32", scope="shared.dyn")
                if tx // 128 == 0 and n > 1:
                    T.tile.copy(A[0:32, 0:32], x[0:32, 0:32])
                if tx >= 128:
                    T.tile.copy(A[0:32, 0:32], y[0:32, 0:32])
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float32"), n: T.int32):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                x = T.alloc_buffer((32, 32), "float32", scope="shared.dyn")
                y = T.alloc_buffer((32, 32), "float32", scope="shared.dyn")
                if tx // 128 == 0:
                    T.attr(0, "tvmtile.group", 128)
                    if n > 1:
                        T.tile.copy(A[0:32, 0:32], x[0:32, 0:32])
                if tx >= 128:
                    T.attr(128, "tvmtile.group", 128)
                    T.tile.copy(A[0:32, 0:32], y[0:32, 0:32])
    ```
    """
    del context

    def find(kernel: tirx.For) -> tirx.For:
        launch = Launch(kernel)
        threads = {loop.loop_var for loop in launch.threads}
        if launch.num_threads == 1 or not contains(launch.body, ir.Var, threads.__contains__):
            return kernel  # DoScalarsOnce has seen to it that all threads go the same way
        return with_launch_body(kernel, _Finder(launch).regions())

    return with_kernels(func, find)


class _Finder:
    """Follows which threads come to the statements of a kernel."""

    def __init__(self, launch: Launch) -> None:
        self._body = launch.body
        self._variance = ThreadVariance(launch.body, [loop.loop_var for loop in launch.threads])
        self._values: dict[ir.Var, Any] = launch.indices_of(np.arange(launch.num_threads))
        self._coming: _Threads | None = np.ones(launch.num_threads, bool)

    def regions(self) -> tirx.Stmt:
        return mutated(
            self._body,
            (tirx.IfThenElse, self._branch),
            ((tirx.For, tirx.While), self._loop),
            (tirx.Bind, self._bind),
            (tirx.Evaluate, self._evaluate),
        )

    @contextmanager
    def _only(self, threads: _Threads | None) -> Iterator[None]:
        outer, self._coming = self._coming, threads
        yield
        self._coming = outer

    # Who comes where -----------------------------------------------------------------------------

    def _branch(self, branch: tirx.IfThenElse, mutator: Any) -> tirx.Stmt:
        if not self._variance.may_diverge(branch.condition):
            return mutator.default_mutate(branch)
        on_threads: list[Any] = []
        others: list[Any] = []
        for part in conjuncts(branch.condition):
            (others if self._of_threads(part) is None else on_threads).append(part)
        is_mixed = others and branch.else_case is not None
        if self._coming is None or is_mixed or any(map(self._variance.may_diverge, others)):
            with self._only(None):
                return mutator.default_mutate(branch)
        condition, then_case = tirx.all(*on_threads), branch.then_case
        taken = np.broadcast_to(self._of_threads(condition), self._coming.shape)
        if not others:
            condition = branch.condition
        elif _group_of(self._coming & taken) is None:
            with self._only(self._coming & taken):
                return mutator.default_mutate(branch)
        else:
            then_case = tirx.IfThenElse(tirx.all(*others), then_case, None, branch.span)
        cases = [self._case(then_case, taken, mutator)]
        if branch.else_case is not None:
            cases.append(self._case(branch.else_case, ~taken, mutator))
        if taken[self._coming].all():
            return cases[0]
        else_case = cases[1] if len(cases) > 1 else None
        return tirx.IfThenElse(condition, cases[0], else_case, branch.span)

    def _case(self, body: tirx.Stmt, taken: _Threads, mutator: Any) -> tirx.Stmt:
        assert self._coming is not None
        coming = self._coming & taken
        with self._only(coming):
            body = mutator.mutate(body)
        group = _group_of(coming)
        return body if group is None or coming.all() else group_region(group, body)

    def _loop(self, loop: tirx.For | tirx.While, mutator: Any) -> tirx.Stmt:
        if is_parallel(loop):
            if not self._variance.depends(loop):
                return self._shared_work(loop, "T.Parallel")
            return loop
        if not self._variance.is_divergent(loop):
            return mutator.default_mutate(loop)
        with self._only(None):
            return mutator.default_mutate(loop)

    def _bind(self, bind: tirx.Bind, mutator: Any) -> tirx.Stmt:
        value = self._of_threads(bind.value)
        if value is not None:
            self._values[bind.var] = value
        return mutator.default_mutate(bind)

    def _of_threads(self, expression: Any) -> Any:
        """The value of an expression in each thread; None if it is made from more than its index."""
        if not self._variance.depends(expression):
            return None
        try:
            value = evaluate(expression, self._values, lambda _: False, 0)
        except NotSeparable:
            return None
        return None if value.term is not None else np.asarray(value.numbers)

    # Work that is shared out ---------------------------------------------------------------------

    def _evaluate(self, node: tirx.Evaluate, mutator: Any) -> tirx.Stmt:
        del mutator
        if is_barrier(node):
            return self._barrier(node)
        op = operator_of(node.value)
        if op is None or not op.is_tile or self._variance.depends(node.value):
            return node
        return self._shared_work(node, f"T.{op.name}")

    def _barrier(self, node: tirx.Evaluate) -> tirx.Stmt:
        """A barrier for all threads that come, of a group: it says how many these are."""
        group = None if self._coming is None or self._coming.all() else _group_of(self._coming)
        attrs = {} if node.value.attrs is None else dict(node.value.attrs.items())
        if group is None or ARRIVE_COUNT in attrs or str(node.value.args[0].value) != "shared":
            return node
        call: ir.Call = node.value
        attrs[ARRIVE_COUNT] = group.count
        counted = ir.Call(call.op, call.args, attrs, span=call.span, ret_ty=call.ty)
        return tirx.Evaluate(counted, node.span)

    def _shared_work(self, stmt: tirx.Stmt, name: str) -> tirx.Stmt:
        if self._coming is None:
            raise NestingError(
                f"{name} stands where some threads of the block come and others don't",
                help="which ones has to be known before the kernel runs, and they have to be whole "
                "warps: make it a condition on T.get_thread_binding(), or move it out of the branch or "
                "loop that depends on a thread's values",
                location=first_location(stmt),
            )
        if not self._coming.any():
            return seq([])
        if not self._coming.all() and _group_of(self._coming) is None:
            raise NestingError(
                f"{name} stands where {_listed(self._coming)} come, which are no whole warps that "
                "follow each other",
                help=f"the work is shared out over warps of {WARP_SIZE} threads: let in a range of "
                f"them, such as `if tx < {WARP_SIZE}:`, or move it out of the branch",
                location=first_location(stmt),
            )
        return stmt


def _group_of(threads: _Threads) -> Group | None:
    """The group that threads are; None where they are no whole warps that follow each other."""
    numbers = np.flatnonzero(threads)
    if not len(numbers):
        return None
    group = Group(int(numbers[0]), len(numbers))
    is_range = int(numbers[-1]) - group.first + 1 == group.count
    is_whole = group.first % WARP_SIZE == 0 and group.count % WARP_SIZE == 0
    return group if is_range and is_whole else None


def _listed(threads: _Threads) -> str:
    """Threads as a message names them."""
    numbers = np.flatnonzero(threads)
    gaps = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = [0, *(gaps + 1)], [*gaps, len(numbers) - 1]
    pairs = [(int(numbers[a]), int(numbers[b])) for a, b in zip(firsts, lasts, strict=True)]
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in pairs[:3]]
    return f"threads {', '.join(shown)}{', ...' if len(pairs) > 3 else ''} of {len(threads)}"
