"""The host's part of a GPU program, compiled for the CPU to say what it would launch.

TVM splits a program into kernels and a host function that checks the arguments, finds the dynamic
extents and computes every kernel's arguments, grid and threads. Here it is compiled with each launch
replaced by a call that records it, so that whoever runs the kernels learns all of this from the same
compiled code that checks a CPU kernel's arguments.

That function looks at the shape, strides, dtype and device of a tensor and hands its address on; it
never reads an element. So it is given a placeholder: a description of the tensor whose address is a
number that says which argument it stands for.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm_ffi import DLDeviceType

from tvmtile._tvm import buffer_of, call_packed_returning, mapped
from tvmtile.codegen.kept_maps import keeps_map
from tvmtile.ir.alignment import WIDEST
from tvmtile.ir.annotations import LAUNCH_TAGS_WITHOUT_VALUE
from tvmtile.ir.tensor_maps import ENCODER

# Arguments are this far apart, so that no two overlap.
_DISTANCE_BITS = 44
_DEVICES = {"metal": DLDeviceType.kDLMetal, "cuda": DLDeviceType.kDLCUDA}


def address_of(index: int) -> int:
    """The address that stands for the argument at a position."""
    return (index + 1) << _DISTANCE_BITS


def argument_at(address: int) -> tuple[int, int]:
    """The argument that an address stands for, and how many bytes after its start the address is."""
    return (address >> _DISTANCE_BITS) - 1, address & ((1 << _DISTANCE_BITS) - 1)


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# What DLPack's consumers still refer to, by address; the deleter takes it out.
_IN_USE: dict[int, Any] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: int, in_use: dict[int, Any] = _IN_USE) -> None:
    in_use.pop(address, None)  # at the end of the interpreter, the name of the module is gone


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Exporter:
    """An object that exports one DLPack tensor."""

    def __init__(self, managed: _ManagedTensor) -> None:
        self._managed = managed

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._managed.tensor.device_type, self._managed.tensor.device_id

    def __dlpack__(self, **_options: object) -> Any:
        address = ctypes.addressof(self._managed)
        _IN_USE[address] = self._managed
        return _new_capsule(address, b"dltensor", None)


@functools.lru_cache(maxsize=4096)
def placeholder(
    index: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    kind: str = "metal",
    offset: int = 0,
) -> Any:
    """Describe an argument of a GPU program to its host function.

    It lies on the GPU, `offset` bytes behind `address_of(index)`; its elements must not be accessed.
    """
    element = tvm_ffi.dtype(dtype)
    tensor = _DLTensor(
        address_of(index) + offset,
        int(_DEVICES[kind]),
        0,
        len(shape),
        _DataType(element.type_code, element.bits, element.lanes),
        _int64_array(shape),
        _int64_array(strides),
        0,
    )
    deleter = ctypes.cast(_delete, ctypes.c_void_p)
    return tvm_ffi.from_dlpack(_Exporter(_ManagedTensor(tensor, None, deleter)))


def _int64_array(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


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
    """The parameters of a kernel's launch."""

    dtypes: tuple[str, ...]
    """Of its parameters in order, "handle" for buffers, which come first."""
    tags: tuple[str, ...]
    """The extents, by these axes, that the launch says after the arguments."""

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
    """The kernel's buffers: positions of the program's arguments, or keys of
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
    """The launches that a call of a host function asks for."""

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


# A scalar as the host passes it, in the first bytes of its 8.
_FORMATS = {"int32": "i", "uint32": "I", "int64": "q", "float32": "f"}
_SLOT = 8


def packed_scalars(kernel: KernelInterface, values: Sequence[int | float]) -> bytes:
    """The struct of a kernel's scalars, as TVM lays it out: 8 bytes each."""
    dtypes = [dtype for dtype in kernel.dtypes if dtype != "handle"]
    return b"".join(
        struct.pack(f"<{_FORMATS[dtype]}", value).ljust(_SLOT, b"\0")
        for dtype, value in zip(dtypes, values, strict=True)
    )
