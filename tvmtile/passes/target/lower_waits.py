"""LowerWaitsOnCuda: where a warp, threads of a block, a cluster, or all blocks wait for each other."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import mapped
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.annotations import ARRIVE_COUNT, ARRIVES_ONLY, BARRIER_ID, CLUSTER_STEP
from tvmtile.ir.barriers import attributes_of, is_barrier, is_cluster_barrier, scope_of
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.operands import as_int32
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq

_OF_SOME = 15
"""The barrier for some of the threads where the user names none; 0 is that of `__syncthreads`."""

_BARRIERS = {"warp": T.cuda.warp_sync, "grid": T.cuda.grid_sync}
"""Those for other threads than the ones of a block, for which TVM's generator prints nothing."""

_CLUSTER_STEPS = {
    "arrive": "barrier.cluster.arrive.release.aligned",
    "arrive_relaxed": "barrier.cluster.arrive.relaxed.aligned",
    "wait": "barrier.cluster.wait.acquire.aligned",
}


@prim_func_pass("LowerWaitsOnCuda", requires=(Property.ORDERED,))
def LowerWaitsOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write barriers as CUDA has them.

    Threads of a warp run independently, and TVM's generator prints nothing for a barrier of a warp,
    or of the grid; of a barrier that has a number or is for some threads it takes neither.
    """

    def lower(kernel: tirx.For) -> tirx.For:
        return mapped(kernel, (tirx.Evaluate, _lowered))

    return with_kernels(func, lower)


def _lowered(node: tirx.Evaluate) -> tirx.Stmt:
    if not is_barrier(node):
        return node
    if scope_of(node) in _BARRIERS:
        return tirx.Evaluate(_BARRIERS[scope_of(node)]())
    attrs = attributes_of(node)
    if is_cluster_barrier(node):
        steps = [attrs[CLUSTER_STEP]] if CLUSTER_STEP in attrs else ["arrive", "wait"]
        return seq([tirx.Evaluate(ptx(_CLUSTER_STEPS[step])()) for step in steps])
    if BARRIER_ID not in attrs and ARRIVE_COUNT not in attrs:
        return node
    operands = [attrs.get(BARRIER_ID, _OF_SOME)]
    if ARRIVE_COUNT in attrs:
        operands.append(attrs[ARRIVE_COUNT])
    name = "bar.arrive" if ARRIVES_ONLY in attrs else "bar.sync"
    return tirx.Evaluate(ptx(name)(*(tirx.Cast("uint32", as_int32(o)) for o in operands)))
