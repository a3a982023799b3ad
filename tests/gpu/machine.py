"""The GPU that the tests of this directory run on.

A test compiles its program with `on_gpu`, makes tensors on `DEVICE`, calls the kernel and compares.
Where there is no GPU, some tests run in the emulator and the others compile their kernels to machine
code and stop there (see conftest.py): so these kernels compile, on any machine. In the
tier `full` kernels are compiled for every architecture, not two; in `nightly` every test runs in the
emulator.
"""

from __future__ import annotations

import warnings
from contextvars import ContextVar
from typing import Any

import torch

import tvmtile
from tvmtile.errors import TileWarning

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a")
"""One of each generation with tensor cores for bfloat16: Ampere, Ada, Hopper, Blackwell."""
HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
EMULATED = ContextVar("EMULATED", default=False)
"""Whether the test that runs takes the emulator where there is no GPU."""


def on_gpu(program: Any, arch: str = ARCHITECTURES[0], **options: Any) -> Any:
    """Compile a program for the GPU that is here, or for an architecture where there is none.

    Parameters
    ----------
    program : tvm.tirx.PrimFunc
        A tile program.
    arch : str
        The first of `ARCHITECTURES` that has the instructions it needs.
    **options
        As of `tvmtile.compile`.
    """
    if HAS_GPU:
        return tvmtile.compile(program, target="cuda", **options)
    backend = "emulator" if EMULATED.get() else "auto"
    target = {"kind": "cuda", "arch": arch}
    return tvmtile.compile(program, target=target, execution_backend=backend, **options)


class _ByWayOfGpu:
    """A kernel that takes tensors of the CPU: they are copied to the GPU, and what it leaves back."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, *args: Any) -> Any:
        moved = [_moved(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        result = self._kernel(*moved)
        for arg, there in zip(args, moved, strict=True):
            if isinstance(arg, torch.Tensor):
                arg.copy_(there)
        return result.cpu() if isinstance(result, torch.Tensor) else result


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on `DEVICE` with the same strides."""
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE)
    return there.copy_(tensor)


def by_way_of_gpu(program: Any, **options: Any) -> Any:
    """As `on_gpu`; the kernel takes tensors of the CPU.

    What no instruction multiplies is right as well, only slower, so nothing warns of it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "gemm: .* element by element", TileWarning)
        return _ByWayOfGpu(on_gpu(program, **options))


def precision_of_products(dtype: str, compiled: Any) -> str:
    """The narrowest dtype that a product of a dtype goes through: tf32 has the mantissa of float16."""
    return "float16" if dtype == "float32" and compiled is by_way_of_gpu else dtype


def random(*shape: int, dtype: str) -> torch.Tensor:
    """A tensor of normal numbers, or of integers from -8 to 7 (from 0 if unsigned), on `DEVICE`."""
    if "int" in dtype:
        low = 0 if dtype.startswith("uint") else -8
        return torch.randint(low, 8, shape, device=DEVICE).to(getattr(torch, dtype))
    return torch.randn(shape, device=DEVICE).to(getattr(torch, dtype))
