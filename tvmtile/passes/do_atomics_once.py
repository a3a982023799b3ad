"""DoAtomicsOnce: where no thread is named, an atomic outside of `T.Parallel` is the block's."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile.passes.kernels import Launch, prim_func_pass, with_kernels, with_launch_body
from tvmtile.passes.threads.variance import is_private
from tvmtile.rewriting import ScopedRewriter, contains, for_loop, seq
from tvmtile.scopes import SHARED_SCOPE
from tvmtile.tileop.registry import operator_of

__all__ = ["DoAtomicsOnce"]


@prim_func_pass("DoAtomicsOnce")
def DoAtomicsOnce(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Do an atomic operation once a block, in kernels that never ask which thread they are.

    Such a kernel says what a block does, so the number of its threads changes no result. The operation
    becomes an iteration of `T.Parallel`; a value that it has, and that a name or a variable takes,
    reaches the threads through a shared tile. A kernel that uses the index of a thread is written for
    threads, each of which does what stands there.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                T.tile.atomic(A[0], bx)
                place: T.let[T.int32] = T.tile.atomic(A[1], 1)
                B[place] = bx
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                for once in T.parallel(1):
                    T.tile.atomic(A[0], bx)
                former = T.alloc_buffer((1,), "int32", scope="shared.dyn")
                for once in T.parallel(1):
                    former[0] = T.tile.atomic(A[1], 1)
                place: T.let[T.int32] = former[0]
                B[place] = bx
    ```
    """
    del context

    def rewrite(kernel: tirx.For) -> tirx.For:
        launch = Launch(kernel)
        threads = {loop.loop_var for loop in launch.threads}
        if launch.num_threads == 1 or contains(launch.body, ir.Var, threads.__contains__):
            return kernel
        return with_launch_body(kernel, _Once().rewrite(launch.body))

    return with_kernels(func, rewrite)


class _Once(ScopedRewriter):
    def visit_for(self, loop: tirx.For) -> Any:
        return loop if loop.kind == tirx.ForKind.PARALLEL else super().visit_for(loop)

    def visit_evaluate(self, node: tirx.Evaluate) -> Any:
        return _once(node) if _is_atomic(node.value) else node

    def visit_store(self, node: tirx.BufferStore) -> Any:
        if is_private(node.buffer) and _is_atomic(node.value):
            taken, value = _taken(node.value)
            return seq([*taken, tirx.BufferStore(node.buffer, value, node.indices, span=node.span)])
        has_atomic = contains(node.value, ir.Call, _is_atomic)
        return _once(node) if has_atomic and not is_private(node.buffer) else node

    def visit_bind(self, bind: tirx.Bind) -> Any:
        if not _is_atomic(bind.value):
            return bind
        taken, value = _taken(bind.value)
        return seq([*taken, tirx.Bind(bind.var, value, bind.span)])


def _is_atomic(value: Any) -> bool:
    op = operator_of(value)
    return op is not None and op.is_atomic and not op.is_tile


def _once(stmt: tirx.Stmt) -> tirx.Stmt:
    return for_loop(tirx.Var("once", "int32"), 1, stmt, tirx.ForKind.PARALLEL)


def _taken(call: ir.Call) -> tuple[list[tirx.Stmt], Any]:
    """The statements that do an operation once, and its value, for every thread."""
    former = tirx.decl_buffer((1,), str(call.ty.dtype), name="former", scope=SHARED_SCOPE)
    done = _once(tirx.BufferStore(former, call, [0], span=call.span))
    return [tirx.AllocBuffer(former), done], tirx.BufferLoad(former, [0])
