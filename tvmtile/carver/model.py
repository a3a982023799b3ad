"""A model of the time that a grid of blocks takes: it ranks configurations, and measures nothing.

A block does the same thing `steps` times. On a core of a GPU run as many blocks as its threads,
registers and shared memory allow. A step takes as long as the busiest unit (matrix instructions, other
instructions, shared memory, the cache that all cores share), or as a block alone takes that waits for
its own copies, if that is longer. Stages of a pipeline, and other blocks, hide the waiting. The grid
runs in waves; the last one may be shorter. A CPU runs blocks one after the other on each processor, and
waits for nothing but its caches.

What is ranked are hints, as TileLang calls them: the cut and the order of blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tvmtile.ir.threads import MOST_REGISTERS
from tvmtile.target.devices import TileDevice

_LATENCY = 700.0
"""Cycles from a load of the memory of a GPU to its value."""
_STEP = 40.0
"""Cycles of a step's barriers and branches."""
_SHARED_RATE, _CACHE_RATE, _LANES = 128.0, 32.0, 128.0
"""Bytes that a core's shared memory moves in a cycle, and its share of the cache; its instructions."""
_RESERVED = 1024
"""Bytes of shared memory that each block needs besides."""
_LAUNCH = 2e-6


@dataclass(frozen=True)
class Work:
    """The work of a block."""

    blocks: int
    threads: int
    """Blocks of the grid, threads of a block."""
    registers: int
    """Of a thread."""
    shared: int = 0
    """Bytes of shared memory of a block, with the stages."""
    steps: int = 1
    stages: int = 1
    """Steps, and how many of them are in flight."""
    matrix: float = 0.0
    """Floating-point operations of matrix instructions in a step, as if operands had 16 bits."""
    scalar: float = 0.0
    """Other instructions for one element, in a step."""
    moved: float = 0.0
    """Bytes that a step reads from shared memory and writes there."""
    loaded: float = 0.0
    """Bytes that a step loads, through the cache that all share."""
    stored: float = 0.0
    """Bytes that a block stores at its end, and loads at its start."""
    unique: float = 0.0
    """Bytes that the whole grid moves from and to the memory at least."""
    chain: float = 0.0
    """Cycles of a step in which a block's warps wait for each other's results."""
    tail: float = 0.0
    """Cycles at a block's end in which they do."""


@dataclass(frozen=True)
class Rasterization:
    """An order of blocks."""

    panel_width: int = 1
    """Rows or columns of blocks that run together."""


class NoRasterization(Rasterization):
    """Row by row."""


class Rasterization2DRow(Rasterization):
    """Panels of rows, which `T.use_swizzle(panel_width)` asks for."""


class Rasterization2DColumn(Rasterization):
    """Panels of columns."""


@dataclass(frozen=True)
class Hint:
    """A proposal.

    Attributes
    ----------
    block, warp, rstep : list of int
        Extents of a block's tile, of a warp's part of it, and of a step along the axes that are
        summed over.
    threads : int
        Threads of a block.
    pipeline_stage : int
        `num_stages` of the loop over steps; 1: without a pipeline.
    use_tc : bool
        Whether matrix instructions do it.
    rasterization_plan : Rasterization
        The order of the blocks.
    seconds : float
        What the model says that it takes.
    """

    block: list[int]
    threads: int
    warp: list[int] = field(default_factory=list)
    rstep: list[int] = field(default_factory=list)
    pipeline_stage: int = 1
    use_tc: bool = False
    rasterization_plan: Rasterization = field(default_factory=NoRasterization)
    seconds: float = 0.0

    @property
    def use_async(self) -> bool:
        """Tell whether copies run ahead of the steps that use them."""
        return self.pipeline_stage > 1

    def to_dict(self) -> dict[str, object]:
        """Its proposals, without those that it leaves as they are."""
        proposed = {"block": self.block, "warp": self.warp, "rstep": self.rstep}
        found: dict[str, object] = {name: value for name, value in proposed.items() if value}
        found["threads"] = self.threads
        if self.pipeline_stage > 1:
            found["pipeline_stage"] = self.pipeline_stage
        return found


def seconds(work: Work, device: TileDevice) -> float:
    """The time that a grid takes; infinity where no block fits on a core."""
    return _on_cpu(work, device) if device.platform == "CPU" else _on_gpu(work, device)


def blocks_per_core(work: Work, device: TileDevice) -> int:
    """The number of blocks that share a core of a GPU; 0 where none fits."""
    if work.registers > MOST_REGISTERS or work.shared > device.smem_cap:
        return 0
    return resident_blocks(work.threads, work.registers, work.shared, device)


def resident_blocks(threads: int, registers: int, shared: int, device: TileDevice) -> int:
    """The number of blocks that share a core of a GPU, by what each takes.

    A block has so many threads, each of them so many registers, and bytes of shared memory.
    """
    return min(
        device.max_smem_usage // (shared + _RESERVED),
        device.reg_cap // (threads * registers),
        device.max_threads // threads,
        device.max_blocks,
    )


def _on_gpu(work: Work, device: TileDevice) -> float:
    resident = blocks_per_core(work, device)
    if resident == 0:
        return math.inf
    waves, rest = divmod(work.blocks, device.compute_max_core * resident)
    cycles = waves * _wave(work, device, resident)
    if rest:
        cycles += _wave(work, device, -(-rest // device.compute_max_core))
    at_least = work.unique / (device.memory * 1e9)
    return max(cycles / (device.clock * 1e9), at_least) + _LAUNCH


def _wave(work: Work, device: TileDevice, resident: int) -> float:
    """Cycles until the blocks that share a core are done."""
    feeding = min(1.0, resident * work.threads / (4 * device.warp_size))  # four units a core
    computing = max(work.matrix / (device.matrix * feeding), work.scalar / _LANES)
    shared, loading = work.moved / _SHARED_RATE, work.loaded / _CACHE_RATE
    if work.stages > 1:
        alone = max(computing, shared, loading, (_LATENCY + loading) / (work.stages - 1))
    else:
        alone = _LATENCY + loading + computing + shared
    step = max(resident * max(computing, shared, loading), alone + work.chain + _STEP)
    ends = _LATENCY + work.tail + resident * work.stored / min(_CACHE_RATE, device.memory_per_core)
    return work.steps * step + ends


_BLOCK_CYCLES, _STEP_CYCLES = 2000.0, 200.0
"""Cycles that a block and a step of it cost a CPU besides."""
_NEAR, _FAR = 32.0, 12.0
"""Bytes that a processor moves in a cycle from its first cache and from its second."""


def _on_cpu(work: Work, device: TileDevice) -> float:
    """`matrix` and `scalar` count operations with 32-bit operands; `registers` is a tile's bytes."""
    fits = work.shared <= device.max_smem_usage
    rate = _NEAR if work.shared <= device.smem_cap else _FAR if fits else device.memory_per_core
    step = (
        work.matrix / device.matrix
        + work.scalar / device.warp_size
        + work.moved / rate
        + work.loaded / _FAR
        + _STEP_CYCLES
    )
    block = work.steps * step + work.stored / _FAR + _BLOCK_CYCLES
    waves = -(-work.blocks // device.compute_max_core)
    return max(waves * block / (device.clock * 1e9), work.unique / (device.memory * 1e9))
