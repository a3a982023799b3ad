"""Compiling CUDA source and launching its kernels."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmtile.emulator.cuda.arguments import bind
from tvmtile.emulator.cuda.signature import CudaSignature, find_kernels
from tvmtile.emulator.cuda.translate import PRELUDE, SOURCE_NAME, translate
from tvmtile.emulator.lexer import tokenize
from tvmtile.emulator.machine import abi, toolchain
from tvmtile.emulator.machine.compiler import compiler_identity
from tvmtile.emulator.machine.kernels import EmulatedKernel, Module
from tvmtile.emulator.machine.launching import SECONDS, SharedArgument, extent
from tvmtile.emulator.machine.report import Context, Vocabulary
from tvmtile.errors import ArgumentError, CudaCompileError, CudaEmulationError, hide_internal_frames
from tvmtile.instructions.tensor_memory import COLUMNS

__all__ = ["CudaKernel", "CudaModule", "CudaStatistics", "compile_cuda"]

SHARED_MEMORY = 227 * 1024
DEFAULT_ARCH = "sm_90a"
_HERE = Path(__file__).resolve().parent
_MOST_BLOCKS = 65_535
_WORDS = Vocabulary(
    CudaEmulationError,
    block="block",
    warp="warp",
    spaces=("global", "shared"),
    help={
        abi.Failure.RACE: (
            "put __syncthreads() between the two accesses; what was started in the background is "
            "waited for before that"
        ),
        abi.Failure.FENCE: (
            "put fence.proxy.async behind what the thread did, and a barrier behind that; in "
            "tensor memory, tcgen05.fence::before_thread_sync before the barrier, "
            "::after_thread_sync behind it"
        ),
        abi.Failure.REGISTER: "wait for it first: wgmma.wait_group, or tcgen05.wait::ld",
        abi.Failure.STACK: "keep arrays of that size in shared or global memory",
        abi.Failure.INVALID_LANE: "all lanes that a warp's function names must call it",
    },
    agents=("cp.async", "bulk store", "wgmma", "bulk load"),
)
_PIPE, _WARP = "tcgen05.mma or tcgen05.cp", "tcgen05.ld or tcgen05.st"
# Each kind takes time at every barrier: only who uses tensor memory has its.
_OF_TENSOR_MEMORY = replace(
    _WORDS,
    agents=(*_WORDS.agents, _PIPE, _PIPE, _WARP, _WARP),
    places={
        "tensor memory": lambda i: f"lane {i // COLUMNS}, column {i % COLUMNS} of tensor memory"
    },
)


_TENSOR_PRODUCT = 11
"""`kTensorProduct` of `include/emulator/runtime.h`; the one before it, `kGroup`, is not counted."""


@functools.cache
def _front_end() -> toolchain.FrontEnd:
    from tvmtile.cuda_runtime import include_directories

    return toolchain.FrontEnd(
        "CUDA",
        SOURCE_NAME,
        _HERE / "include",
        _HERE / "runtime",
        CudaCompileError,
        returned_threads_pass=True,
        libraries=include_directories(),
        prelude=PRELUDE,
    )


@dataclass(frozen=True)
class CudaStatistics:
    """The work of a launch, summed over its blocks.

    Operations count once for all the threads that do them together: a barrier once a block, a product
    of matrices once a warp.
    """

    block_barriers: int
    warp_barriers: int
    """Barriers passed, those with a number among the first."""
    matrix_loads: int
    matrix_stores: int
    matrix_multiplies: int
    """`ldmatrix`, `stmatrix`, and `mma`."""
    warp_functions: int
    """Shuffles, votes and the like."""
    async_copies: int
    """`cp.async` of single threads."""
    bulk_copies: int
    """Copies of boxes by tensor maps."""
    warpgroup_multiplies: int
    """`wgmma` of warpgroups."""
    mbarrier_phases: int
    """Phases of mbarriers that all arrivals and bytes have come to."""
    tensor_multiplies: int
    """`tcgen05.mma`, which one thread starts."""
    cluster_barriers: int
    """Arrivals of warps at the barrier of their cluster, and their waits there."""
    global_bytes_read: int
    global_bytes_written: int
    """Traffic of threads, and of what they start, with global memory; each access of each counts."""
    shared_bytes_read: int
    shared_bytes_written: int
    """Traffic with shared memory."""
    global_reads: int
    global_writes: int
    shared_reads: int
    shared_writes: int
    """Loads and stores that threads issue, each of 16 bytes at most."""
    bank_moves: int
    """Moves of up to 128 bytes of shared memory for a warp; 0 where they are not counted.

    They are those of what threads load and store themselves, by `ldmatrix` and `stmatrix` too.
    """
    bank_conflicts: int
    """The moves that come of different words in one of its 32 banks."""
    shared_memory: int
    """Bytes of shared memory that a block holds."""


class CudaKernel(EmulatedKernel[CudaSignature]):
    """A CUDA kernel that runs on the host."""

    @hide_internal_frames
    def __call__(
        self,
        *arguments: Any,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        cluster: int | Sequence[int] = 1,
        shared_bytes: int = 0,
        check_global_races: bool = True,
        seconds: float = SECONDS,
        seed: int = 0,
        count_conflicts: bool = False,
        short_sums: bool = False,
        whole_warpgroups: bool = False,
    ) -> CudaStatistics:
        """Run the kernel over a grid, and write its results to the arguments.

        Every access is checked. When a mistake is found the launch ends, and no argument has
        changed.

        Parameters
        ----------
        *arguments : numpy.ndarray, torch.Tensor, number or bytes
            One for each parameter. Arrays are contiguous and on the CPU. A structure that is passed by
            value, or a number that numpy does not have, takes its bytes.
        grid : int or sequence of int
            Blocks in x, y and z; what is left out is 1.
        block : int or sequence of int
            Threads of a block in x, y and z, 1024 at most together.
        cluster : int or sequence of int
            Blocks of a cluster in x, y and z, 8 at most together: they run at once.
        shared_bytes : int
            Bytes of `extern __shared__` memory.
        check_global_races : bool
            Whether two threads that touch one address of global memory with nothing between that
            orders them, or from two blocks, are a mistake. Races in shared memory always are.
        seconds : float
            Processor time that a block, or a cluster, may take: more counts as endless; 0 is no limit.
        seed : int
            Chooses which copies in the background move at once, and which when they are waited for,
            and the order of blocks; 0 keeps theirs, x first.
        count_conflicts : bool
            Whether conflicts of banks are counted, which takes time.
        short_sums : bool
            Whether `wgmma` adds products of float8 as Hopper does: with 13 bits behind the leading one
            of the largest term, the rest cut off. Exactly otherwise.
        whole_warpgroups : bool
            Whether a warp that has waited for `wgmma` knows that the parts of all four warps are
            over, as CUTLASS takes it: one thread of a warpgroup hands a stage back. Otherwise each
            warp has to arrive.

        Returns
        -------
        CudaStatistics
            What the launch did.

        Raises
        ------
        CudaEmulationError
            If the kernel does what CUDA forbids: see its `kind`.
        ArgumentError
            If the arguments do not fit the kernel.
        """
        blocks = extent(grid, "grid")
        if max(blocks[1:]) > _MOST_BLOCKS:
            raise ArgumentError(
                f"a grid of {blocks} blocks: CUDA launches at most {_MOST_BLOCKS} in y and z"
            )
        words = _OF_TENSOR_MEMORY if "tcgen05" in self.module.source else _WORDS
        statistics = self._image.run(
            Context(words, self.signature.name, self.module.source, extent(block, "block")),
            bind(self.signature, arguments),
            [SharedArgument("dynamic shared memory", shared_bytes, 1)],
            grid=blocks,
            cluster=extent(cluster, "cluster"),
            shared_memory=SHARED_MEMORY,
            check_global_races=check_global_races,
            seconds=seconds,
            seed=seed,
            count_conflicts=count_conflicts,
            short_sums=short_sums,
            waits_for_all=whole_warpgroups,
            least_blocks=self.signature.least_blocks,
        )
        operations = statistics.operations
        counts = (*operations[:10], operations[_TENSOR_PRODUCT], operations[abi.CLUSTER])
        return CudaStatistics(*counts, *statistics.traffic)


class CudaModule(Module[CudaKernel]):
    """The kernels of a CUDA source, compiled for the host. Made by `compile_cuda`."""

    _kernel = CudaKernel


@hide_internal_frames
def compile_cuda(source: str, *, arch: str = DEFAULT_ARCH, cache: bool = True) -> CudaModule:
    """Compile CUDA source for the host, with every check built in.

    Parameters
    ----------
    source : str
        CUDA C++, as it would be given to NVRTC: kernels and what they call.
    arch : str
        What it is for, "sm_90a": `__CUDA_ARCH__` says so to the source.
    cache : bool
        Whether a module that was compiled from the same source before may be used. Compiled
        modules are kept in tvmtile's cache in any case.

    Returns
    -------
    CudaModule
        The kernels.

    Raises
    ------
    CudaCompileError
        If the source does not compile.
    CudaEmulationError
        Of kind "unsupported", if it has a PTX instruction that the emulator does not know.
    MissingDependency
        If the machine has no C++ compiler, or CUDA's headers are not installed.

    Examples
    --------
    >>> module = compile_cuda('''
    ... extern "C" __global__ void double_all(float* a) {
    ...   a[blockIdx.x * blockDim.x + threadIdx.x] *= 2;
    ... }''')
    >>> array = np.ones(64, np.float32)
    >>> _ = module.kernel("double_all")(array, grid=2, block=32)
    >>> float(array.sum())
    128.0
    """
    flags = (*_language_flags(), *toolchain.contraction())
    return (_compile if cache else _build)(source, arch, flags, cache)


def _build(source: str, arch: str, flags: tuple[str, ...], cache: bool) -> CudaModule:
    number = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if number is None:
        raise ArgumentError(f"{arch!r} is no architecture of CUDA", help='as "sm_90a"')
    tokens = tokenize(source)
    kernels = find_kernels(tokens)
    unit = translate(tokens, kernels, int(number[1]))
    library = toolchain.build_module(_front_end(), unit, source, flags, cache)
    return CudaModule(source, kernels, _front_end(), library)


_compile = functools.lru_cache(maxsize=256)(_build)


def _language_flags() -> tuple[str, ...]:
    """Reads and writes of what is volatile are told apart: CUDA's are as relaxed atomic ones."""
    if "clang" in compiler_identity():
        return ("-std=c++20", "-mllvm", "-tsan-distinguish-volatile=1")
    return ("-std=c++20", "--param=tsan-distinguish-volatile=1")
