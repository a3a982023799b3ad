"""A launch: arguments placed in the machine's memory, the runtime called, its report raised."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmtile.emulator.machine import abi, toolchain
from tvmtile.emulator.machine.report import Context, error_of
from tvmtile.errors import ArgumentError

SECONDS = 60.0
MAX_THREADS = 1024
MAX_BLOCKS = 8  # of a cluster
_LOCK = toolchain.LOCK


@dataclass(frozen=True)
class HostMemory:
    """Memory of an argument: its address and size, and what keeps it alive."""

    address: int
    bytes: int
    owner: object


@dataclass(frozen=True)
class Argument:
    """The argument for a parameter of a kernel."""

    name: str
    """The parameter's name."""
    memory: HostMemory
    """The host's memory, of which the kernel gets a copy."""
    element_bytes: int
    """The size of an element, which indices in messages count."""
    is_const: bool
    """Whether the kernel can't write to it."""


@dataclass(frozen=True)
class SharedArgument:
    """A parameter that is bound to shared memory of the block: its name, bytes, and element's bytes."""

    name: str
    bytes: int
    element_bytes: int


class Image:
    """A compiled module: kernels behind `emulator_entry_<name>`, linked with the machine."""

    def __init__(self, front_end: toolchain.FrontEnd, library: Path) -> None:
        self.library = library
        self._front_end = front_end
        self._functions = toolchain.load(front_end, library)

    def run(
        self,
        context: Context,
        arguments: Sequence[Argument],
        shared: Sequence[SharedArgument],
        *,
        grid: tuple[int, int, int],
        cluster: tuple[int, int, int] = (1, 1, 1),
        shared_memory: int,
        check_global_races: bool,
        seconds: float,
        seed: int = 0,
        count_conflicts: bool = False,
        short_sums: bool = False,
        waits_for_all: bool = False,
        least_blocks: int = 1,
    ) -> abi.Statistics:
        """Run a kernel over a grid, and write its results to the arguments.

        `shared` are arguments in shared memory, behind the others, and `seconds` the processor time of
        a block; 0 is no limit. `seed` chooses when work in the background is done, within what the
        kernel leaves open; `count_conflicts` takes time; with `short_sums` products are added with as
        few bits as hardware does; with `waits_for_all` what a warp waits for is over for all that began
        it together; so many blocks share the registers of a multiprocessor.

        Raises
        ------
        EmulationError
            The language's own, for what the machine found; no argument has changed then.
        """
        x, y, z = context.threads
        if math.prod(cluster) > MAX_BLOCKS or any(map(operator.mod, grid, cluster)):
            raise ArgumentError(
                f"clusters of {cluster} {context.words.block}s in a grid of {grid}: the grid is a "
                f"multiple of the cluster, which has {MAX_BLOCKS} {context.words.block}s at most"
            )
        if x * y * z > MAX_THREADS:
            raise ArgumentError(
                f"{context.threads} threads: a {context.words.block} has {MAX_THREADS} at most"
            )
        buffers, places = _buffers(arguments, check_global_races)
        bindings = [abi.Binding(buffer, offset, 0, 0, None) for buffer, offset in places]
        bindings += [abi.Binding(-1, 0, s.bytes, s.element_bytes, s.name.encode()) for s in shared]
        launch = abi.LaunchRecord(
            ctypes.cast(self._functions[f"emulator_entry_{context.kernel}"], ctypes.c_void_p),
            (abi.BufferArgument * len(buffers))(*buffers),
            (abi.Binding * len(bindings))(*bindings),
            len(buffers),
            len(bindings),
            grid,
            context.threads,
            cluster,
            shared_memory,
            len(context.words.agents),
            self._front_end.returned_threads_pass,
            seed,
            seconds,
            count_conflicts,
            short_sums,
            waits_for_all,
            least_blocks,
        )
        report, statistics = abi.RunReport(), abi.Statistics()
        with _LOCK:
            failed = self._functions.emulator_launch(
                ctypes.byref(launch), ctypes.byref(report), ctypes.byref(statistics)
            )
        if failed:
            line = report.line or toolchain.source_line_of(
                self._front_end, self.library, report.instruction
            )
            raise error_of(report, line, context)
        return statistics


def extent(value: int | Sequence[int], what: str) -> tuple[int, int, int]:
    """The extents in x, y and z of a grid or a block; those left out are 1."""
    given = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(given) <= 3 or any(e < 1 for e in given):
        raise ArgumentError(f"{what}: expected one to three positive numbers, got {value}")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _buffers(
    arguments: Sequence[Argument], check_races: bool
) -> tuple[list[abi.BufferArgument], list[tuple[int, int]]]:
    """Make buffers of the arguments, one of those that overlap, and say where each argument is.

    An array that is passed twice, or a view beside its array, is the same memory for the kernel
    too.
    """
    memory = [argument.memory for argument in arguments]
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
        members = [arguments[i] for i in group]
        writable = not all(argument.is_const for argument in members)
        buffers.append(
            abi.BufferArgument(
                start,
                stop - start,
                min(argument.element_bytes for argument in members),
                ", ".join(argument.name for argument in members).encode(),
                writable,
                writable and check_races,
            )
        )
        for i in group:
            places[i] = (number, memory[i].address - start)
    return buffers, places
