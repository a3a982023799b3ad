"""LowerTilePrograms: all of the lowering as one pass, for any TVM flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from tvmtile.errors import OutOfSharedMemory, warnings_on_success
from tvmtile.ir.annotations import MOST_STAGES, STAGES_ANNOTATION
from tvmtile.ir.kernels import bound_target, in_root_block, is_tile_program, without_root_block
from tvmtile.ir.rewriting import statements_in
from tvmtile.target import TargetLike, resolve


def LowerTilePrograms(target: TargetLike | None = None) -> Any:
    """Make the pass that lowers every tile program of a module to ordinary TIR.

    Functions without `T.Kernel` are left as they are, so tile programs can stand beside functions
    that TVM schedules itself. In a module with Relax functions the result is what `R.call_tir` takes.

    Parameters
    ----------
    target : str, dict, Target or None
        What to lower for. None takes the functions' own target, or the current one, or this machine.

    Examples
    --------
    >>> from tvmtile.passes import LowerTilePrograms
    >>> LowerTilePrograms("llvm").info.name
    'tvmtile.LowerTilePrograms'
    """
    wanted = None if target is None else resolve(target)

    def transform(mod: ir.IRModule, context: PassContext) -> ir.IRModule:
        from tvmtile.pipeline import lowering_passes

        del context
        programs = {
            gv: without_root_block(func)
            for gv, func in mod.functions.items()
            if is_tile_program(func)
        }
        if not programs:
            return mod
        lowered = ir.IRModule(programs, attrs=mod.attrs)
        steps = lowering_passes(wanted if wanted is not None else _target_for(lowered))
        lowered = _lowered(lowered, steps)
        has_relax = any(isinstance(func, relax.Function) for func in mod.functions.values())
        result = mod.clone()
        for gv in programs:
            func = lowered[gv.name_hint]
            result.update_func(gv, in_root_block(func) if has_relax else func)
        return result

    return tvm.transform.module_pass(transform, opt_level=0, name="tvmtile.LowerTilePrograms")


def _lowered(mod: ir.IRModule, steps: Sequence[Any]) -> ir.IRModule:
    """Run the passes, with fewer stages where a block's memory does not suffice for those planned.

    What layouts and lowerings keep in shared memory beside the tiles is known after the plan only.
    """
    most = max([1, *map(_most_stages, mod.functions.values())])
    for limit in range(most, 0, -1):
        lowered = mod
        if limit < most:
            limited = {gv: f.with_attr(MOST_STAGES, limit) for gv, f in mod.functions.items()}
            lowered = ir.IRModule(limited, attrs=mod.attrs)
        try:
            with warnings_on_success():
                for step in steps:
                    lowered = step(lowered)
            break
        except OutOfSharedMemory:
            if limit == 1:
                raise
    return lowered


def _most_stages(func: tirx.PrimFunc) -> int:
    loops = statements_in(func.body, tirx.For)
    return max([1, *(int(loop.annotations.get(STAGES_ANNOTATION, 1)) for loop in loops)])


def _target_for(mod: ir.IRModule) -> Target:
    for func in mod.functions.values():
        target = bound_target(func)
        if target is not None:
            return target
    return resolve(tvm.target.Target.current(allow_none=True))
