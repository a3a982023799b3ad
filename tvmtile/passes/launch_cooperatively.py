"""LaunchCooperatively: blocks that wait for each other run at once."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile.rewriting import contains

__all__ = ["LaunchCooperatively"]

_BARRIER = "tirx.cuda.grid_sync"
_LAUNCH = "tirx.kernel_launch_params"
_COOPERATIVE = "tirx.use_cooperative_launch"
"""A launch parameter without a value, which TVM's runtime knows; its lowering does not write it."""


def _launch_cooperatively(func: tirx.PrimFunc, mod: Any, context: Any) -> tirx.PrimFunc:
    del mod, context
    tags = func.attrs.get(_LAUNCH) if func.attrs is not None else None
    if tags is None or not contains(func.body, ir.Call, _is_barrier):
        return func
    return func.with_attr(_LAUNCH, [_COOPERATIVE, *tags])


LaunchCooperatively = tirx.transform.prim_func_pass(
    _launch_cooperatively, opt_level=0, name="tvmtile.LaunchCooperatively"
)
"""The pass over the functions of a GPU, after they were split from those of the host.

A kernel with a barrier for the grid gets a launch for which CUDA makes sure that all blocks run at
once, or fails. The parameters that have values keep their order, in which these follow the arguments.
"""


def _is_barrier(call: ir.Call) -> bool:
    return isinstance(call.op, ir.Op) and call.op.name == _BARRIER
