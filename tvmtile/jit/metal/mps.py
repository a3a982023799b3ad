"""Metal programs on an Apple GPU, through torch."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir

from tvmtile.errors import NoLowering, import_optional
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.launches import KernelLaunch
from tvmtile.jit.metal.known_product import check_matmul2d
from tvmtile.jit.metal.scalars import packed_scalars
from tvmtile.jit.recorded import RecordedAdapter, is_torch


class TorchAdapter(RecordedAdapter):
    """Runs a Metal program on torch tensors of an Apple GPU, by `torch.mps.compile_shader`."""

    backend = "torch"
    device = "mps"

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        super().__init__(artifact, params)
        self._torch = import_optional("torch", "torch", "execution_backend='torch'")
        self._kernel = functools.cache(self._compiled)

    def accepts(self, tensor: Any) -> bool:
        """Whether it is a torch tensor on the GPU."""
        return is_torch(tensor) and tensor.device.type == self.device

    def offset(self, tensor: Any) -> int:
        """Where it starts in its storage, which is aligned."""
        return int(tensor.storage_offset() * tensor.itemsize)

    def allocate(self, dtype: str, elements: int) -> Any:
        """A torch tensor on the GPU; torch keeps its memory until the kernels have run."""
        return self._torch.empty(elements, dtype=getattr(self._torch, dtype), device=self.device)

    def run(self, launches: Sequence[KernelLaunch], memory: Mapping[int, Any]) -> None:
        """Enqueue kernels in torch's stream."""
        for launch in launches:
            kernel = self._kernel(launch.kernel)
            _check_threads(launch, kernel.max_threads_per_threadgroup)
            packed = packed_scalars(self.kernels[launch.kernel], launch.scalars)
            # Torch passes a list of integers as an array of 8-byte integers, by value.
            scalars = [[slot for (slot,) in struct.iter_unpack("<q", packed)]] if packed else []
            threads = [b * t for b, t in zip(launch.grid, launch.threads, strict=True)]
            kernel(
                *(memory[index] for index in launch.buffers),
                *scalars,
                threads=threads,
                group_size=list(launch.threads),
            )

    def _compiled(self, name: str) -> Any:
        check_matmul2d(self.sources[name], self.device)
        return getattr(self._torch.mps.compile_shader(self.sources[name]), name)


def _check_threads(launch: KernelLaunch, limit: int) -> None:
    """Metal would run nothing, and say nothing."""
    count = math.prod(launch.threads)
    if count > limit:
        raise NoLowering(
            f"{launch.kernel} has {count} threads, of which this GPU has registers for {limit}",
            help="use fewer threads, or smaller fragments",
        )
