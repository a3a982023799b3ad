"""Programs whose kernels are run one by one, as torch runs Metal's, and in the emulators on the CPU.

The host function runs on the CPU (see `tvmtile.jit.launches`): it checks the arguments and says which
kernels to launch with what.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import struct
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir

from tvmtile._tvm import is_buffer_var
from tvmtile.codegen.metal import MATMUL2D
from tvmtile.errors import ArgumentError, NoLowering, import_optional
from tvmtile.ir.alignment import WIDEST
from tvmtile.jit.arguments import converting
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.backends import Adapter
from tvmtile.jit.launches import (
    KernelLaunch,
    MapOf,
    address_of,
    packed_scalars,
    placeholder,
    record,
)
from tvmtile.jit.signature import is_pointer
from tvmtile.library import strides_of


class RecordedAdapter(Adapter):
    """Runs the kernels that a program's host function would launch.

    Attributes
    ----------
    kernels : dict of str to KernelInterface
        What each kernel is launched with.
    sources : dict of str to str
        What is run: the source of each kernel.
    """

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        name, self._kind = artifact.name, str(artifact.target.kind.name)
        self._artifact = artifact
        self.kernels, self.sources = dict(artifact.kernels), dict(artifact.sources)
        self.call = self._run_program
        self._host = converting(tvm.runtime.Executable(artifact.module)[name], params)
        self._names = [f"{name}: {param.name}" for param in params]
        self._pointers = frozenset(i for i, param in enumerate(params) if is_pointer(param))
        self._tensors = frozenset(i for i, param in enumerate(params) if is_buffer_var(param))

    def _run_program(self, *args: object) -> None:
        described = [self._described(index, arg) for index, arg in enumerate(args)]
        recording = record(self._host, described, self.kernels)
        memory = dict(enumerate(args))
        for index, (dtype, elements) in recording.workspaces.items():
            memory[index] = self.allocate(dtype, elements)
        for index, made_of in recording.maps.items():
            memory[index] = self.mapped(made_of, made_of and memory[made_of.buffer])
        self.run(recording.launches, memory)

    @abstractmethod
    def accepts(self, tensor: object) -> bool:
        """Tell whether the kernels can reach a tensor's memory."""

    @abstractmethod
    def allocate(self, dtype: str, elements: int) -> Any:
        """A tensor of one dimension, for the time of a call."""

    def mapped(self, made_of: MapOf | None, tensor: object) -> Any:
        """A tensor map, on machines that have them; without a tensor, memory that holds none."""
        raise NotImplementedError

    @abstractmethod
    def run(self, launches: Sequence[KernelLaunch], memory: Mapping[int, Any]) -> None:
        """Run kernels, one after the other, on the program's arguments and scratch tensors."""

    def source(self, kernel_only: bool) -> str:
        """The source of all kernels, and the host's LLVM code after it if asked for."""
        kernels = "\n".join(self.sources.values())
        if kernel_only:
            return kernels
        return f"{kernels}\n{self._artifact.host_source}"

    def _described(self, index: int, arg: Any) -> Any:
        """The argument as the host function gets it."""
        if index in self._pointers:
            return self._address(index, arg)
        if index not in self._tensors or not hasattr(arg, "shape"):
            return arg
        if not self.accepts(arg) or not _has_memory(arg):
            raise TypeError(f"a tensor that {type(self).__name__} can't reach")
        strides = strides_of(arg)
        dtype = str(arg.dtype).removeprefix("torch.")
        offset = self.offset(arg) % WIDEST
        return placeholder(index, tuple(arg.shape), tuple(strides), dtype, self._kind, offset)

    def _address(self, index: int, arg: object) -> Any:
        if not hasattr(arg, "shape") or not self.accepts(arg):
            raise ArgumentError(
                f"{self._names[index]} is a pointer; it got {arg!r:.80}",
                help=f"pass a tensor on {self.device}: this backend takes no bare address",
            )
        return ctypes.c_void_p(address_of(index) + self.offset(arg) % WIDEST)


def _has_memory(tensor: object) -> bool:
    """Tell a tensor from one of torch's that only says what operators do to it."""
    if not is_torch(tensor):
        return True
    from tvmtile.jit.torch_library import is_wrapper

    return not is_wrapper(tensor)


def is_torch(tensor: object) -> bool:
    """Tell whether a tensor is torch's; torch need not be installed."""
    return hasattr(tensor, "untyped_storage")


class TorchAdapter(RecordedAdapter):
    """Runs a Metal program on torch tensors of an Apple GPU, by `torch.mps.compile_shader`."""

    backend = "torch"
    device = "mps"

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        super().__init__(artifact, params)
        self._torch = import_optional("torch", "torch", "execution_backend='torch'")
        self._kernel = functools.cache(self._compiled)

    def accepts(self, tensor: Any) -> bool:
        """Tell whether it is a torch tensor on the GPU."""
        return is_torch(tensor) and tensor.device.type == self.device

    def offset(self, tensor: Any) -> int:
        """Its start in its storage, which is aligned."""
        return int(tensor.storage_offset() * tensor.itemsize)

    def allocate(self, dtype: str, elements: int) -> Any:
        """A torch tensor on the GPU; torch keeps its memory until the kernels have run."""
        return self._torch.empty(elements, dtype=getattr(self._torch, dtype), device=self.device)

    def run(self, launches: Sequence[KernelLaunch], memory: Mapping[int, Any]) -> None:
        """Enqueue kernels in torch's stream."""
        for launch in launches:
            kernel = self._kernel(launch.kernel)
            _check_threads(launch, kernel.max_threads_per_threadgroup)
            packed = packed_scalars(self.kernels[launch.kernel], launch.scalars)
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
        check_matmul2d(self.sources[name], self.device)
        return getattr(self._torch.mps.compile_shader(self.sources[name]), name)


def _check_threads(launch: KernelLaunch, limit: int) -> None:
    """Metal would run nothing, and say nothing."""
    count = math.prod(launch.threads)
    if count > limit:
        raise NoLowering(
            f"{launch.kernel} has {count} threads, of which this GPU has registers for {limit}",
            help="use fewer threads, or smaller fragments",
        )


_ROWS, _COLUMNS, _LANES = 16, 32, 32


def check_matmul2d(source: str, device: str) -> None:
    """Compute the product, once, if a kernel multiplies by `matmul2d`.

    Raises
    ------
    NoLowering
        If the result is another one.
    """
    if MATMUL2D in source and not _is_right(device):
        raise NoLowering(
            "this GPU, or its compiler, holds the elements of matmul2d elsewhere than kernels for "
            "Metal 4 do: a product came out wrong",
            help='compile for target="metal"',
        )


@functools.cache
def _is_right(device: str) -> bool:
    torch: Any = import_optional("torch", "torch", "execution_backend='torch'")
    name, source = _kernel()
    generator = torch.Generator().manual_seed(0)
    # Sums of small integers are exact, and no row or column is another one.
    a, b = (torch.randint(-8, 8, (_ROWS, n), generator=generator) for n in (_ROWS, _COLUMNS))
    result = torch.zeros(_ROWS, _COLUMNS, device=device)
    product = getattr(torch.mps.compile_shader(source), name)
    threads = [_LANES, 1, 1]
    given = (x.to(device, torch.float16) for x in (a, b))
    product(*given, result, threads=threads, group_size=threads)
    return bool(torch.equal(result.cpu(), (a @ b).float()))


def _kernel() -> tuple[str, str]:
    """The name of the kernel, and its source."""
    import tvmtile.language as T
    from tvmtile.jit.compiler import compile

    @T.prim_func
    def known_product(
        A: T.Tensor((_ROWS, _ROWS), "float16"),
        B: T.Tensor((_ROWS, _COLUMNS), "float16"),
        C: T.Tensor((_ROWS, _COLUMNS), "float32"),
    ) -> None:
        with T.Kernel(1, threads=_LANES):
            total = T.alloc_fragment((_ROWS, _COLUMNS), "float32")
            T.gemm(A, B, total, clear_accum=True)
            T.copy(total, C)

    kernel: Any = compile(known_product, target="metal4", execution_backend="torch")
    ((name, source),) = kernel.adapter.sources.items()
    return name, source


class EmulatorAdapter(RecordedAdapter):
    """Runs a GPU's program on the CPU, with every access to memory checked.

    Attributes
    ----------
    launch_statistics : list of (str, CudaStatistics or MetalStatistics)
        What each launch of the last call did, with the kernel's name.
    seconds : float
        Processor time that a threadgroup may take before it counts as endless; 0 is no limit.
    count_conflicts : bool
        Whether conflicts of banks are counted, which takes time.
    """

    backend = "emulator"
    device = "cpu"

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        super().__init__(artifact, params)
        self.launch_statistics: list[tuple[str, Any]] = []
        self.seconds = 60.0
        self.count_conflicts = False

    @property
    def statistics(self) -> Any:
        """The statistics of the last call, over all launches; None where there was none."""
        return _total([statistics for _, statistics in self.launch_statistics])

    def accepts(self, tensor: object) -> bool:
        """Tell whether it is on the CPU."""
        return str(getattr(tensor, "device", "cpu")).startswith("cpu")

    def allocate(self, dtype: str, elements: int) -> Any:
        """An array of numpy, or a torch tensor where numpy does not have the dtype."""
        try:
            return np.empty(elements, dtype)
        except TypeError:
            torch = import_optional("torch", "torch", f"scratch memory of {dtype}")
            return torch.empty(elements, dtype=getattr(torch, dtype))

    def run(self, launches: Sequence[KernelLaunch], memory: Mapping[int, Any]) -> None:
        """Emulate kernels.

        Raises
        ------
        EmulationError
            If one of them does what its machine forbids.
        """
        self.launch_statistics = []
        for launch in launches:
            arrays = [memory_of(memory[index]) for index in launch.buffers]
            self.launch_statistics.append((launch.kernel, self._launched(launch, arrays)))

    @abstractmethod
    def _launched(self, launch: KernelLaunch, arrays: Sequence[object]) -> Any:
        """Run one kernel, and say what it did."""


def _total(launches: Sequence[Any]) -> Any:
    """Counts are added; of the memory that blocks hold, the most counts."""
    if not launches:
        return None
    fields = [field.name for field in dataclasses.fields(launches[0])]
    sums = {name: sum(getattr(launch, name) for launch in launches) for name in fields}
    held = next(name for name in fields if name.endswith("_memory"))
    sums[held] = max(getattr(launch, held) for launch in launches)
    return type(launches[0])(**sums)


def memory_of(tensor: Any) -> Any:
    """The memory that a tensor spans as a numpy or torch array without gaps; nothing is copied.

    What is no tensor, such as the map of one, is left as it is.
    """
    if not hasattr(tensor, "__dlpack__"):
        return tensor
    array = tensor if is_torch(tensor) or isinstance(tensor, np.ndarray) else _from_tvm(tensor)
    # All elements from the first to the last, those that it leaves out between them too.
    steps = zip(array.shape, strides_of(array), strict=True)
    span = 1 + sum((size - 1) * step for size, step in steps)
    if is_torch(array):
        return array if array.is_contiguous() else array.as_strided((span,), (1,))
    if array.flags.c_contiguous:
        return array
    return np.lib.stride_tricks.as_strided(array, (span,), (array.itemsize,))


def _from_tvm(tensor: Any) -> Any:
    try:
        return np.from_dlpack(tensor)
    except (RuntimeError, BufferError):  # a dtype that numpy has not, such as bfloat16
        torch = import_optional("torch", "torch", f"a tensor of {tensor.dtype}")
        return torch.from_dlpack(tensor)


class CudaEmulatorAdapter(EmulatorAdapter):
    """Runs a CUDA program on the CPU, with every access to memory checked.

    Attributes
    ----------
    seed : int
        Chooses when copies in the background move what they move, and the order of blocks.
    short_sums : bool
        Whether products of float8 are added with as few bits as Hopper has for them.
    """

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        super().__init__(artifact, params)
        self.seed = 0
        self.short_sums = False
        self._arch = str(artifact.target.attrs["arch"])

    def mapped(self, made_of: MapOf | None, tensor: object) -> Any:
        """A tensor map of an array, as the emulator has it; a kernel that uses none stops."""
        from tvmtile.emulator.cuda import NO_MAP, tensor_map

        if made_of is None:
            return NO_MAP
        return tensor_map(
            memory_of(tensor), made_of.extents, made_of.strides, made_of.box, made_of.swizzle
        )

    def _launched(self, launch: KernelLaunch, arrays: Sequence[object]) -> Any:
        from tvmtile.emulator.cuda import compile_cuda

        module = compile_cuda(self.sources[launch.kernel], arch=self._arch)
        return module.kernel(launch.kernel)(
            *arrays,
            *launch.scalars,
            grid=launch.grid,
            block=launch.threads,
            cluster=launch.cluster,
            shared_bytes=launch.shared_bytes,
            seconds=self.seconds,
            seed=self.seed,
            count_conflicts=self.count_conflicts,
            short_sums=self.short_sums,
        )


class MetalEmulatorAdapter(EmulatorAdapter):
    """Runs a Metal program on the CPU, with every access to memory checked."""

    def _launched(self, launch: KernelLaunch, arrays: Sequence[object]) -> Any:
        from tvmtile.emulator.metal import compile_msl

        packed = packed_scalars(self.kernels[launch.kernel], launch.scalars)
        return compile_msl(self.sources[launch.kernel]).kernel(launch.kernel)(
            *arrays,
            *((packed,) if packed else ()),
            grid=launch.grid,
            threads=launch.threads,
            seconds=self.seconds,
            count_conflicts=self.count_conflicts,
        )


ADAPTERS: Mapping[tuple[str, str], type[RecordedAdapter]] = {
    ("torch", "metal"): TorchAdapter,
    ("emulator", "metal"): MetalEmulatorAdapter,
    ("emulator", "cuda"): CudaEmulatorAdapter,
}  # by the backend and the kind of target
