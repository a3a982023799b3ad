"""TileLang's `tools`: what a program does beside what a device can do, pictures of layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile.carver.counts import counts_of
from tvmtile.errors import InvalidOperand
from tvmtile.layout.plot import plot_layout
from tvmtile.target.devices import TileDevice

__all__ = ["AnalysisResult", "Analyzer", "plot_layout"]


@dataclass(frozen=True)
class AnalysisResult:
    """The work of a program."""

    total_flops: int
    total_global_bytes: int
    """As of `tvmtile.carver.counts.Counts`."""
    estimated_time: float
    """Seconds that the device takes at least: for the arithmetic, or for the bytes."""
    expected_tflops: float
    expected_bandwidth_GBps: float
    """The rates if it takes no longer."""


class Analyzer:
    """Counts what a program does."""

    @staticmethod
    def analysis(fn: tirx.PrimFunc | ir.IRModule, device: TileDevice) -> AnalysisResult:
        """Count what a program does, and how long a device takes for it at least.

        Parameters
        ----------
        fn : PrimFunc or IRModule
            The program, or a module of one.
        device : TileDevice
            As of `tvmtile.target.devices`.
        """
        programs: list[Any] = list(fn.functions.values()) if isinstance(fn, ir.IRModule) else [fn]
        if len(programs) != 1 or not isinstance(programs[0], tirx.PrimFunc):
            raise InvalidOperand("Analyzer.analysis takes one program", help="give a T.prim_func")
        counts = counts_of(programs[0])
        rate = device.compute_max_core * device.clock * 1e9
        time = max(
            counts.flops / (rate * device.matrix), counts.global_bytes / (device.memory * 1e9)
        )
        tflop, gigabytes = counts.flops / 1e12, counts.global_bytes / 1e9
        per_second = 1 / time if time else 0.0
        return AnalysisResult(
            counts.flops, counts.global_bytes, time, tflop * per_second, gigabytes * per_second
        )
