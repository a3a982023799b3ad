"""Metal programs in the emulator, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmtile.jit.emulated import EmulatorAdapter
from tvmtile.jit.launches import KernelLaunch
from tvmtile.jit.metal.scalars import packed_scalars


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
