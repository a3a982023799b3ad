"""RollLoopsWithExits: a loop that `break` or `continue` leaves stays a loop."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvmtile.passes.kernels import leaves_loop, prim_func_pass
from tvmtile.rewriting import with_children

__all__ = ["RollLoopsWithExits"]

_HINTS = (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)


@prim_func_pass("RollLoopsWithExits")
def RollLoopsWithExits(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Turn unrolled and vectorised loops that are left by `break` or `continue` into serial ones.

    TVM would copy their bodies, in which there is no loop to leave any more. Unrolling and vectorising
    are hints; other loops keep them.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "int32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in T.unroll(32):
                if A[i] == 0:
                    break
                for j in T.unroll(4):
                    A[i] = A[i] * A[i]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "int32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(32):
                if A[i] == 0:
                    break
                for j in T.unroll(4):
                    A[i] = A[i] * A[i]
    ```
    """
    del context

    def roll(loop: tirx.For) -> tirx.For:
        if loop.kind not in _HINTS or not leaves_loop(loop.body):
            return loop
        return with_children(loop, kind=tirx.ForKind.SERIAL, annotations={})

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, roll)))
