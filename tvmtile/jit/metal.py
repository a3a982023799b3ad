"""Metal programs on an Apple GPU, through torch."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir

from tvmtile.codegen.metal import MATMUL2D
from tvmtile.errors import NoLowering, import_optional
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.emulated import RecordedAdapter, is_torch
from tvmtile.jit.launches import KernelLaunch, packed_scalars


class TorchAdapter(RecordedAdapter):
    """Runs a Metal program on torch tensors of an Apple GPU, by `torch.mps.compile_shader`."""

    backend = "torch"
    device = "mps"

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        super().__init__(artifact, params)
        self._torch = import_optional("torch", "torch", "execution_backend='torch'")
        self._kernel = functools.cache(self._compiled)

    def accepts(self, tensor: Any) -> bool:
        """Tell whether it is a torch tensor on the GPU."""
        return is_torch(tensor) and tensor.device.type == self.device

    def offset(self, tensor: Any) -> int:
        """Its start in its storage, which is aligned."""
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


_ROWS, _COLUMNS, _LANES = 16, 32, 32


def check_matmul2d(source: str, device: str) -> None:
    """Compute the product, once, if a kernel multiplies by `matmul2d`.

    Raises
    ------
    NoLowering
        If the result is another one.
    """
    if MATMUL2D in source and not _is_right(device):
        raise NoLowering(
            "this GPU, or its compiler, holds the elements of matmul2d elsewhere than kernels for "
            "Metal 4 do: a product came out wrong",
            help='compile for target="metal"',
        )


@functools.cache
def _is_right(device: str) -> bool:
    torch: Any = import_optional("torch", "torch", "execution_backend='torch'")
    name, source = _kernel()
    generator = torch.Generator().manual_seed(0)
    # Sums of small integers are exact, and no row or column is another one.
    a, b = (torch.randint(-8, 8, (_ROWS, n), generator=generator) for n in (_ROWS, _COLUMNS))
    result = torch.zeros(_ROWS, _COLUMNS, device=device)
    product = getattr(torch.mps.compile_shader(source), name)
    threads = [_LANES, 1, 1]
    given = (x.to(device, torch.float16) for x in (a, b))
    product(*given, result, threads=threads, group_size=threads)
    return bool(torch.equal(result.cpu(), (a @ b).float()))


def _kernel() -> tuple[str, str]:
    """The name of the kernel, and its source."""
    import tvmtile.language as T
    from tvmtile.jit.compiler import compile

    @T.prim_func
    def known_product(
        A: T.Tensor((_ROWS, _ROWS), "float16"),
        B: T.Tensor((_ROWS, _COLUMNS), "float16"),
        C: T.Tensor((_ROWS, _COLUMNS), "float32"),
    ) -> None:
        with T.Kernel(1, threads=_LANES):
            total = T.alloc_fragment((_ROWS, _COLUMNS), "float32")
            T.gemm(A, B, total, clear_accum=True)
            T.copy(total, C)

    kernel: Any = compile(known_product, target="metal4", execution_backend="torch")
    ((name, source),) = kernel.adapter.sources.items()
    return name, source
