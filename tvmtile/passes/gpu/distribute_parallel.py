"""DistributeParallel: elementwise work is distributed over the threads of a block."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tvm import tirx

from tvmtile._tvm import Replacement, buffer_of
from tvmtile.analysis.active_threads import ActiveThreads, Condition
from tvmtile.analysis.nests import Nest
from tvmtile.ir.asynchronous import token_of_region
from tvmtile.ir.kernels import Launch, is_kernel, is_parallel, with_body
from tvmtile.ir.operands import constant, origin_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import replace_loop
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_in_registers
from tvmtile.ir.threads import GroupRewriter
from tvmtile.passes.gpu.parallel_iterations import ThreadIterations
from tvmtile.passes.gpu.vectorize_accesses import vectorized


@prim_func_pass(
    "DistributeParallel",
    requires=(
        Property.NO_TILE_OPERATORS,
        Property.IN_BOUNDS,
        Property.FRAGMENT_LAYOUTS,
        Property.SHARED_LAYOUTS,
    ),
    establishes=(Property.NO_PARALLEL,),
)
def DistributeParallel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Distribute the iterations of `T.Parallel` over the threads.

    A nest that touches fragments runs where their elements lie, but for what every thread holds. Any
    other is spread so that
    neighbouring threads access neighbours in memory, 16 bytes each where strides allow. A thread's own
    iterations become unrolled loops. What has a token is copied asynchronously, where elements
    are moved as they are and four bytes or more lie side by side. What a block does once (a store
    outside of nests that is the same for all threads, an iteration that several threads would repeat)
    is done by one thread.
    """
    return with_body(func, _Vectors().rewrite(_Distribute().rewrite(func.body)))


class _Vectors(ScopedRewriter):
    """The user's vectors, of any dtype and number of lanes: moves of words, and unrolled loops."""

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        result = self.descend_loop(loop)
        if result.kind != tirx.ForKind.VECTORIZED:
            return result
        extent = constant(result.extent)
        if extent is None or constant(result.min) != 0:
            return replace_loop(result, kind=tirx.ForKind.SERIAL)
        return vectorized(result.loop_var, extent, result.body, self.analyzer)


class _Distribute(GroupRewriter):
    def __init__(self) -> None:
        super().__init__()
        self._active: ActiveThreads | None = None
        self._token: str | None = None

    def others(self) -> list[Replacement]:
        return [(tirx.While, self.visit_while)]

    def visit_attribute(self, node: tirx.AttrStmt) -> tirx.Stmt:
        token = token_of_region(node)
        if token is None:
            return super().visit_attribute(node)
        outer, self._token = self._token, token
        body = self.mutate(node.body)
        self._token = outer
        return body

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_kernel(loop):
            self._active = ActiveThreads(Launch(loop))
        if self.launch is not None and self.group is not None and is_parallel(loop):
            thread = self.group.index_of(self.launch.thread_index)
            count = self.group.count
            iterations = ThreadIterations(Nest(loop), thread, count, self.analyzer, self._token)
            return iterations.statement()
        with self._going_through(loop):
            return super().visit_for(loop)

    # Who comes -------------------------------------------------------------------------------------

    def visit_while(self, loop: tirx.While) -> tirx.Stmt:
        with self._going_through(loop):
            return self.descend(loop)

    def _going_through(self, loop: tirx.For | tirx.While) -> AbstractContextManager[None]:
        if self._active is None or not self._active.variance.is_divergent(loop):
            return nullcontext()
        return self._active.restricted_to(None)

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        if self._active is not None:
            self._active.note(bind)
        return super().visit_bind(bind)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        if self._active is None or not self._active.variance.may_diverge(branch.condition):
            return super().visit_if(branch)
        condition = Condition(branch.condition, self._active)
        with self.assuming(branch.condition), self._active.entering(condition, holds=True):
            then_case = self.mutate(branch.then_case)
        else_case = branch.else_case
        if else_case is not None:
            negated = tirx.Not(branch.condition)
            with self.assuming(negated), self._active.entering(condition, holds=False):
                else_case = self.mutate(else_case)
        return tirx.IfThenElse(branch.condition, then_case, else_case, branch.span)

    # Statements outside of nests: what is the same for all threads is done by one --------------

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        if is_in_registers(buffer_of(node)):
            return node
        return self._once(node)

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None or op.by != "block":
            return node
        # What it writes is a place: its name says which one, its value does not matter.
        written = op.writes()
        operands = [arg for arg in node.value.args if not any(arg.same_as(w) for w in written)]
        indices = [index for place in written for index in origin_of(place)]
        return self._once(node, [*operands, *indices])

    def _once(self, statement: tirx.Stmt, operands: list[Any] | None = None) -> tirx.Stmt:
        """A statement that is the same for all threads that come, done by the first of them.

        Where nobody knows which come before the kernel runs, all that do come do it.
        """
        if self.launch is None or self._active is None or self.launch.num_threads == 1:
            return statement
        if any(map(self._active.variance.depends, operands or [statement])):
            return statement
        mask = self._active.mask
        if mask is None or not mask.any():
            return statement
        return tirx.IfThenElse(self.launch.thread_index == int(mask.argmax()), statement, None)
