"""The resources that a CUDA kernel takes of a multiprocessor, and its machine code as text."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tvm import tirx

from tvmtile.errors import MissingDependency, import_optional
from tvmtile.ir.kernels import Launch, kernels_of, target_of
from tvmtile.ir.scopes import SHARED_SCOPE
from tvmtile.passes.memory.shared_memory import allocated_bytes, shared_tiles_in
from tvmtile.target import GpuCapability, gpu


@dataclass(frozen=True)
class KernelResources:
    """The resources of a kernel: of a thread, and of a block.

    Attributes
    ----------
    name : str
        The kernel's symbol.
    registers : int
        32-bit registers of a thread.
    spill_stores, spill_loads : int
        Bytes that a thread moves to and from memory for lack of registers, counted once for each
        instruction.
    stack : int
        Bytes of local memory of a thread: what is spilled, and arrays whose indices are not known.
    static_shared : int
        Bytes of shared memory of a block that the kernel declares.
    dynamic_shared : int
        Bytes of shared memory of a block that are asked for at the launch.
    barriers : int
        Named barriers of a block, of 16.
    threads : int
        Of a block.
    """

    name: str
    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    static_shared: int = 0
    dynamic_shared: int = 0
    barriers: int = 0
    threads: int = 0

    @property
    def spills(self) -> int:
        """Bytes of instructions that exist for lack of registers only."""
        return self.spill_stores + self.spill_loads

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.static_shared + self.dynamic_shared


def resources_of(log: str, lowered: tirx.PrimFunc) -> tuple[KernelResources, ...]:
    """The resources of each kernel of a program.

    They are in the order of the program, after tvmtile's passes, where a kernel's dynamic shared memory
    is one allocation. TVM names its kernels main_kernel, main_kernel_1, ...
    """
    used = resources_of_log(log)
    stem = f"{lowered.attrs['global_symbol']}_kernel"
    found = []
    capability = gpu(target_of(lowered))
    assert capability is not None, "a program for CUDA"
    for index, kernel in enumerate(kernels_of(lowered)):
        name = f"{stem}_{index}" if index else stem
        if name in used:
            shared, threads = _dynamic_shared(kernel, capability), Launch(kernel).num_threads
            found.append(replace(used[name], dynamic_shared=shared, threads=threads))
    return tuple(found)


def _dynamic_shared(kernel: tirx.For, capability: GpuCapability) -> int:
    tiles = shared_tiles_in(kernel)
    dynamic = [tile for tile in tiles if tile.ty.storage_scope == SHARED_SCOPE]
    return sum(allocated_bytes(tile, capability) for tile in dynamic)


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")


def resources_of_log(log: str) -> dict[str, KernelResources]:
    """Read what `ptxas -v` says of each kernel.

    By symbol, in the order of the log of NVRTC or nvcc, without dynamic shared memory and threads. What
    functions that were not inlined use counts for the kernel before them.
    """
    kernels: dict[str, KernelResources] = {}
    name = None
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name = entry[1]
            kernels[name] = KernelResources(name)
        elif name is not None:
            kernels[name] = _with_line(kernels[name], line)
    return kernels


def _with_line(kernel: KernelResources, line: str) -> KernelResources:
    """A kernel's resources with what one more line says."""
    if stack := _STACK.search(line):
        frame, stores, loads = map(int, stack.groups())
        return replace(
            kernel,
            stack=kernel.stack + frame,
            spill_stores=kernel.spill_stores + stores,
            spill_loads=kernel.spill_loads + loads,
        )
    if used := _USED.search(line):
        barriers, shared = _BARRIERS.search(line), _SHARED.search(line)
        return replace(
            kernel,
            registers=int(used[1]),
            barriers=int(barriers[1]) if barriers else 0,
            static_shared=int(shared[1]) if shared else 0,
        )
    return kernel


_TOOL = "nvdisasm"


def disassembled(cubin: bytes) -> str:
    """The disassembly of an ELF file.

    Raises
    ------
    MissingDependency
        If it is neither installed as a package nor in a toolkit nor on the path.
    """
    tool = _found()
    if tool is None:
        raise MissingDependency(
            f"disassembling a CUDA kernel needs {_TOOL}, which is not installed",
            help="pip install nvidia-cuda-nvdisasm, or install CUDA's toolkit; kernel.show_ptx() needs "
            "neither",
        )
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([tool, str(file)], capture_output=True, text=True, check=True)
    return done.stdout


def _found() -> str | None:
    pathfinder = import_optional("cuda.pathfinder", "cuda", "disassembling CUDA kernels")
    path: str | None = pathfinder.find_nvidia_binary_utility(_TOOL)
    return path
