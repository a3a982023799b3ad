"""Compiling Metal source and launching its kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmtile.emulator.lexer import tokenize
from tvmtile.emulator.machine import abi, toolchain
from tvmtile.emulator.machine.compiler import is_clang
from tvmtile.emulator.machine.kernels import EmulatedKernel, Module
from tvmtile.emulator.machine.launching import SECONDS, Argument, SharedArgument, extent
from tvmtile.emulator.machine.report import Context, Vocabulary
from tvmtile.emulator.metal.address_spaces import check_address_spaces
from tvmtile.emulator.metal.arguments import bind, element_bytes_of
from tvmtile.emulator.metal.restrictions import check_restrictions
from tvmtile.emulator.metal.signature import MslSignature, find_kernels
from tvmtile.emulator.metal.translate import SOURCE_NAME, translate
from tvmtile.errors import (
    ArgumentError,
    MetalCompileError,
    MetalEmulationError,
    hide_internal_frames,
)

__all__ = ["MetalKernel", "MetalModule", "MetalStatistics", "compile_msl"]

THREADGROUP_MEMORY = 32 * 1024
_HERE = Path(__file__).resolve().parent
_FRONT_END = toolchain.FrontEnd(
    "Metal",
    SOURCE_NAME,
    _HERE / "include",
    _HERE / "runtime",
    MetalCompileError,
    prelude="metal_stdlib",
    recursion=False,
)
_WORDS = Vocabulary(
    MetalEmulationError,
    block="threadgroup",
    warp="simdgroup",
    spaces=("device", "threadgroup"),
    help={
        abi.Failure.RACE: (
            "put a threadgroup_barrier between the two accesses, with the flag of that memory"
        ),
        abi.Failure.MISALIGNED: ("align the index, or access it by a narrower or a packed type"),
        abi.Failure.DIVISION: "guard the division; Metal's result is undefined",
        abi.Failure.OVERFLOW: "compute in uint, which wraps around, or wider; the result is undefined",
        abi.Failure.SHIFT: "shift by fewer, or say what is to be instead; the result is undefined",
        abi.Failure.STACK: "keep arrays of that size in threadgroup or device memory",
        abi.Failure.NOT_UNIFORM: (
            "all lanes of a simdgroup pass the same: the function adds the lane's part"
        ),
    },
    kinds={abi.Failure.SHARED_MEMORY: "threadgroup_memory"},
)


@dataclass(frozen=True)
class MetalStatistics:
    """The work of a launch, summed over its threadgroups.

    Operations count once for all the threads that meet at them: a barrier once a threadgroup, a
    matrix multiplication once a simdgroup.
    """

    threadgroup_barriers: int
    simdgroup_barriers: int
    """Barriers passed."""
    matrix_loads: int
    matrix_stores: int
    matrix_multiplies: int
    """`simdgroup_load`, `simdgroup_store`, and the two multiplications of 8x8 matrices."""
    simd_functions: int
    """Sums, shuffles, votes and the like."""
    tensor_multiplies: int
    """`matmul2d` of cooperative tensors, 16x16 by 16x32."""
    device_bytes_read: int
    device_bytes_written: int
    """Traffic of threads with buffers; each access of each thread counts."""
    threadgroup_bytes_read: int
    threadgroup_bytes_written: int
    """Traffic with threadgroup memory."""
    device_reads: int
    device_writes: int
    threadgroup_reads: int
    threadgroup_writes: int
    """Loads and stores that threads issue, each of 16 bytes at most.

    What `simdgroup_load` and `simdgroup_store` move counts as bytes, not here.
    """
    bank_moves: int
    """Moves of up to 128 bytes of threadgroup memory for a simdgroup; 0 where they are not counted."""
    bank_conflicts: int
    """The moves that come of different words in one bank, if it has 32 banks of 4 bytes.

    NVIDIA's has; Apple does not say.
    """
    threadgroup_memory: int
    """Bytes of threadgroup memory that a threadgroup holds."""


class MetalKernel(EmulatedKernel[MslSignature]):
    """A Metal kernel that runs on the host."""

    @hide_internal_frames
    def __call__(
        self,
        *arguments: Any,
        grid: int | Sequence[int],
        threads: int | Sequence[int],
        threadgroup_memory: Mapping[int, int] | None = None,
        check_device_races: bool = True,
        seconds: float = SECONDS,
        count_conflicts: bool = False,
    ) -> MetalStatistics:
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
            Threads per threadgroup in x, y and z, 1024 at most together, or as the kernel says.
        threadgroup_memory : mapping, optional
            Bytes for each `[[threadgroup(i)]]` parameter, by index.
        check_device_races : bool
            Whether two threads that touch one address of a buffer without a barrier between, or
            from two threadgroups, are a mistake. Races in threadgroup memory always are.
        seconds : float
            Processor time that a threadgroup may take before it counts as endless; 0 is no limit.
        count_conflicts : bool
            Whether conflicts of banks are counted, which takes time.

        Returns
        -------
        MetalStatistics
            What the launch did.

        Raises
        ------
        MetalEmulationError
            If the kernel does what Metal forbids: see its `kind`.
        ArgumentError
            If the arguments do not fit the kernel.
        """
        parameters = self.signature.buffers
        count, most = math.prod(extent(threads, "threads")), self.signature.most_threads
        if most is not None and count > most:
            raise ArgumentError(
                f"{count} threads: kernel {self.signature.name!r} has "
                f"[[max_total_threads_per_threadgroup({most})]]"
            )
        bound = zip(parameters, bind(self.signature, arguments), strict=True)
        statistics = self._image.run(
            Context(_WORDS, self.signature.name, self.module.source, extent(threads, "threads")),
            [Argument(p.name, memory, element_bytes_of(p), p.is_const) for p, memory in bound],
            self._threadgroup_arguments(threadgroup_memory or {}),
            grid=extent(grid, "grid"),
            shared_memory=THREADGROUP_MEMORY,
            check_global_races=check_device_races,
            seconds=seconds,
            count_conflicts=count_conflicts,
        )
        return MetalStatistics(*statistics.operations[:7], *statistics.traffic)

    def _threadgroup_arguments(self, sizes: Mapping[int, int]) -> list[SharedArgument]:
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
            SharedArgument(p.name, sizes[p.index or 0], element_bytes_of(p)) for p in parameters
        ]


class MetalModule(Module[MetalKernel]):
    """The kernels of a Metal source, compiled for the host. Made by `compile_msl`."""

    _kernel = MetalKernel


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
        modules are kept in tvmtile's cache in any case.

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
    flags = (_standard_of(source), *_language_flags(), *toolchain.contraction())
    return (_compile if cache else _build)(source, flags, cache)


def _build(source: str, flags: tuple[str, ...], cache: bool) -> MetalModule:
    tokens = tokenize(source)
    check_address_spaces(tokens)
    kernels = find_kernels(tokens)
    check_restrictions(tokens, kernels)
    library = toolchain.build_module(_FRONT_END, translate(tokens, kernels), source, flags, cache)
    return MetalModule(source, kernels, _FRONT_END, library)


_compile = functools.lru_cache(maxsize=256)(_build)


def _standard_of(source: str) -> str:
    """Metal 4's matrix operations have a structure as a template's argument, which is C++20."""
    return "-std=c++20" if "<MetalPerformancePrimitives/" in source else "-std=c++17"


def _language_flags() -> tuple[str, ...]:
    """Metal's arithmetic: half is rounded after each operation, and 1.0 is a float.

    Clang has no flag for the second. GCC computes with half in float since version 13, and lets calls
    pass that are ambiguous unless it is told to be pedantic.
    """
    if is_clang():
        undefined = "-fsanitize=shift-exponent,signed-integer-overflow"
        return (undefined, "-Xclang", "-ffloat16-excess-precision=none")
    # GCC's sanitizer of overflows takes a third of a kernel's compilation, a call by -ftrapv nothing.
    undefined = "-fsanitize=shift-exponent"
    own = ("-fsingle-precision-constant", "-fexcess-precision=16", "-pedantic-errors")
    return (undefined, "-ftrapv", *own)
