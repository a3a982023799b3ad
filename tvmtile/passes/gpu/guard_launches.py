"""GuardLaunches: a grid that has no blocks when a kernel is called is not launched."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import constant


@tvm.transform.module_pass(opt_level=0, name="tvmtile.GuardLaunches")
def GuardLaunches(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
    """Launch a kernel only if its grid has blocks, where a call gives an extent of the grid.

    TVM's runtime takes an extent of 0 for 1: a block would run, and write what no block should. The
    kernel has no loops any more, but TVM's attributes of the extents of its axes.
    """
    result = mod.clone()
    for name, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            body = mutated(func.body, (tirx.AttrStmt, _guarded))
            result.update_func(name, with_body(func, body))
    return result


def _guarded(launch: tirx.AttrStmt, mutator: Mutator) -> tirx.Stmt:
    if launch.attr_key != "thread_extent":
        return mutator.default_mutate(launch)
    extents: list[Any] = []
    axis: Any = launch
    while isinstance(axis, tirx.AttrStmt):
        if axis.attr_key == "thread_extent" and constant(axis.value) is None:
            extents.append(axis.value)
        axis = axis.body
    if not extents:
        return launch
    return tirx.IfThenElse(tirx.all(*(extent > 0 for extent in extents)), launch, None)
