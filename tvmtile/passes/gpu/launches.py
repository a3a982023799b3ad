"""Launches of a GPU's kernels: order of blocks, clusters, guards, attributes, numbers.

SwizzleBlockIdx and LaunchClusters rewrite tile programs. GuardLaunches comes before TVM's
SplitHostDevice, SetKernelAttributes and WidenScalars after it: a kernel has no loops over its blocks
then.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile._tvm import Mutator, mapped, mutated, nodes_in
from tvmtile.errors import warn
from tvmtile.ir.annotations import (
    CLUSTER_ANNOTATION,
    COOPERATIVE_LAUNCH,
    EXCHANGES_TENSORS,
    LAUNCH_BOUNDS_BLOCKS,
    MAY_ALIAS,
    OVERLAPPED_LAUNCH,
)
from tvmtile.ir.block_order import block_order
from tvmtile.ir.calls import op_name
from tvmtile.ir.divisions import named_divisions
from tvmtile.ir.kernels import (
    Launch,
    launched_with,
    target_of,
    too_many_blocks,
    with_body,
    with_kernels,
    with_launch_body,
)
from tvmtile.ir.operands import constant
from tvmtile.ir.options import options_of
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, launch_loop, replace_loop, seq, substitute
from tvmtile.ir.spans import location_of
from tvmtile.target import GpuCapability, gpu


@prim_func_pass("SwizzleBlockIdx")
def SwizzleBlockIdx(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Permute the blocks of the grid so that blocks which run together share operands.

    A GPU starts blocks in the order of their numbers. Every block still has work of its own. This
    comes late: what is known of the range of a block's index stays true, and passes before this one
    use it.
    """
    return with_kernels(func, _ordered)


def _ordered(kernel: tirx.For) -> tirx.For:
    launch = Launch(kernel)
    loops = sorted(launch.blocks, key=lambda loop: str(loop.thread_binding.thread_tag))
    blocks = [loop.loop_var for loop in loops]
    grid = [loop.extent for loop in loops]
    order = block_order(options_of(kernel), blocks, grid)
    if order is None:
        return kernel
    fresh = [ir.Var(block.name, block.ty) for block in blocks]
    names, values = named_divisions(order, "panel")
    binds = [tirx.Bind(new, value) for new, value in zip(fresh, values, strict=True)]
    moved = substitute(launch.body, dict(zip(blocks, fresh, strict=True)))
    return with_launch_body(kernel, seq([*names, *binds, moved]))


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


@prim_func_pass("GuardLaunches", everywhere=True)
def GuardLaunches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Launch a kernel only if its grid has blocks, where a call gives an extent of the grid.

    TVM's runtime takes an extent of 0 for 1: a block would run, and write what no block should. The
    kernel has no loops any more, but TVM's attributes of the extents of its axes. More blocks than a
    GPU launches in y or z are an error before the launch.
    """
    guard = _LaunchGuard(gpu((func.attrs or {}).get("target")))
    return with_body(func, mutated(func.body, (tirx.AttrStmt, guard.guarded)))


class _LaunchGuard:
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


_WIDE = {
    "bool": "int32",
    "int8": "int32",
    "int16": "int32",
    "uint8": "uint32",
    "uint16": "uint32",
    "uint64": "int64",
    "float16": "float32",
}
"""The dtype that holds all values of one which the runtime refuses, or their bits."""


@prim_func_pass("WidenScalars", everywhere=True)
def WidenScalars(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Convert numbers to a wider dtype where the host launches a kernel, and back in the kernel.

    TVM's runtime fails at the first launch of a kernel with a parameter of another dtype: its
    `GetArgConvertCode` knows integers of 32 and 64 bits, uint32, float32 and float64.
    """
    if _LAUNCH in (func.attrs or {}):
        return _taking_wide_numbers(func)
    return with_body(func, mapped(func.body, (ir.Call, _with_wide_numbers)))


def _with_wide_numbers(call: ir.Call) -> ir.Call:
    if op_name(call) != "tirx.call_ffi_kernel":
        return call
    args = [
        tirx.Cast(_WIDE[dtype], a) if (dtype := _dtype_of(a)) in _WIDE else a for a in call.args
    ]
    return ir.Call(call.op, args, attrs=call.attrs, span=call.span, ret_ty=call.ty)


def _taking_wide_numbers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    wide = {
        param: tirx.Var(f"{param.name}_wide", _WIDE[_dtype_of(param)])
        for param in func.params
        if _dtype_of(param) in _WIDE
    }
    if not wide:
        return func
    params = [wide.get(param, param) for param in func.params]
    narrowed = [tirx.Bind(param, tirx.Cast(_dtype_of(param), w)) for param, w in wide.items()]
    return tirx.PrimFunc(params, seq([*narrowed, func.body]), func.ret_type, func.attrs, func.span)


def _dtype_of(value: ir.Expr) -> str:
    return str(value.ty.dtype) if ir.is_prim_expr(value) else ""
