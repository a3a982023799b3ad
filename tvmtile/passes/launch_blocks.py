"""LaunchBlocksOnCpu: the grid of a kernel becomes one parallel loop."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmtile.passes.insert_index_checks import CHECK_INDICES
from tvmtile.passes.kernels import Launch, prim_func_pass, with_kernels
from tvmtile.rewriting import for_loop, seq

__all__ = ["LaunchBlocksOnCpu"]


@prim_func_pass("LaunchBlocksOnCpu")
def LaunchBlocksOnCpu(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Run the blocks of a kernel as the iterations of one parallel loop, `blockIdx.x` fastest.

    TVM's thread pool takes one parallel loop, not nested ones, so the axes of the grid are fused.
    Threads have been dealt with by SerializeThreads. With `tvmtile.check_indices` the blocks run one
    after the other, so that an error comes as it is raised, not as text from a thread of the pool.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((64, 32), "float32")):
        for bx in T.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for by in T.thread_binding(2, thread="blockIdx.y"):
                for i in range(8):
                    A[by * 32 + i, bx] = T.float32(0)
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((64, 32), "float32")):
        for block in T.parallel(8):
            bx: T.let[T.int32] = block % 4
            by: T.let[T.int32] = block // 4
            for i in range(8):
                A[by * 32 + i, bx] = T.float32(0)
    ```
    """
    del context
    stops = func.attrs is not None and func.attrs.get(CHECK_INDICES, False)
    kind = tirx.ForKind.SERIAL if stops else tirx.ForKind.PARALLEL
    return with_kernels(func, lambda kernel: _loop_over_blocks(Launch(kernel), kind))


def _loop_over_blocks(launch: Launch, kind: tirx.ForKind) -> tirx.Stmt:
    total: Any = tirx.const(1, "int32")
    for axis in launch.blocks:
        total = total * axis.extent
    block = tirx.Var("block", "int32")
    rest: Any = block
    bindings: list[tirx.Stmt] = []
    for position, axis in enumerate(launch.blocks):
        last = position == len(launch.blocks) - 1
        index = rest if last else tirx.floormod(rest, axis.extent)
        bindings.append(tirx.Bind(axis.loop_var, index))
        rest = tirx.floordiv(rest, axis.extent)
    return for_loop(block, total, seq([*bindings, launch.body]), kind)
