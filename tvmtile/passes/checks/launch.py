"""CheckLaunch: a kernel asks for no more than the target has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import Mutator, buffer_of, mutated, nodes_in
from tvmtile.analysis.effects import effects_of
from tvmtile.analysis.kernel_info import info_of
from tvmtile.errors import (
    InvalidOperand,
    NestingError,
    NoLowering,
    OutOfSharedMemory,
    UnsupportedDtype,
)
from tvmtile.ir.barriers import barrier_name, is_cluster_barrier, is_grid_barrier
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import (
    MORE_BLOCKS_IN_X,
    Launch,
    is_kernel,
    kernels_of,
    statements_of,
    target_of,
    too_many_blocks,
)
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.scopes import is_cluster_mbarrier, is_global, is_mbarrier, is_shared
from tvmtile.ir.spans import location_of
from tvmtile.passes.memory.shared_memory import lifetimes_in, most_at_once
from tvmtile.target import HALF_BYTES, GpuCapability, gpu

_SHUFFLES = "tirx.tvm_warp_shuffle"


@prim_func_pass("CheckLaunch")
def CheckLaunch(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse a block that the function's target can't run.

    The threads of a block are limited on a GPU, and its shared tiles must fit into the memory of a
    block. Two tiles may share memory where one is last used before the other is first used, which is
    what is counted. Threads run in groups (warps, simdgroups), the last of which may be partial; a
    shuffle then would read lanes that do not exist. Apple's GPUs have no float64, and no GPU has
    integers of 4 bits. A CPU has none of these limits, but no tensors of such integers. The program is
    not changed.

    ```
    with T.Kernel(64, threads=2048) as bx:    # refused for CUDA: a block has at most 1024 threads
    ```

    Raises
    ------
    InvalidOperand
        If the number of threads is none that the target can run, the extents of a shared tile are
        known only when the kernel is called, or some lanes shuffle where the target wants all.
    OutOfSharedMemory
        If the shared tiles of a block need more than the target has; the message lists them.
    NestingError
        If tensors are read or written outside of the kernels.
    NoLowering
        If the target does not have what the kernel waits at, or can't stop a kernel with an error.
    UnsupportedDtype
        If the target can't compute with the dtype of a tile or of a value.
    """
    target = target_of(func)
    capability = gpu(target)
    for construct in _CONSTRUCTS:
        if not construct.is_had(target, capability):
            construct.refuse(func, "a CPU" if capability is None else capability.name)
    _check_dtypes(func, capability)
    if capability is None:
        return func
    refuse_host_accesses(func, capability)
    for kernel in kernels_of(func):
        _check_blocks(kernel, capability)
        _check_threads(kernel, capability)
        _check_extents(kernel, capability)
        _check_shared_memory(kernel, capability)
    return func


@dataclass(frozen=True)
class _Construct:
    """A construct that some targets do not have."""

    node: type
    named: Callable[[Any], str | None]
    """How a program asks for it; None of another node of the type."""
    is_had: Callable[[Target, GpuCapability | None], bool]
    problem: str
    help: str

    def refuse(self, func: tirx.PrimFunc, target: str) -> None:
        nodes: list[Any] = nodes_in(func.body, self.node)
        for node in nodes:
            name = self.named(node)
            if name is not None:
                place = node.value if isinstance(node, tirx.Evaluate) else node
                raise NoLowering(
                    f"T.{name}: {self.problem.format(target=target)}",
                    help=self.help,
                    location=location_of(place) or location_of(func.body),
                )


def _mbarrier(node: tirx.AllocBuffer) -> str | None:
    if not is_mbarrier(buffer_of(node)):
        return None
    return "alloc_cluster_barrier" if is_cluster_mbarrier(buffer_of(node)) else "alloc_barrier"


_CONSTRUCTS = (
    _Construct(
        tirx.AssertStmt,
        lambda _: "device_assert",
        lambda target, _: target.kind.name != "metal",
        "a kernel on Metal can't stop with an error",
        "show what is wrong by T.print, or check it before the launch",
    ),
    _Construct(
        tirx.AllocBuffer,
        _mbarrier,
        lambda _, gpu: gpu is not None and gpu.has_bulk_copies,
        "{target} has no mbarriers that count bytes of copies",
        'compile for {"kind": "cuda", "arch": "sm_90a"} or a later GPU; T.copy and T.Pipelined run '
        "everywhere and need no barriers",
    ),
    _Construct(
        tirx.Evaluate,
        lambda stmt: barrier_name(stmt) if is_cluster_barrier(stmt) else None,
        lambda _, gpu: gpu is not None and gpu.has_clusters,
        "{target} has no clusters, whose blocks wait for each other",
        'compile for {"kind": "cuda", "arch": "sm_90a"} or a later GPU',
    ),
    _Construct(
        tirx.Evaluate,
        lambda stmt: barrier_name(stmt) if is_grid_barrier(stmt) else None,
        lambda _, gpu: gpu is None or gpu.runs_blocks_at_once,
        "{target} does not promise that all blocks of a grid run at once, so they can't wait for each "
        "other",
        "end the kernel there and do the rest in a second one: a launch waits for the one before; a "
        "function may hold several T.Kernel",
    ),
)


def refuse_host_accesses(func: tirx.PrimFunc, capability: GpuCapability) -> None:
    """Refuse accesses of the host to the memory of a GPU, in the extents of a grid too.

    Raises
    ------
    NestingError
        For one outside of the kernels of a function.
    """

    def loop(node: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if is_kernel(node):
            launch = Launch(node)
            for axis in (*launch.blocks, *launch.threads):
                mutator.mutate(axis.extent)
            return node
        return node if node.thread_binding is not None else mutator.default_mutate(node)

    def attribute(node: tirx.AttrStmt, mutator: Mutator) -> tirx.Stmt:
        return node if node.attr_key == "thread_extent" else mutator.default_mutate(node)

    def refuse(buffer: ir.Var, way: str, node: ir.Node) -> NoReturn:
        raise NestingError(
            f"{describe(buffer)} is {way} outside T.Kernel, by the host, which does not reach the "
            f"memory of {capability.name}",
            help="move the statement into `with T.Kernel(...)`; a number that the grid depends on is a "
            "parameter, `n: T.int32`",
            location=location_of(node) or location_of(func.body),
        )

    mutated(
        func.body,
        (tirx.For, loop),
        (tirx.AttrStmt, attribute),
        (tirx.BufferStore, lambda store, _: refuse(buffer_of(store), "written", store)),
        (ir.TensorLoad, lambda load, _: refuse(buffer_of(load), "read", load)),
    )


def _check_blocks(kernel: tirx.For, capability: GpuCapability) -> None:
    """Refuse a grid that is too large; `GuardLaunches` looks at those of which a call says the size."""
    for axis in Launch(kernel).blocks:
        tag, count = str(axis.thread_binding.thread_tag), constant(axis.extent) or 0
        if tag != "blockIdx.x" and count > capability.most_blocks:
            raise InvalidOperand(
                too_many_blocks(count, tag, capability.name, capability.most_blocks),
                help=MORE_BLOCKS_IN_X,
                location=location_of(axis) or location_of(kernel),
            )


def _check_threads(kernel: tirx.For, capability: GpuCapability) -> None:
    count, group = Launch(kernel).num_threads, capability.group_size
    if count > capability.max_threads:
        raise InvalidOperand(
            f"T.Kernel: threads={count}, but a block of {capability.name} has at most "
            f"{capability.max_threads}",
            help="use fewer threads: each can handle several elements",
            location=location_of(kernel),
        )
    if count % group:
        _check_shuffles(kernel, count, group, capability)
    if not capability.shuffles_some_lanes:
        _check_lanes(kernel, capability)


def _check_shuffles(kernel: tirx.For, count: int, group: int, capability: GpuCapability) -> None:
    for call in _shuffles_in(kernel)[:1]:
        raise InvalidOperand(
            f"T.Kernel: threads={count}, but {capability.name} shuffles values in groups of {group} "
            "threads, and the last one is partial",
            help=f"use a multiple of {group}, such as threads={-(-count // group) * group}",
            location=location_of(call) or location_of(kernel),
        )


def _shuffles_in(stmt: tirx.Stmt) -> list[ir.Call]:
    return [call for call in nodes_in(stmt, ir.Call) if op_name(call).startswith(_SHUFFLES)]


def _check_lanes(kernel: tirx.For, capability: GpuCapability) -> None:
    """Refuse shuffles of some lanes, and those of computed lanes where some threads may not come."""
    all_lanes = 2**capability.group_size - 1
    computed = []
    for call in _shuffles_in(kernel):
        lanes = constant(call.args[0])
        if lanes is None:
            computed.append(call)
        elif lanes & all_lanes != all_lanes:
            _refuse_lanes(f"mask={lanes:#x}", call, kernel, capability)
    if not computed:
        return
    variance = info_of(kernel).variance
    for node in nodes_in(kernel, (tirx.IfThenElse, tirx.For, tirx.While)):
        is_branch = isinstance(node, tirx.IfThenElse)
        if variance.may_diverge(node.condition) if is_branch else variance.is_divergent(node):
            for call in (call for part in statements_of(node) for call in nodes_in(part, ir.Call)):
                if any(map(call.same_as, computed)):
                    _refuse_lanes("a computed mask", call, kernel, capability)


def _refuse_lanes(
    mask: str, call: ir.Call, kernel: tirx.For, capability: GpuCapability
) -> NoReturn:
    raise InvalidOperand(
        f"a shuffle with {mask}: {capability.name} shuffles when all "
        f"{capability.group_size} lanes of a group come",
        help="shuffle in all threads, before the branch, and leave mask= out: "
        "`other = T.shfl_xor(value, 1)`, then use `other` in the branch",
        location=location_of(call) or location_of(kernel),
    )


def _check_dtypes(func: tirx.PrimFunc, capability: GpuCapability | None) -> None:
    """Refuse what the target can't compute with; on a CPU tensors of which TVM checks no shape."""
    name = "a CPU's memory" if capability is None else capability.name
    lacks: tuple[str, ...] = HALF_BYTES if capability is None else capability.lacks
    kernels = list(kernels_of(func))
    for access in (access for kernel in kernels for access in effects_of(kernel)):
        dtype = str(access.root.ty.dtype)
        if dtype in lacks and (capability is not None or is_global(access.root)):
            raise UnsupportedDtype(
                f"{describe(access.root)}: {name} has no {dtype}",
                help=_OTHER_DTYPES[dtype],
                location=access.location,
            )
    if capability is None:
        return
    for param in func.params:
        dtype = str(param.ty.dtype) if ir.is_prim_expr(param) else ""
        if dtype in lacks:
            raise UnsupportedDtype(
                f"{param.name} {dtype}: {name} has no {dtype}",
                help=f"give a number of {_WIDER[dtype]}",
                location=next(filter(None, map(location_of, kernels)), None),
            )
    for store in nodes_in(func.body, tirx.BufferStore):
        for cast in nodes_in(store.value, tirx.Cast):
            dtype = str(cast.ty.dtype)
            if dtype in lacks:
                raise UnsupportedDtype(
                    f"a value is converted to {dtype}, which {name} lacks",
                    help=f"compute in {_WIDER[dtype]}",
                    location=location_of(store),
                )


_BYTES = "hold two of them in a uint8 and decode them in the kernel: `byte & 0xF`, `byte >> 4`"
_WIDER = {"float64": "float32", "bfloat16": "float32", "int4": "int32", "uint4": "uint32"}
_OTHER_DTYPES = {
    "float64": "use float32 for this tile",
    "bfloat16": "use float16 or float32 for this tile",
    "int4": _BYTES,
    "uint4": _BYTES,
}


def _check_extents(kernel: tirx.For, capability: GpuCapability) -> None:
    for node in nodes_in(kernel, tirx.AllocBuffer):
        tile = buffer_of(node)
        if not is_shared(tile) or all(constant(extent) is not None for extent in tile.ty.shape):
            continue
        raise InvalidOperand(
            f"T.alloc_shared: {describe(tile)} has an extent that a call gives; {capability.name} "
            "needs it known when the kernel is compiled",
            help="allocate a tile of constant extents and loop over the rest, as in "
            "`for i in T.serial(T.ceildiv(n, 1024))`",
            location=location_of(node) or location_of(kernel),
        )


def _check_shared_memory(kernel: tirx.For, capability: GpuCapability) -> None:
    tiles = most_at_once(lifetimes_in(kernel, capability, through_loops=False))
    needed = sum(tile.size for tile in tiles)
    if needed <= capability.shared_memory:
        return
    table = "".join(f"\n  {describe(tile.buffer)}: {_bytes(tile.size)}" for tile in tiles)
    raise OutOfSharedMemory(
        f"T.Kernel: the shared tiles need {_bytes(needed)} at once; a block of {capability.name} has "
        f"{_bytes(capability.shared_memory)}{table}",
        help="make the tiles smaller, or keep one of them in a fragment",
        location=location_of(kernel),
    )


def _bytes(count: int) -> str:
    return f"{count / 1024:g} KB"
