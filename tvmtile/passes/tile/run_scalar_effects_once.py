"""RunScalarEffectsOnce: scalar work of kernels that name no thread is done once a block."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Replacement, buffer_of, indices_of
from tvmtile.analysis.kernel_info import KernelInfo, info_of
from tvmtile.ir.barriers import is_barrier_of_blocks
from tvmtile.ir.kernels import is_parallel, with_kernels, with_launch_body
from tvmtile.ir.operands import is_scalar
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, for_loop, replace_loop, seq
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import SHARED_SCOPE, is_global, is_private


@prim_func_pass("RunScalarEffectsOnce")
def RunScalarEffectsOnce(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Do atomic operations, and reads of what is written, once a block, where no thread is named.

    A kernel that never asks which thread it is says what a block does, so the number of its threads
    changes no result. An atomic operation becomes an iteration of `T.Parallel`. Where a name, a
    variable, a branch or a loop takes its value, or one that is read from a tensor that the kernel
    writes, that reaches the threads through a shared tile: other blocks may write the tensor while
    threads read it, and all threads of a block go the same way. A kernel that uses the index of a
    thread is written for threads, each of which does what stands there.
    """

    def rewrite(kernel: tirx.For) -> tirx.For:
        info = info_of(kernel)
        if info.launch.num_threads == 1 or info.names_threads:
            return kernel
        return with_launch_body(kernel, _Once(info).rewrite(info.launch.body))

    return with_kernels(func, rewrite)


class _Once(ScopedRewriter):
    """Finds what a block does once."""

    def __init__(self, info: KernelInfo) -> None:
        super().__init__()
        self._info = info

    def others(self) -> list[Replacement]:
        return [(tirx.While, self.visit_while)]

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_parallel(loop):
            return loop
        low_taken, low = self._decided_once(loop.min, loop)
        extent_taken, extent = self._decided_once(loop.extent, loop)
        bounded = replace_loop(loop, min=low, extent=extent)
        return seq([*low_taken, *extent_taken, super().visit_for(bounded)])

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        taken, condition = self._decided_once(branch.condition, branch)
        decided = tirx.IfThenElse(condition, branch.then_case, branch.else_case, branch.span)
        return seq([*taken, super().visit_if(decided)])

    def visit_while(self, loop: tirx.While) -> tirx.Stmt:
        taken, condition = self._decided_once(loop.condition, loop)
        body = self.mutate(loop.body)
        if not taken:
            return tirx.While(loop.condition, body, loop.span)
        leave = tirx.IfThenElse(tirx.Not(condition), tirx.Evaluate(tirx.break_loop()), None)
        return tirx.While(tirx.const(True, "bool"), seq([*taken, leave, body]), loop.span)

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        return _once(node) if _is_atomic(node.value) else node

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        if is_private(buffer_of(node)):
            taken, value = self._once_read(node.value)
            return seq(
                [*taken, tirx.BufferStore(buffer_of(node), value, indices_of(node), span=node.span)]
            )
        return _once(node) if contains(node.value, ir.Call, _is_atomic) else node

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        taken, value = self._once_read(bind.value)
        return seq([*taken, tirx.Bind(bind.var, value, bind.span)])

    def _decided_once(self, value: ir.Expr, stmt: tirx.Stmt) -> tuple[list[tirx.Stmt], Any]:
        """The value that decides a loop or a branch, taken once.

        Where blocks wait for each other in it, they agree: nobody writes what they all decide by.
        """
        if contains(stmt, tirx.Evaluate, is_barrier_of_blocks):
            return [], value
        return self._once_read(value)

    def _once_read(self, value: ir.Expr) -> tuple[list[tirx.Stmt], Any]:
        """The statements that take a value once, and the value, for every thread."""
        if _is_atomic(value):
            return _taken(value, "former")
        if not is_scalar(value) or not contains(value, ir.TensorLoad, self._may_change):
            return [], value
        if str(value.ty.dtype) != "bool":
            return _taken(value, "taken")
        taken, number = _taken(tirx.Cast("int32", value), "taken")
        return taken, number != 0

    def _may_change(self, load: ir.TensorLoad) -> bool:
        """Tell whether an element is of a tensor that the kernel writes."""
        tensor = self._info.root(buffer_of(load))
        return is_global(tensor) and tensor in self._info.written


def _is_atomic(value: ir.Expr) -> bool:
    op = operator_of(value)
    if op is None or op.is_tile:
        return False
    effects = op.effects()
    at_mbarrier = (effects.arrives_at, effects.waits_at, effects.completes_on)
    return effects.is_atomic and all(mbarrier is None for mbarrier in at_mbarrier)


def _once(stmt: tirx.Stmt) -> tirx.Stmt:
    return for_loop(tirx.Var("once", "int32"), 1, stmt, tirx.ForKind.PARALLEL)


def _taken(value: ir.Expr, name: str) -> tuple[list[tirx.Stmt], Any]:
    held = tirx.decl_buffer((1,), str(value.ty.dtype), name=name, scope=SHARED_SCOPE)
    done = _once(tirx.BufferStore(held, value, [0], span=getattr(value, "span", None)))
    return [tirx.AllocBuffer(held), done], tirx.BufferLoad(held, [0])
