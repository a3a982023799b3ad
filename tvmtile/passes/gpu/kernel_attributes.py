"""SetKernelAttributes: how the kernels of a GPU are launched, and what their arguments are."""

from __future__ import annotations

import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile._tvm import walk
from tvmtile.ir.annotations import MAY_ALIAS
from tvmtile.ir.calls import op_name
from tvmtile.ir.rewriting import contains

__all__ = ["SetKernelAttributes"]

_BARRIER = "tirx.cuda.grid_sync"
_LAUNCH = "tirx.kernel_launch_params"
_COOPERATIVE = "tirx.use_cooperative_launch"
"""A launch parameter without a value, which TVM's runtime knows; its lowering does not write it."""


@tvm.transform.module_pass(opt_level=0, name="tvmtile.SetKernelAttributes")
def SetKernelAttributes(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
    """Write down what TVM's SplitHostDevice does not, in the functions that it has made.

    A kernel with a barrier for the grid gets a launch for which CUDA makes sure that all blocks run at
    once, or fails. The parameters that have values keep their order, in which these follow the
    arguments. Kernels of a function whose tensors may share memory lose the promise that they do not.
    """
    result = mod.clone()
    aliasing = {
        name
        for func in mod.functions.values()
        if func.attrs is not None and MAY_ALIAS in func.attrs
        for name in _kernels_called(func)
    }
    for name, func in mod.functions.items():
        kernel = func
        if name.name_hint in aliasing:
            kernel = kernel.without_attr("tirx.noalias")
        if _LAUNCH in (func.attrs or {}) and contains(func.body, ir.Call, _is_barrier):
            kernel = kernel.with_attr(_LAUNCH, [_COOPERATIVE, *func.attrs[_LAUNCH]])
        if kernel is not func:
            result.update_func(name, kernel)
    return result


def _kernels_called(host: tirx.PrimFunc) -> list[str]:
    names: list[str] = []

    def note(call: ir.Call) -> None:
        if op_name(call) == "tirx.call_ffi_kernel":
            names.append(str(call.args[0].value))

    walk(host.body, (ir.Call, note))
    return names


def _is_barrier(call: ir.Call) -> bool:
    return op_name(call) == _BARRIER
