"""GuardLaunches: a grid without blocks when a kernel is called is not launched, nor one too large."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.kernels import too_many_blocks, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import seq
from tvmtile.target import GpuCapability, gpu


@tvm.transform.module_pass(opt_level=0, name="tvmtile.GuardLaunches")
def GuardLaunches(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
    """Launch a kernel only if its grid has blocks, where a call gives an extent of the grid.

    TVM's runtime takes an extent of 0 for 1: a block would run, and write what no block should. The
    kernel has no loops any more, but TVM's attributes of the extents of its axes. More blocks than a
    GPU launches in y or z are an error before the launch.
    """
    result = mod.clone()
    for name, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            target = None if func.attrs is None else func.attrs.get("target")
            guard = _Guard(gpu(target))
            body = mutated(func.body, (tirx.AttrStmt, guard.guarded))
            result.update_func(name, with_body(func, body))
    return result


class _Guard:
    def __init__(self, capability: GpuCapability | None) -> None:
        self._gpu = capability

    def guarded(self, launch: tirx.AttrStmt, mutator: Mutator) -> tirx.Stmt:
        if launch.attr_key != "thread_extent":
            return mutator.default_mutate(launch)
        extents: list[Any] = []
        checks: list[tirx.Stmt] = []
        axis: Any = launch
        while isinstance(axis, tirx.AttrStmt):
            if axis.attr_key == "thread_extent" and constant(axis.value) is None:
                extents.append(axis.value)
                checks += self._checks(axis)
            axis = axis.body
        if not extents:
            return launch
        has_blocks = tirx.all(*(extent > 0 for extent in extents))
        return seq([*checks, tirx.IfThenElse(has_blocks, launch, None)])

    def _checks(self, axis: tirx.AttrStmt) -> list[tirx.Stmt]:
        tag = str(axis.node.thread_tag)
        if self._gpu is None or tag not in ("blockIdx.y", "blockIdx.z"):
            return []
        most = self._gpu.most_blocks
        message = ir.StringImm(too_many_blocks(axis.value, tag, self._gpu.name, most))
        return [tirx.AssertStmt(axis.value <= most, ir.StringImm("ValueError"), [message])]
