"""LowerTilePrograms: all of the lowering as one pass, for any TVM flow."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir

from tvmtile.passes.kernels import is_tile_program
from tvmtile.target import resolve

__all__ = ["LowerTilePrograms"]


def LowerTilePrograms(target: Any = None) -> Any:
    """Make the pass that lowers every tile program of a module to ordinary TIR.

    Functions without `T.Kernel` are left as they are, so tile programs can stand beside functions
    that TVM schedules itself, and be called from Relax.

    Parameters
    ----------
    target : str, dict, Target or None
        What to lower for. None takes the functions' own target, or the current one, or this machine.

    Returns
    -------
    tvm.transform.Pass
        A module pass.

    Examples
    --------
    >>> from tvmtile.passes import LowerTilePrograms
    >>> LowerTilePrograms("llvm").info.name
    'tvmtile.LowerTilePrograms'
    """
    wanted = None if target is None else resolve(target)

    def transform(mod: ir.IRModule, context: Any) -> ir.IRModule:
        from tvmtile.pipeline import lowering_passes

        del context
        programs = {gv: func for gv, func in mod.functions.items() if is_tile_program(func)}
        if not programs:
            return mod
        lowered = ir.IRModule(programs, attrs=mod.attrs)
        for step in lowering_passes(wanted if wanted is not None else _target_for(lowered)):
            lowered = step(lowered)
        result = mod.clone()
        for gv in programs:
            result.update_func(gv, lowered[gv.name_hint])
        return result

    return tvm.transform.module_pass(transform, opt_level=0, name="tvmtile.LowerTilePrograms")


def _target_for(mod: ir.IRModule) -> Any:
    for func in mod.functions.values():
        target = func.attrs.get("target") if func.attrs is not None else None
        if target is not None:
            return target
    return resolve(tvm.target.Target.current(allow_none=True))
