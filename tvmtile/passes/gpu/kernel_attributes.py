"""SetKernelAttributes: how the kernels of a GPU are launched, and what their arguments are."""

from __future__ import annotations

import math

import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile._tvm import nodes_in
from tvmtile.ir.annotations import (
    COOPERATIVE_LAUNCH,
    EXCHANGES_TENSORS,
    LAUNCH_BOUNDS_BLOCKS,
    MAY_ALIAS,
    OVERLAPPED_LAUNCH,
)
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import launched_with
from tvmtile.ir.rewriting import contains
from tvmtile.target import gpu

_LAUNCH = "tirx.kernel_launch_params"


@tvm.transform.module_pass(opt_level=0, name="tvmtile.SetKernelAttributes")
def SetKernelAttributes(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
    """Write down what TVM's SplitHostDevice does not, in the functions that it has made.

    A kernel with a barrier for the grid gets a launch for which CUDA makes sure that all blocks run at
    once, or fails. One that waits for the launch before it (`T.pdl_sync`) may begin while that ends; it
    loses the promise that nobody else writes what it reads, with which NVIDIA's compiler would read
    through a cache that does not see those writes. The parameters that have values keep their order, in
    which these follow the arguments. Kernels of a function whose tensors may share memory lose the
    promise that they do not, and so do those whose threads exchange elements of a tensor: with it, a
    load behind a barrier would be one in front of it.
    A thread of a CUDA kernel may have the registers that loads in flight need, of which NVIDIA's
    compiler would save some for more blocks at once, where these would gain nothing.
    """
    result = mod.clone()
    aliasing = {
        name
        for func in mod.functions.values()
        if func.attrs is not None and (MAY_ALIAS in func.attrs or EXCHANGES_TENSORS in func.attrs)
        for name in _kernels_called(func)
    }
    for name, func in mod.functions.items():
        kernel = func
        launched = [] if _LAUNCH not in (func.attrs or {}) else _launched(func)
        if name.name_hint in aliasing or OVERLAPPED_LAUNCH in launched:
            kernel = kernel.without_attr("tirx.noalias")
        if launched:
            kernel = kernel.with_attr(_LAUNCH, [*launched, *func.attrs[_LAUNCH]])
        if _may_have_all_registers(func):
            kernel = kernel.with_attr(LAUNCH_BOUNDS_BLOCKS, 1)
        if kernel is not func:
            result.update_func(name, kernel)
    return result


def _may_have_all_registers(func: tirx.PrimFunc) -> bool:
    """Tell whether each block of a CUDA kernel, whose registers nobody limits, has a multiprocessor.

    Kernels with more blocks lose by it where they wait for memory: an elementwise one took 1.35 times
    as long. The sums of matrices are left as they are, since they take most registers anyway.
    """
    attrs = func.attrs or {}
    capability = gpu(attrs["target"]) if _LAUNCH in attrs else None
    if capability is None or attrs["target"].kind.name != "cuda":
        return False
    if LAUNCH_BOUNDS_BLOCKS in attrs or contains(func.body, ir.Call, _is_product):
        return False
    blocks = launched_with(func, "blockIdx") or math.inf
    return blocks <= capability.multiprocessors


def _is_product(call: ir.Call) -> bool:
    return "mma" in op_name(call)


def _kernels_called(host: tirx.PrimFunc) -> list[str]:
    calls = (c for c in nodes_in(host.body, ir.Call) if op_name(c) == "tirx.call_ffi_kernel")
    return [str(call.args[0].value) for call in calls]


def _launched(kernel: tirx.PrimFunc) -> list[str]:
    """The launch parameters that a kernel's instructions need."""
    needed = {
        COOPERATIVE_LAUNCH: contains(kernel.body, ir.Call, _is_barrier),
        OVERLAPPED_LAUNCH: contains(kernel.body, ir.Call, _is_wait_for_launch),
    }
    return [tag for tag, is_needed in needed.items() if is_needed]


def _is_barrier(call: ir.Call) -> bool:
    return op_name(call) == "tirx.cuda.grid_sync"


def _is_wait_for_launch(call: ir.Call) -> bool:
    return op_name(call) == "tirx.ptx.griddepcontrol" and str(call.args[0].value) == "wait"
