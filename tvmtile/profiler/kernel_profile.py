"""`kernel.profile()`: how long a kernel takes, beside what the device would take at least.

What a kernel does is counted in its program: operations of its products of matrices, and bytes of its
tensors, each element moved once. A device that does nothing else takes the longer of the two times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtile.carver.counts import Counts, counts_of
from tvmtile.carver.model import resident_blocks
from tvmtile.errors import InvalidValue
from tvmtile.jit.signature import sources_in
from tvmtile.library import compute
from tvmtile.target.devices import TileDevice, get_arch

if TYPE_CHECKING:
    from tvmtile.jit.kernel import Kernel
    from tvmtile.jit.resources import KernelResources


@dataclass(frozen=True, repr=False)
class KernelProfile:
    """The cost of a call of a kernel; printed, a table.

    Attributes
    ----------
    name : str
        The kernel's.
    device : TileDevice
        What its limits are those of; a CPU's clock and bandwidth are a guess.
    milliseconds : float or None
        A call; None in an emulator, and for another machine.
    counts : Counts or None
        What the program does; None where that depends on what its tensors hold.
    resources : tuple of KernelResources
        What each kernel takes of an NVIDIA GPU's multiprocessor.
    statistics : object
        What an emulator counted, conflicts of banks among it; None elsewhere.
    """

    name: str
    device: TileDevice
    milliseconds: float | None
    counts: Counts | None
    resources: tuple[KernelResources, ...] = ()
    statistics: Any = None

    @property
    def arithmetic_ms(self) -> float:
        """Milliseconds that the device takes for the products at least; 0 where they are not known."""
        products = self.counts.products.items() if self.counts else ()
        return sum(flops / self.device.operations(dtype) for dtype, flops in products) * 1e3

    @property
    def bandwidth_ms(self) -> float:
        """Milliseconds that its memory takes for the tensors at least; 0 where they are not known."""
        moved = self.counts.tensor_bytes if self.counts else 0
        return moved / (self.device.memory * 1e9) * 1e3

    @property
    def limit(self) -> str:
        """The limit of the device: "arithmetic" or "bandwidth", whichever takes longer."""
        return "arithmetic" if self.arithmetic_ms > self.bandwidth_ms else "bandwidth"

    @property
    def efficiency(self) -> float | None:
        """The least time that the device takes, over the time that was measured."""
        if self.milliseconds is None or self.counts is None:
            return None
        return max(self.arithmetic_ms, self.bandwidth_ms) / self.milliseconds

    @property
    def occupancy(self) -> tuple[float, ...]:
        """The share of a multiprocessor's threads that each kernel can fill."""
        return tuple(_occupancy(used, self.device) for used in self.resources)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        time = "not measured" if self.milliseconds is None else f"{self.milliseconds:.4g} ms"
        guess = " (limits of a typical one)" if self.device.platform == "CPU" else ""
        yield f"{self.name} on {self.device.name}{guess}: {time}"
        if self.counts is None:
            yield "  what it does depends on what its tensors hold"
        else:
            if self.counts.flops:
                rate = self.counts.flops / self.arithmetic_ms * 1e3
                yield self._line("arithmetic", _scaled(self.counts.flops, "FLOP"), rate, "FLOP/s")
            tensors = _scaled(self.counts.tensor_bytes, "B")
            yield self._line("bandwidth", tensors, self.device.memory * 1e9, "B/s")
            yield f"  blocks move  {_scaled(self.counts.global_bytes, 'B')}"
        for used, occupancy in zip(self.resources, self.occupancy, strict=True):
            yield (
                f"  {used.name}: {used.threads} threads, {used.registers} registers, "
                f"{used.spills} bytes of spills, {used.shared} bytes of shared memory, "
                f"occupancy {occupancy:.0%}"
            )
        if self.statistics is not None:
            counted = self.statistics
            yield f"  bank conflicts  {counted.bank_conflicts} of {counted.bank_moves} moves"

    def _line(self, what: str, done: str, rate: float, unit: str) -> str:
        least = self.arithmetic_ms if what == "arithmetic" else self.bandwidth_ms
        share = (
            "" if self.milliseconds is None else f", {least / self.milliseconds:.1%} of the time"
        )
        return f"  {what:<12} {done}, at least {least:.3g} ms at {_scaled(rate, unit)}{share}"


def profile(
    kernel: Kernel,
    tensors: Sequence[object],
    warmup: float,
    rep: float,
    device: TileDevice | None,
) -> KernelProfile:
    """Measure a kernel and count what it does; see `Kernel.profile`."""
    from tvmtile.jit.backends import CudaAdapter

    adapter: Any = kernel.adapter
    emulated = hasattr(adapter, "count_conflicts")
    args = list(tensors) or (kernel.get_profiler().inputs() if adapter.can_run else [])
    milliseconds = None
    if emulated:
        _run_counting(kernel, args)
    elif adapter.can_run:
        milliseconds = kernel.get_profiler().do_bench(warmup=warmup, rep=rep, input_tensors=args)
    return KernelProfile(
        kernel.name,
        device or get_arch(kernel.target),
        milliseconds,
        _counts(kernel, args),
        kernel.resources() if isinstance(adapter, CudaAdapter) else (),
        adapter.statistics if emulated else None,
    )


def _run_counting(kernel: Kernel, args: Sequence[object]) -> None:
    adapter: Any = kernel.adapter
    before, adapter.count_conflicts = adapter.count_conflicts, True
    try:
        kernel(*args)
    finally:
        adapter.count_conflicts = before


def _counts(kernel: Kernel, args: list[Any]) -> Counts | None:
    params = list(kernel.prim_func.params)
    if len(args) != len(params):
        params = [param for i, param in enumerate(params) if i not in kernel.out_idx]
    try:
        sources = sources_in(params, args) if args else {}
        extents = {var: compute(program, args) for var, program in sources.items()}
        return counts_of(kernel.prim_func, extents if args else None)
    except InvalidValue:
        return None


def _occupancy(used: KernelResources, device: TileDevice) -> float:
    """Registers are handed out by 8 to a thread, threads by warps."""
    threads = -(-used.threads // device.warp_size) * device.warp_size
    registers = -(-used.registers // 8) * 8
    blocks = resident_blocks(threads, registers, used.shared, device)
    return blocks * threads / device.max_threads


def _scaled(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000 or prefix == "T":
            break
        value /= 1000
    return f"{value:.4g} {prefix}{unit}"
