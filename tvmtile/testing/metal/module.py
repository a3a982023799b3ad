"""Compiling Metal source and launching its kernels."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmtile.errors import ArgumentError, hide_internal_frames
from tvmtile.testing.metal import abi, toolchain
from tvmtile.testing.metal.address_spaces import check_address_spaces
from tvmtile.testing.metal.arguments import HostMemory, bind, element_bytes_of
from tvmtile.testing.metal.lexer import tokenize
from tvmtile.testing.metal.report import Context, error_of
from tvmtile.testing.metal.restrictions import check_restrictions
from tvmtile.testing.metal.signature import KernelSignature, Parameter, find_kernels
from tvmtile.testing.metal.translate import translate

__all__ = ["SECONDS", "LaunchStatistics", "MetalKernel", "MetalModule", "compile_msl"]

MAX_THREADS = 1024
THREADGROUP_MEMORY = 32 * 1024
SECONDS = 60.0
# One launch at a time: the runtime of a module has one state.
_LOCK = threading.Lock()


@dataclass(frozen=True)
class LaunchStatistics:
    """What a launch did, summed over its threadgroups.

    Operations count once for all the threads that meet at them: a barrier once a threadgroup, a
    matrix multiplication once a simdgroup.

    Attributes
    ----------
    threadgroup_barriers, simdgroup_barriers : int
        Barriers passed.
    matrix_loads, matrix_stores, matrix_multiplies : int
        `simdgroup_load`, `simdgroup_store`, and the two multiplications of 8x8 matrices.
    simd_functions : int
        Sums, shuffles, votes and the like.
    tensor_multiplies : int
        `matmul2d` of cooperative tensors, 16x16 by 16x32.
    device_bytes_read, device_bytes_written : int
        Traffic of threads with buffers; each access of each thread counts.
    threadgroup_bytes_read, threadgroup_bytes_written : int
        Traffic with threadgroup memory.
    device_reads, device_writes, threadgroup_reads, threadgroup_writes : int
        Loads and stores that threads issue, each of 16 bytes at most. What `simdgroup_load` and
        `simdgroup_store` move counts as bytes, not here.
    threadgroup_memory : int
        Bytes of threadgroup memory that a threadgroup holds.
    """

    threadgroup_barriers: int
    simdgroup_barriers: int
    matrix_loads: int
    matrix_stores: int
    matrix_multiplies: int
    simd_functions: int
    tensor_multiplies: int
    device_bytes_read: int
    device_bytes_written: int
    threadgroup_bytes_read: int
    threadgroup_bytes_written: int
    device_reads: int
    device_writes: int
    threadgroup_reads: int
    threadgroup_writes: int
    threadgroup_memory: int


class MetalModule:
    """The kernels of a Metal source, compiled for the host. Made by `compile_msl`."""

    def __init__(self, source: str, signatures: Sequence[KernelSignature], library: Path) -> None:
        self.source = source
        self.library = library
        self._signatures = {signature.name: signature for signature in signatures}
        self._image = ctypes.CDLL(str(library))

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The kernels' names, in the order of the source."""
        return tuple(self._signatures)

    @hide_internal_frames
    def kernel(self, name: str) -> MetalKernel:
        """Get a kernel.

        Parameters
        ----------
        name : str
            The kernel's name.

        Returns
        -------
        MetalKernel
            To be called.

        Raises
        ------
        ArgumentError
            If the source has no kernel of that name.
        """
        if name not in self._signatures:
            raise ArgumentError(
                f"no kernel {name!r} in the Metal source, "
                f"which has {', '.join(self._signatures) or 'none'}",
                help="a kernel that a macro or a template instantiation makes is not seen",
            )
        return MetalKernel(self, self._signatures[name], self._image)


class MetalKernel:
    """A kernel that runs on the host."""

    def __init__(self, module: MetalModule, signature: KernelSignature, image: ctypes.CDLL) -> None:
        self.module = module
        self.signature = signature
        self._image = image

    @hide_internal_frames
    def __call__(
        self,
        *arguments: Any,
        grid: int | Sequence[int],
        threads: int | Sequence[int],
        threadgroup_memory: Mapping[int, int] | None = None,
        check_device_races: bool = True,
        seconds: float = SECONDS,
    ) -> LaunchStatistics:
        """Run the kernel over a grid, and write its results to the arguments.

        Every access is checked. When a mistake is found the launch ends, and no argument has
        changed.

        Parameters
        ----------
        *arguments : numpy.ndarray, torch.Tensor, number or bytes
            One for each `[[buffer(i)]]`, in the order of the indices. Arrays are contiguous and on
            the CPU. A `constant T&` takes a number, a struct takes its bytes or a numpy record.
            The scalars that TVM puts into a struct stand one by one at the end.
        grid : int or sequence of int
            Threadgroups in x, y and z; what is left out is 1.
        threads : int or sequence of int
            Threads per threadgroup in x, y and z, 1024 at most together.
        threadgroup_memory : mapping, optional
            Bytes for each `[[threadgroup(i)]]` parameter, by index.
        check_device_races : bool
            Whether two threads that touch one address of a buffer without a barrier between, or
            from two threadgroups, are a mistake. Races in threadgroup memory always are.
        seconds : float
            Processor time that a threadgroup may take before it counts as endless; 0 is no limit.

        Returns
        -------
        LaunchStatistics
            What the launch did.

        Raises
        ------
        MetalEmulationError
            If the kernel does what Metal forbids: see its `kind`.
        ArgumentError
            If the arguments do not fit the kernel.
        """
        shape = _extent(threads, "threads")
        if shape[0] * shape[1] * shape[2] > MAX_THREADS:
            raise ArgumentError(f"{shape} threads: a threadgroup has {MAX_THREADS} at most")
        memory = bind(self.signature, arguments)
        buffers, places = _buffers(self.signature.buffers, memory, check_device_races)
        bindings = [
            abi.Binding(buffer, offset, 0, 0, None) for buffer, offset in places
        ] + self._threadgroup_bindings(threadgroup_memory or {})
        launch = abi.Launch(
            ctypes.cast(self._image[f"emulator_entry_{self.signature.name}"], ctypes.c_void_p),
            (abi.BufferArgument * len(buffers))(*buffers),
            (abi.Binding * len(bindings))(*bindings),
            len(buffers),
            len(bindings),
            _extent(grid, "grid"),
            shape,
            THREADGROUP_MEMORY,
            seconds,
        )
        report, statistics = abi.Report(), abi.Statistics()
        with _LOCK:
            failed = self._image.emulator_launch(
                ctypes.byref(launch), ctypes.byref(report), ctypes.byref(statistics)
            )
        if failed:
            line = report.line or toolchain.source_line_of(self.module.library, report.instruction)
            raise error_of(report, line, Context(self.signature.name, self.module.source, shape))
        return _statistics(statistics)

    def _threadgroup_bindings(self, sizes: Mapping[int, int]) -> list[abi.Binding]:
        parameters = self.signature.threadgroup_buffers
        if sizes.keys() != {p.index for p in parameters}:
            raise ArgumentError(
                f"kernel {self.signature.name!r} takes threadgroup memory for the indices "
                f"{[p.index for p in parameters]}, got {sorted(sizes)}",
                help="pass threadgroup_memory={index: bytes}",
            )
        if sum(sizes.values()) > THREADGROUP_MEMORY:
            raise ArgumentError(
                f"{sum(sizes.values())} bytes of threadgroup memory: "
                f"a threadgroup has {THREADGROUP_MEMORY}"
            )
        return [
            abi.Binding(-1, 0, sizes[p.index or 0], element_bytes_of(p), p.name.encode())
            for p in parameters
        ]


def _extent(value: int | Sequence[int], what: str) -> tuple[int, int, int]:
    given = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(given) <= 3 or any(extent < 1 for extent in given):
        raise ArgumentError(f"{what}: expected one to three positive numbers, got {value}")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _buffers(
    parameters: Sequence[Parameter], memory: Sequence[HostMemory], check_races: bool
) -> tuple[list[abi.BufferArgument], list[tuple[int, int]]]:
    """Make buffers of the arguments, one of those that overlap, and say where each argument is.

    An array that is passed twice, or a view beside its array, is the same memory for the kernel
    too.
    """
    order = sorted(range(len(memory)), key=lambda i: memory[i].address)
    groups: list[list[int]] = []
    end = -1
    for i in order:
        if not groups or memory[i].address >= end:
            groups.append([])
        groups[-1].append(i)
        end = max(end, memory[i].address + memory[i].bytes)
    buffers = []
    places = [(0, 0)] * len(memory)
    for number, group in enumerate(groups):
        start = memory[group[0]].address
        stop = max(memory[i].address + memory[i].bytes for i in group)
        members = [parameters[i] for i in group]
        writable = not all(p.is_const for p in members)
        buffers.append(
            abi.BufferArgument(
                start,
                stop - start,
                min(element_bytes_of(p) for p in members),
                ", ".join(p.name for p in members).encode(),
                writable,
                writable and check_races,
            )
        )
        for i in group:
            places[i] = (number, memory[i].address - start)
    return buffers, places


def _statistics(counted: abi.Statistics) -> LaunchStatistics:
    barriers, simdgroup_barriers, loads, stores, multiplies, functions, tensors = counted.operations
    return LaunchStatistics(
        barriers,
        simdgroup_barriers,
        loads,
        stores,
        multiplies,
        functions,
        tensors,
        counted.device_bytes_read,
        counted.device_bytes_written,
        counted.threadgroup_bytes_read,
        counted.threadgroup_bytes_written,
        counted.device_reads,
        counted.device_writes,
        counted.threadgroup_reads,
        counted.threadgroup_writes,
        counted.threadgroup_memory,
    )


@hide_internal_frames
def compile_msl(source: str, *, cache: bool = True) -> MetalModule:
    """Compile Metal source for the host, with every check built in.

    Parameters
    ----------
    source : str
        Metal Shading Language, as it would be given to `MTLDevice.makeLibrary(source:)`: compute
        kernels and what they call.
    cache : bool
        Whether a module that was compiled from the same source before may be used. Compiled
        modules are kept in a cache directory in any case.

    Returns
    -------
    MetalModule
        The kernels.

    Raises
    ------
    MetalCompileError
        If the source does not compile.
    MetalEmulationError
        Of kind "address_space", if a pointer is in a wrong address space.
    MissingDependency
        If the machine has no C++ compiler.

    Examples
    --------
    >>> module = compile_msl('''
    ... #include <metal_stdlib>
    ... using namespace metal;
    ... kernel void double_all(device float* a [[buffer(0)]],
    ...                        uint i [[thread_position_in_grid]]) {
    ...   a[i] = 2 * a[i];
    ... }''')
    >>> array = np.ones(64, np.float32)
    >>> _ = module.kernel("double_all")(array, grid=2, threads=32)
    >>> float(array.sum())
    128.0
    """
    return _compile(source) if cache else _build(source, cache=False)


@functools.lru_cache(maxsize=256)
def _compile(source: str) -> MetalModule:
    return _build(source, cache=True)


def _build(source: str, *, cache: bool) -> MetalModule:
    tokens = tokenize(source)
    check_address_spaces(tokens)
    kernels = find_kernels(tokens)
    check_restrictions(tokens, kernels)
    library = toolchain.build_module(translate(tokens, kernels), source, cache)
    return MetalModule(source, kernels, library)
