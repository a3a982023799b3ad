"""LaunchClusters: blocks of a cluster are launched together."""

from __future__ import annotations

from tvm import tirx

from tvmtile.errors import warn
from tvmtile.ir.annotations import CLUSTER_ANNOTATION
from tvmtile.ir.kernels import target_of, with_kernels
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import launch_loop, replace_loop
from tvmtile.ir.spans import location_of
from tvmtile.target import gpu


@prim_func_pass("LaunchClusters")
def LaunchClusters(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn the cluster that a kernel asks for into the launch parameters that TVM's runtime knows.

    Nothing uses the index of a block in its cluster: which blocks run together changes no result. A
    target without clusters launches blocks alone and warns.
    """
    target = target_of(func)
    capability = gpu(target)

    def launched(kernel: tirx.For) -> tirx.Stmt:
        if CLUSTER_ANNOTATION not in kernel.annotations:
            return kernel
        rest = {k: v for k, v in kernel.annotations.items() if k != CLUSTER_ANNOTATION}
        loop: tirx.Stmt = replace_loop(kernel, annotations=rest)
        if capability is None or not capability.has_clusters:
            name = "a CPU" if capability is None else capability.name
            warn(
                f"T.Kernel: cluster_dims has no effect: {name} has no clusters", location_of(kernel)
            )
            return loop
        for axis, size in zip("xyz", kernel.annotations[CLUSTER_ANNOTATION], strict=True):
            loop = _along(axis, int(size), loop)
        return loop

    return with_kernels(func, launched)


def _along(axis: str, size: int, body: tirx.Stmt) -> tirx.Stmt:
    if size == 1:
        return body
    return launch_loop(tirx.Var(f"c{axis}", "int32"), size, f"clusterCtaIdx.{axis}", body)
