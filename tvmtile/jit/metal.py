"""Metal programs: how they are built, and how torch and the emulator run them.

The host function runs on the CPU (see `launches`): it checks the arguments and says which kernels to
launch with what. The kernels are Metal source, which is given to `torch.mps.compile_shader`, or to
`tvmtile.testing.metal.compile_msl` on a machine without an Apple GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import struct
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import codegen_build, is_buffer_var, split_host_device_mods
from tvmtile.codegen.metal_source import kernel_source, needed_alignment
from tvmtile.errors import ArgumentError, NoLowering, UnsupportedDtype, import_optional
from tvmtile.jit.adapter import Adapter
from tvmtile.jit.arguments import is_pointer
from tvmtile.jit.launches import KernelInterface, Launch, record, record_launches
from tvmtile.jit.placeholders import address_of, placeholder
from tvmtile.pipeline import tvm_pipeline

if TYPE_CHECKING:
    from tvmtile.testing.metal import LaunchStatistics

__all__ = [
    "EmulatorAdapter",
    "MetalAdapter",
    "MetalProgram",
    "TorchAdapter",
    "build_program",
    "mps_is_available",
    "packed_scalars",
]

# A scalar as the host passes it, in the first bytes of its 8.
_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
}
_SLOT = 8


@dataclass(frozen=True)
class MetalProgram:
    """A program that was compiled for Metal.

    Attributes
    ----------
    module : tvm.runtime.Module
        The host's part, which records launches.
    kernels : dict of str to KernelInterface
        What each kernel is launched with, in the order of the program.
    sources : dict of str to str
        The Metal source of each kernel; each compiles by itself.
    """

    module: Any
    kernels: dict[str, KernelInterface]
    sources: dict[str, str]


def build_program(mod: ir.IRModule, target: Target) -> MetalProgram:
    """Lower a module and generate its code, without needing an Apple GPU's runtime.

    Parameters
    ----------
    mod : IRModule
        Tile programs, or functions with threads bound.
    target : Target
        Of kind `metal`, with a host.

    Returns
    -------
    MetalProgram
        What an adapter runs.
    """
    lower, finalize_host, finalize_device = tvm_pipeline()
    host, devices = split_host_device_mods(lower(tirx.transform.BindTarget(target)(mod)))
    host_module = codegen_build(finalize_host()(record_launches(host)), target.host)
    kernels, sources = {}, {}
    for device in devices.values():
        for name, kernel in finalize_device()(device).functions.items():
            symbol = str(kernel.attrs.get("global_symbol", name.name_hint))
            kernels[symbol] = KernelInterface.of(kernel)
            sources[symbol] = kernel_source(symbol, kernel, target)
    _check_scalars(kernels)
    return MetalProgram(host_module, kernels, sources)


def _check_scalars(kernels: Mapping[str, KernelInterface]) -> None:
    for name, kernel in kernels.items():
        for dtype in kernel.dtypes:
            if dtype != "handle" and dtype not in _FORMATS:
                raise UnsupportedDtype(
                    f"{name}: a number of {dtype} can't be passed to a Metal kernel",
                    help=f"pass one of {', '.join(_FORMATS)}, or a tensor with one element",
                )


def packed_scalars(kernel: KernelInterface, values: Sequence[int | float]) -> bytes:
    """The struct of a kernel's scalars, as TVM lays it out: 8 bytes each.

    Parameters
    ----------
    kernel : KernelInterface
        Its dtypes.
    values : sequence of number
        The scalars.
    """
    dtypes = [dtype for dtype in kernel.dtypes if dtype != "handle"]
    return b"".join(
        struct.pack(f"<{_FORMATS[dtype]}", value).ljust(_SLOT, b"\0")
        for dtype, value in zip(dtypes, values, strict=True)
    )


class MetalAdapter(Adapter):
    """Runs the kernels of a Metal program on tensors.

    Parameters
    ----------
    program : MetalProgram
        What was compiled.
    name : str
        The function to call.
    params : sequence of Var
        Its parameters.
    """

    def __init__(self, program: MetalProgram, name: str, params: Sequence[ir.Var]) -> None:
        self.program = program
        self.call = self._run_program
        self._host = tvm.runtime.Executable(program.module)[name]
        self._names = [f"{name}: {param.name}" for param in params]
        self._alignment = max(map(needed_alignment, program.sources.values()), default=1)
        self._pointers = frozenset(i for i, param in enumerate(params) if is_pointer(param))
        self._tensors = frozenset(i for i, param in enumerate(params) if is_buffer_var(param))

    def _run_program(self, *args: Any) -> None:
        described = [self._described(index, arg) for index, arg in enumerate(args)]
        recording = record(self._host, described, self.program.kernels)
        memory = dict(enumerate(args))
        for index, (dtype, elements) in recording.workspaces.items():
            memory[index] = self.allocate(dtype, elements)
        self.run(recording.launches, memory)

    @abstractmethod
    def accepts(self, tensor: Any) -> bool:
        """Tell whether the kernels can reach a tensor's memory."""

    @abstractmethod
    def offset(self, tensor: Any) -> int:
        """Bytes between memory that is aligned for any vector and the tensor's first element."""

    @abstractmethod
    def allocate(self, dtype: str, elements: int) -> Any:
        """A tensor of one dimension, for the time of a call."""

    @abstractmethod
    def run(self, launches: Sequence[Launch], memory: Mapping[int, Any]) -> None:
        """Run kernels, one after the other, on the program's arguments and scratch tensors."""

    def source(self, kernel_only: bool) -> str:
        """The Metal source of all kernels, and the host's LLVM code after it if asked for."""
        kernels = "\n".join(self.program.sources.values())
        if kernel_only:
            return kernels
        return f"{kernels}\n{self.program.module.inspect_source('ll')}"

    def _described(self, index: int, arg: Any) -> Any:
        """What the host function gets for an argument."""
        if index in self._pointers:
            return self._address(index, arg)
        if index not in self._tensors or not hasattr(arg, "shape"):
            return arg
        if not self.accepts(arg):
            raise TypeError(f"a tensor that {type(self).__name__} can't reach")
        self._check_alignment(index, arg)
        strides = arg.stride() if hasattr(arg, "stride") else _strides(arg)
        dtype = str(arg.dtype).removeprefix("torch.")
        return placeholder(index, tuple(arg.shape), tuple(strides), dtype)

    def _address(self, index: int, arg: Any) -> Any:
        if not hasattr(arg, "shape") or not self.accepts(arg):
            raise ArgumentError(
                f"{self._names[index]} is a pointer; it got {arg!r:.80}",
                help=f"pass a tensor on {self.device}: a Metal kernel takes no bare address",
            )
        self._check_alignment(index, arg)
        return ctypes.c_void_p(address_of(index))

    def _check_alignment(self, index: int, tensor: Any) -> None:
        """A GPU would access other memory than the tensor's."""
        if self._alignment > 1 and self.offset(tensor) % self._alignment:
            raise ArgumentError(
                f"{self._names[index]} must start at a multiple of {self._alignment} bytes, "
                "which the kernel moves at once",
                help="pass a copy, `x.clone()` or `x.copy()`",
            )


def _strides(array: Any) -> Sequence[int]:
    if type(array).__module__ == "numpy":
        return [step // array.itemsize for step in array.strides]
    return list(array.strides)


class EmulatorAdapter(MetalAdapter):
    """Runs a Metal program on the CPU, with every access to memory checked.

    Attributes
    ----------
    launch_statistics : list of (str, LaunchStatistics)
        What each launch of the last call did, with the kernel's name.
    """

    device = "cpu"

    def __init__(self, program: MetalProgram, name: str, params: Sequence[ir.Var]) -> None:
        super().__init__(program, name, params)
        self.launch_statistics: list[tuple[str, LaunchStatistics]] = []

    @property
    def statistics(self) -> LaunchStatistics | None:
        """What the last call did, summed over its launches; None before the first call."""
        return _total([statistics for _, statistics in self.launch_statistics])

    def accepts(self, tensor: Any) -> bool:
        """Whether it is on the CPU."""
        return str(getattr(tensor, "device", "cpu")).startswith("cpu")

    def offset(self, tensor: Any) -> int:
        """Its address."""
        return _address_of_memory(tensor)

    def allocate(self, dtype: str, elements: int) -> Any:
        """An array of numpy, or a torch tensor where numpy does not have the dtype."""
        import numpy as np

        try:
            return np.empty(elements, dtype)
        except TypeError:
            torch = import_optional("torch", "torch", f"scratch memory of {dtype}")
            return torch.empty(elements, dtype=getattr(torch, dtype))

    def run(self, launches: Sequence[Launch], memory: Mapping[int, Any]) -> None:
        """Emulate kernels.

        Raises
        ------
        MetalEmulationError
            If one of them does what Metal forbids.
        """
        self.launch_statistics = []
        for launch in launches:
            statistics = self._kernel(launch.kernel)(
                *(_memory(memory[index]) for index in launch.buffers),
                *self._scalars(launch),
                grid=launch.grid,
                threads=launch.threads,
            )
            self.launch_statistics.append((launch.kernel, statistics))

    def _scalars(self, launch: Launch) -> tuple[bytes, ...]:
        packed = packed_scalars(self.program.kernels[launch.kernel], launch.scalars)
        return (packed,) if packed else ()

    def _kernel(self, name: str) -> Any:
        from tvmtile.testing.metal import compile_msl

        return compile_msl(self.program.sources[name]).kernel(name)


def _total(launches: Sequence[LaunchStatistics]) -> LaunchStatistics | None:
    """Counts are added; of the memory that threadgroups hold, the most counts."""
    if not launches:
        return None
    fields = [field.name for field in dataclasses.fields(launches[0])]
    sums = {name: sum(getattr(launch, name) for launch in launches) for name in fields}
    sums["threadgroup_memory"] = max(launch.threadgroup_memory for launch in launches)
    return type(launches[0])(**sums)


def _memory(tensor: Any) -> Any:
    """The memory that a tensor spans as a numpy or torch array without gaps; nothing is copied."""
    import numpy as np

    if hasattr(tensor, "numel") and hasattr(tensor, "is_contiguous"):
        return _flat_torch(tensor) if _is_torch(tensor) else _from_tvm(tensor)
    if isinstance(tensor, np.ndarray):
        return _flat_numpy(tensor)
    return _from_tvm(tensor)


def _address_of_memory(tensor: Any) -> int:
    return int(tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data)


def _is_torch(tensor: Any) -> bool:
    return hasattr(tensor, "untyped_storage")


def _from_tvm(tensor: Any) -> Any:
    import numpy as np

    try:
        return _flat_numpy(np.from_dlpack(tensor))
    except (RuntimeError, BufferError):  # a dtype that numpy has not, such as bfloat16
        torch = import_optional("torch", "torch", f"a tensor of {tensor.dtype}")
        return _flat_torch(torch.from_dlpack(tensor))


def _flat_torch(tensor: Any) -> Any:
    if tensor.is_contiguous():
        return tensor
    return tensor.as_strided((_span(tensor.shape, tensor.stride()),), (1,))


def _flat_numpy(array: Any) -> Any:
    import numpy as np

    if array.flags.c_contiguous:
        return array
    return np.lib.stride_tricks.as_strided(
        array, (_span(array.shape, _strides(array)),), (array.itemsize,)
    )


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last of a tensor, those that it leaves out between them too."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


class TorchAdapter(MetalAdapter):
    """Runs a Metal program on torch tensors of an Apple GPU, by `torch.mps.compile_shader`."""

    device = "mps"

    def __init__(self, program: MetalProgram, name: str, params: Sequence[ir.Var]) -> None:
        super().__init__(program, name, params)
        self._torch = import_optional("torch", "torch", "execution_backend='torch'")
        self._kernel = functools.cache(self._compiled)

    def accepts(self, tensor: Any) -> bool:
        """Whether it is a torch tensor on the GPU."""
        return _is_torch(tensor) and tensor.device.type == self.device

    def offset(self, tensor: Any) -> int:
        """Where it starts in its storage, which is aligned."""
        return int(tensor.storage_offset() * tensor.itemsize)

    def allocate(self, dtype: str, elements: int) -> Any:
        """A torch tensor on the GPU; torch keeps its memory until the kernels have run."""
        return self._torch.empty(elements, dtype=getattr(self._torch, dtype), device=self.device)

    def run(self, launches: Sequence[Launch], memory: Mapping[int, Any]) -> None:
        """Enqueue kernels in torch's stream."""
        for launch in launches:
            kernel = self._kernel(launch.kernel)
            _check_threads(launch, kernel.max_threads_per_threadgroup)
            packed = packed_scalars(self.program.kernels[launch.kernel], launch.scalars)
            # Torch passes a list of integers as an array of 8-byte integers, by value.
            scalars = [[slot for (slot,) in struct.iter_unpack("<q", packed)]] if packed else []
            threads = [b * t for b, t in zip(launch.grid, launch.threads, strict=True)]
            kernel(
                *(memory[index] for index in launch.buffers),
                *scalars,
                threads=threads,
                group_size=list(launch.threads),
            )

    def _compiled(self, name: str) -> Any:
        return getattr(self._torch.mps.compile_shader(self.program.sources[name]), name)


def _check_threads(launch: Launch, limit: int) -> None:
    """Metal would run nothing, and say nothing."""
    count = math.prod(launch.threads)
    if count > limit:
        raise NoLowering(
            f"{launch.kernel} has {count} threads, of which this GPU has registers for {limit}",
            help="use fewer threads, or smaller fragments",
        )


def mps_is_available() -> bool:
    """Tell whether torch is installed and has an Apple GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.backends.mps.is_available())
