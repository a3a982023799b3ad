"""LowerLoopExitsOnCpu: `break` and `continue` as LLVM's code generator knows them."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvmtile.passes.kernels import leaves_loop, prim_func_pass
from tvmtile.rewriting import with_children

__all__ = ["LowerLoopExitsOnCpu"]


@prim_func_pass("LowerLoopExitsOnCpu")
def LowerLoopExitsOnCpu(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Turn the statements that leave a loop into calls, which are all that LLVM's generator takes.

    A loop that is left is not unrolled: TVM would copy its body, and the call would leave the loop
    around it.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "int32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in T.unroll(32):
                if A[i] < 0:
                    continue
                if A[i] == 0:
                    break
                A[i] = 0
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "int32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(32):
                if A[i] < 0:
                    T.continue_loop()
                if A[i] == 0:
                    T.break_loop()
                A[i] = 0
    ```
    """
    del context

    def visit_for(loop: tirx.For, mutator: Any) -> tirx.For:
        left = loop.kind == tirx.ForKind.UNROLLED and leaves_loop(loop.body)
        result = mutator.default_mutate(loop)
        return with_children(result, kind=tirx.ForKind.SERIAL) if left else result

    return func.with_body(
        tvm_ffi.structural_mutate(
            func.body,
            [
                (tirx.For, visit_for),
                (tirx.Break, lambda stmt, _: tirx.Evaluate(tirx.break_loop(), stmt.span)),
                (tirx.Continue, lambda stmt, _: tirx.Evaluate(tirx.continue_loop(), stmt.span)),
            ],
        )
    )
