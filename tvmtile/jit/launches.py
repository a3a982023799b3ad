"""The host's part of a GPU program, compiled for the CPU to say what it would launch.

TVM splits a program into kernels and a host function that checks the arguments, finds the dynamic
extents and computes every kernel's arguments, grid and threads. Here it is compiled with each launch
replaced by a call that records it, so that whoever runs the kernels learns all of this from the same
compiled code that checks a CPU kernel's arguments.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import buffer_of, call_packed_returning, mapped
from tvmtile.codegen.kept_maps import keeps_map
from tvmtile.ir.alignment import WIDEST
from tvmtile.ir.annotations import LAUNCH_TAGS_WITHOUT_VALUE
from tvmtile.ir.tensor_maps import ENCODER
from tvmtile.jit.placeholders import address_of, argument_at

_RECORD = "tvmtile.record_launch"
_ALLOCATE = "tvmtile.record_workspace"
_MAP = "tvmtile.record_tensor_map"
# Scratch tensors are numbered from here on, behind every argument.
_FIRST_WORKSPACE = 1 << 16
_FIRST_MAP = 1 << 17  # and tensor maps behind those
_ACTIVE = threading.local()
_SHARED_BYTES = "tirx.use_dyn_shared_memory"
_CLUSTER = ("clusterCtaIdx.x", "clusterCtaIdx.y", "clusterCtaIdx.z")
_PASSED = ("handle", "int32", "uint32", "int64", "float32", "float64")
"""The dtypes of a kernel's parameters with which TVM's `GetArgConvertCode` does not fail."""
_TAGS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")


@tvm_ffi.register_global_func(_RECORD, override=True)
def _record(kernel: str, *values: object) -> int:
    _ACTIVE.launches.append((str(kernel), values))
    return 0


@tvm_ffi.register_global_func(_ALLOCATE, override=True)
def _record_workspace(dtype: str, elements: int) -> int:
    index = _FIRST_WORKSPACE + len(_ACTIVE.workspaces)
    _ACTIVE.workspaces[index] = (str(dtype), int(elements))
    return address_of(index)


@tvm_ffi.register_global_func(_MAP, override=True)
def _record_map(memory: object, dtype: str, rank: int, data: object, *numbers: int) -> int:
    """The arguments are those of the driver's function (see `tvmtile.ir.tensor_maps`)."""
    index = _FIRST_MAP + len(_ACTIVE.maps)
    starts = (0, rank, 2 * rank - 1, 3 * rank - 1, 4 * rank - 1)
    extents, strides, box, _ = (numbers[a:b] for a, b in itertools.pairwise(starts))
    swizzle = numbers[4 * rank]
    tensor = argument_at(_address(data))
    _ACTIVE.maps[index] = MapOf(*tensor, str(dtype), extents, strides, box, swizzle)
    _ACTIVE.map_at[_address(memory)] = index
    return 0


@dataclass(frozen=True)
class MapOf:
    """A tensor map of the launch's memory; axes are listed with the innermost first."""

    buffer: int
    offset: int
    """The memory, as in `KernelLaunch.buffers`, and the bytes from its start to the tensor."""
    dtype: str
    """Of an element."""
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    """Elements of the tensor, bytes from one index to the next, elements of a copy."""
    swizzle: int
    """As `cuTensorMapEncodeTiled` numbers it."""


@dataclass(frozen=True)
class KernelInterface:
    """What a kernel is launched with."""

    dtypes: tuple[str, ...]
    """Of its parameters in order, "handle" for buffers, which come first."""
    tags: tuple[str, ...]
    """What the launch says after the arguments: the extents of these axes."""

    @classmethod
    def of(cls, kernel: tirx.PrimFunc) -> KernelInterface:
        """Read it from a kernel that TVM's SplitHostDevice made."""
        dtypes = tuple(
            str(param.ty.dtype) if ir.is_prim_expr(param) else "handle" for param in kernel.params
        )
        assert set(dtypes) <= set(_PASSED), f"TVM's runtime does not launch kernels of {dtypes}"
        tags = kernel.attrs["tirx.kernel_launch_params"]
        values = (str(tag) for tag in tags if str(tag) not in LAUNCH_TAGS_WITHOUT_VALUE)
        return cls(dtypes, tuple(values))


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel and what it is to be run with."""

    kernel: str
    """Its name."""
    buffers: tuple[int, ...]
    """What the kernel's buffers are: positions of the program's arguments, or keys of
    `LaunchRecording.workspaces` and `LaunchRecording.maps`.
    """
    scalars: tuple[int | float, ...]
    """Values of its other parameters."""
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    """Blocks, and threads of a block, in x, y and z."""
    shared_bytes: int = 0
    """Shared memory whose size the launch says."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks of a cluster in x, y and z."""


@dataclass(frozen=True)
class LaunchRecording:
    """What a call of a host function asks for."""

    launches: list[KernelLaunch]
    """In order, without those whose grid is empty."""
    workspaces: dict[int, tuple[str, int]]
    """Dtypes and numbers of elements of the scratch tensors of global memory."""
    maps: dict[int, MapOf | None]
    """The tensor maps that kernels get by value; None for one of a tensor without elements."""


def record_launches(host: ir.IRModule) -> ir.IRModule:
    """Replace each launch in a host function, and each scratch tensor, by a call that records it.

    The host functions, after MakePackedAPI and before LowerTVMBuiltin, become such as launch nothing
    and need no GPU's runtime.
    """

    def recorded(call: ir.Call) -> ir.Expr:
        name = getattr(call.op, "name", "")
        if name == "tirx.call_ffi_kernel":
            return tirx.call_packed(_RECORD, *call.args)
        calls_by_name = name in ("tirx.tvm_call_packed", "tirx.call_extern")
        called = str(call.args[0].value) if calls_by_name else ""
        if called == "__tvm_set_device" or keeps_map(called):
            return tirx.const(0, "int32")  # no map is kept: each launch says what its maps are
        if called == ENCODER:
            return tirx.call_packed(_MAP, *call.args[1:])
        return call

    def workspace(alloc: tirx.AllocBuffer) -> tirx.Stmt:
        ty = buffer_of(alloc).ty
        elements = functools.reduce(operator.mul, ty.shape, tirx.const(1, "int64"))
        address = call_packed_returning("int64", _ALLOCATE, str(ty.dtype), elements)
        return tirx.DeclBuffer(
            buffer_of(alloc), data=tirx.reinterpret(buffer_of(alloc).data.ty, address)
        )

    result = host.clone()
    for name, func in host.functions.items():
        body = mapped(func.body, (ir.Call, recorded), (tirx.AllocBuffer, workspace))
        result.update_func(name, func.with_body(body))
    return result


def record(
    host: Callable[..., object], args: Sequence[object], kernels: Mapping[str, KernelInterface]
) -> LaunchRecording:
    """Call a host function and learn what it asks for.

    It was compiled after `record_launches`; the arguments are placeholders, addresses and numbers.
    """
    recorded: list[tuple[str, tuple[Any, ...]]] = []
    workspaces: dict[int, tuple[str, int]] = {}
    maps: dict[int, MapOf | None] = {}
    _ACTIVE.launches, _ACTIVE.workspaces = recorded, workspaces
    _ACTIVE.maps, _ACTIVE.map_at = maps, {}
    host(*args)
    launches = (_launch(name, values, kernels[name]) for name, values in recorded)
    return LaunchRecording(
        [launch for launch in launches if 0 not in launch.grid], workspaces, maps
    )


def _launch(name: str, values: tuple[Any, ...], kernel: KernelInterface) -> KernelLaunch:
    count = len(kernel.dtypes)
    buffers = kernel.dtypes.count("handle")
    extents = dict(zip(kernel.tags, values[count:], strict=True))
    x, y, z, i, j, k = (int(extents.get(tag, 1)) for tag in _TAGS)
    u, v, w = (int(extents.get(tag, 1)) for tag in _CLUSTER)
    return KernelLaunch(
        name,
        tuple(_position(value) for value in values[:buffers]),
        tuple(values[buffers:count]),
        (x, y, z),
        (i, j, k),
        int(extents.get(_SHARED_BYTES, 0)),
        (u, v, w),
    )


def _address(value: Any) -> int:
    return (value.value if isinstance(value, ctypes.c_void_p) else value) or 0


def _position(value: object) -> int:
    address = _address(value)
    if address in _ACTIVE.map_at:
        return int(_ACTIVE.map_at[address])
    index, offset = argument_at(address)
    if offset < WIDEST:
        return index
    # A kernel's buffer starts where its argument does: this is memory for a map that was not made.
    index = _ACTIVE.map_at[address] = _FIRST_MAP + len(_ACTIVE.maps)
    _ACTIVE.maps[index] = None
    return index
