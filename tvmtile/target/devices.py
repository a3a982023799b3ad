"""Devices as tables: how many cores, what one of them holds, and what it does in a cycle.

A GPU that is in this machine answers for its number of cores and its name; the rest, and a GPU that is
elsewhere, is of the table of its architecture.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import tvm
from tvm import DataType
from tvm.target import Target

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import MissingDependency, UnknownTarget
from tvmtile.ir.threads import REGISTER_FILE, WARP_SIZE, WARPGROUP
from tvmtile.target import TargetLike, compute_capability, cpu, gpu, resolve

__all__ = [
    "CDNA",
    "CPU",
    "CUDA",
    "METAL",
    "TileDevice",
    "auto_infer_current_arch",
    "get_arch",
    "get_compute_capability",
    "get_device_name",
    "get_max_dynamic_shared_size_bytes",
    "get_num_sms",
    "get_shared_memory_per_block",
    "is_cpu_arch",
    "is_cuda_arch",
    "is_metal_arch",
]


@dataclass(frozen=True)
class TileDevice:
    """The resources of a device.

    Attributes
    ----------
    target : Target
        What programs are compiled for.
    name, platform : str
        Its name; "CUDA", "METAL" or "CPU".
    compute_max_core : int
        Multiprocessors of a GPU, processors of a CPU.
    clock : float
        GHz.
    memory : float
        GB that its memory moves in a second.
    matrix : float
        Floating-point operations that a core's matrix units do in a cycle, with 16-bit operands; of a
        CPU, its vector units with 32-bit ones.
    warp_size, reg_cap : int
        Threads of a warp, 32-bit registers of a core.
    matrix_threads : int
        Threads that execute a matrix instruction together, and share the operands that it reads.
    smem_cap, max_smem_usage : int
        Bytes of shared memory that a block may have, and a core has; the first two caches of a CPU.
    l2_cache_size_bytes : int
        Bytes of the cache that all cores share.
    max_threads, max_blocks : int
        Threads and blocks that a core of a GPU holds.
    """

    target: Target = field(compare=False)  # TVM's targets equal none but themselves
    name: str
    platform: str
    compute_max_core: int
    clock: float
    memory: float
    matrix: float
    warp_size: int
    reg_cap: int
    smem_cap: int
    max_smem_usage: int
    l2_cache_size_bytes: int = 0
    matrix_threads: int = WARP_SIZE
    max_threads: int = 2048
    max_blocks: int = 32
    transaction_size: tuple[int, int] = field(default=(32, 128))

    @property
    def memory_per_core(self) -> float:
        """Bytes of the device's memory that are a core's share in a cycle."""
        return self.memory / (self.compute_max_core * self.clock)

    def operations(self, dtype: str) -> float:
        """Floating-point operations of products in a second, at most.

        On a GPU, products of operands of 8 bits are twice as quick as those of 16 where there are
        instructions for them. A CPU computes with 32 bits at least; what it has for dot products of
        narrower operands is not in its table.
        """
        bits = int(DataType(dtype).bits)
        rate = self.compute_max_core * self.clock * 1e9 * self.matrix
        if self.platform == "CPU":
            return rate * 32 / max(bits, 32)
        if self.platform == "METAL":
            return rate  # of simdgroup matrices, whose floats of 16 and 32 bits take as long
        least = 8 if compute_capability(self.target) >= _HAS_FLOAT8 or "int" in dtype else 16
        return rate * 16 / (max(bits, least) if bits <= 32 else _DOUBLE_BITS)


@dataclass(frozen=True)
class _Chip:
    name: str
    cores: int
    clock: float
    memory: float
    matrix: float
    l2_mb: int
    threads: int = 2048
    blocks: int = 32


# NVIDIA's white papers of each architecture: the chip that is most of them in use.
_CHIPS = {
    70: _Chip("V100", 80, 1.53, 900, 1024, 6),
    75: _Chip("T4", 40, 1.59, 320, 512, 4, 1024, 16),
    80: _Chip("A100", 108, 1.41, 1555, 2048, 40),
    86: _Chip("RTX 3090", 82, 1.70, 936, 512, 6, 1536, 16),
    87: _Chip("Orin", 16, 1.30, 205, 512, 4, 1536, 16),
    89: _Chip("RTX 4090", 128, 2.52, 1008, 512, 72, 1536, 24),
    90: _Chip("H200", 132, 1.83, 4800, 4096, 50),
    100: _Chip("B200", 148, 1.85, 8000, 8192, 126),
    103: _Chip("B300", 148, 1.85, 8000, 8192, 126),
    120: _Chip("RTX 5090", 170, 2.41, 1792, 512, 96, 1536, 24),
}
_HAS_FLOAT8 = 89
_DOUBLE_BITS = 256
"""As many bits an operand of 64 would have if its products took as long as their bits say."""
_APPLE = _Chip("M3 Max", 40, 1.4, 400, 256, 48)
_CPU_CLOCK, _CPU_MEMORY = 2.5, 20.0
"""GHz, and GB/s of a core: a guess for servers, the same for all configurations."""


def CUDA(target: TargetLike = "cuda") -> TileDevice:
    """An NVIDIA GPU: this machine's, or the best known of a target's architecture."""
    resolved = resolve(target)
    limits = gpu(resolved)
    assert limits is not None
    chip = _CHIPS[compute_capability(resolved)]
    if has_gpu() and get_compute_capability() == compute_capability(resolved):
        chip = replace(chip, name=get_device_name(), cores=get_num_sms())
    shared = limits.shared_memory
    reserved = 1024 if limits.has_async_copies else 0  # of each block, from that architecture on
    return TileDevice(
        resolved, chip.name, "CUDA", chip.cores, chip.clock, chip.memory, chip.matrix,
        limits.group_size, REGISTER_FILE, shared, shared + reserved, chip.l2_mb << 20,
        WARPGROUP if limits.has_warpgroup_products else limits.group_size, chip.threads, chip.blocks,
    )  # fmt: skip


def METAL(target: TargetLike = "metal") -> TileDevice:
    """An Apple GPU, as a large one of the third generation."""
    resolved = resolve(target)
    limits = gpu(resolved)
    assert limits is not None
    return TileDevice(
        resolved, _APPLE.name, "METAL", _APPLE.cores, _APPLE.clock, _APPLE.memory, _APPLE.matrix,
        limits.group_size, REGISTER_FILE, limits.shared_memory, 2 * limits.shared_memory,
        _APPLE.l2_mb << 20,
    )  # fmt: skip


def CPU(target: TargetLike = "llvm") -> TileDevice:
    """A CPU: its vectors are the target's, its caches and processors this machine's."""
    resolved = resolve(target)
    cores = int(os.environ.get("TVM_NUM_THREADS") or 0) or _processors()
    lanes = cpu(resolved).lanes(32)
    first, second, last = (_cache(level) for level in (1, 2, 3))
    return TileDevice(
        resolved, str(resolved.attrs.get("mcpu", "CPU")), "CPU", cores, _CPU_CLOCK,
        _CPU_MEMORY * cores, 4.0 * lanes, lanes, cpu(resolved).vector_registers, first, second, last,
    )  # fmt: skip


def CDNA(target: TargetLike = "hip") -> NoReturn:
    """AMD's GPUs have no tile programs: this says so.

    Raises
    ------
    UnknownTarget
        In any case.
    """
    raise UnknownTarget(
        f"tile programs can't be lowered for {target!r}", help="carver.arch has CUDA, METAL and CPU"
    )


_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 16 << 20}


def _cache(level: int) -> int:
    """Bytes of a cache for data, where Linux says it."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, found = ((index / name).read_text().strip() for name in ("type", "level"))
            if kind != "Instruction" and int(found) == level:
                return int((index / "size").read_text().strip().removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return _CACHES[level]


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on a Mac
        return os.cpu_count() or 1


# From a target to its device ----------------------------------------------------------------------

_DEVICES = {"cuda": CUDA, "metal": METAL, "llvm": CPU}


def get_arch(target: TargetLike = "cuda") -> TileDevice:
    """The device of a target."""
    resolved = resolve(target)
    return _DEVICES[resolved.kind.name](resolved)


def auto_infer_current_arch() -> TileDevice:
    """The GPU of this machine, or its CPU where it has none."""
    if has_gpu():
        return CUDA("cuda")
    return METAL() if sys.platform == "darwin" else CPU()


def is_cuda_arch(arch: TileDevice) -> bool:
    """Tell whether a device is an NVIDIA GPU."""
    return arch.platform == "CUDA"


def is_metal_arch(arch: TileDevice) -> bool:
    """Tell whether a device is an Apple GPU."""
    return arch.platform == "METAL"


def is_cpu_arch(arch: TileDevice) -> bool:
    """Tell whether a device is a CPU."""
    return arch.platform == "CPU"


# What the driver of an NVIDIA GPU says of it ------------------------------------------------------


def _device(device_id: int) -> Any:
    if not has_gpu():
        raise MissingDependency(
            "there is no NVIDIA GPU here to ask", help="carver.arch.CUDA(target) has tables of them"
        )
    return tvm.cuda(device_id)


def get_num_sms(device_id: int = 0) -> int:
    """The number of a GPU's multiprocessors.

    Raises
    ------
    MissingDependency
        If there is no GPU.
    """
    return int(_device(device_id).multi_processor_count)


def get_device_name(device_id: int = 0) -> str:
    """The name of a GPU."""
    return str(_device(device_id).device_name)


def get_compute_capability(device_id: int = 0) -> int:
    """The number of a GPU's architecture: 90 for 9.0."""
    return int(str(_device(device_id).compute_version).replace(".", ""))


def get_shared_memory_per_block(device_id: int = 0) -> int:
    """Bytes of shared memory that a block has without asking for more."""
    return int(_device(device_id).max_shared_memory_per_block)


def get_max_dynamic_shared_size_bytes(device_id: int = 0) -> int:
    """Bytes of shared memory that a block may ask for."""
    _device(device_id)
    limits = gpu(resolve("cuda"))
    assert limits is not None
    return limits.shared_memory
