"""InlineSingleTripLoops: a loop of one iteration becomes its body."""

from __future__ import annotations

from tvm import tirx

from tvmtile.ir.kernels import leaves_loop, with_kernels
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter


@prim_func_pass("InlineSingleTripLoops", requires=(Property.NO_PARALLEL,))
def InlineSingleTripLoops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace serial loops of one iteration by their body.

    TVM unrolls such a loop, and its analyzer then knows two ranges of the variable, if the start of the
    loop is not constant; it takes that for a contradiction and fails.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((8, 32), "float32")):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                for k in range(bx, bx + 1):
                    A[k, tx] = T.float32(0)
    ```

    After
    -----
    ```
                A[bx, tx] = T.float32(0)
    ```
    """
    return with_kernels(func, lambda kernel: _Runner().rewrite(kernel))


class _Runner(ScopedRewriter):
    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        is_plain = loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
        runs_once = constant(self.analyzer.simplify(loop.extent)) == 1
        if not is_plain or not runs_once or leaves_loop(loop.body):
            return super().visit_for(loop)
        return self.mutate(substitute(loop.body, {loop.loop_var: loop.min}))
