"""LowerParallelOnCpu: elementwise loops become loops of the CPU."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmtile.passes.kernels import prim_func_pass
from tvmtile.rewriting import ScopedRewriter, with_children
from tvmtile.tileop.operands import constant

__all__ = ["LowerParallelOnCpu"]


@prim_func_pass("LowerParallelOnCpu")
def LowerParallelOnCpu(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Run the iterations of elementwise nests one after the other.

    LLVM vectorises such loops by itself; vector loops written by us were measured to be no faster. So
    a vector of the user's is an unrolled loop. The parallelism of a CPU is that of the blocks. A
    pipelined loop is a loop here.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 64), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for k in T.serial(4, annotations={"tvmtile.num_stages": 2}):
                for i in T.parallel(8):
                    for j in T.parallel(64):
                        A[k * 8 + i, j] = T.float32(1)
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 64), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for k in range(4):
                for i in range(8):
                    for j in range(64):
                        A[k * 8 + i, j] = T.float32(1)
    ```
    """
    del context
    return func.with_body(_Lower().rewrite(func.body))


class _Lower(ScopedRewriter):
    def visit_for(self, loop: tirx.For) -> Any:
        result = super().visit_for(loop)
        if result.kind == tirx.ForKind.PARALLEL:
            return with_children(result, kind=tirx.ForKind.SERIAL, annotations={})
        if result.kind == tirx.ForKind.VECTORIZED:
            is_known = constant(result.extent) is not None
            kind = tirx.ForKind.UNROLLED if is_known else tirx.ForKind.SERIAL
            return with_children(result, kind=kind, annotations={})
        if result.thread_binding is not None:
            return result
        # What asked for a pipeline has done its work: ordinary TIR has no notes of ours.
        notes = {key: note for key, note in result.annotations.items() if not _is_ours(key)}
        if len(notes) == len(result.annotations):
            return result
        return with_children(result, annotations=notes)


def _is_ours(annotation: str) -> bool:
    return annotation.startswith("tvmtile.")
