"""The GPU that the tests of this directory run on.

A test compiles its program with `on_gpu`, makes tensors on `DEVICE`, calls the kernel and compares.
Where there is no GPU, the call compiles the kernel to machine code for every architecture and skips the
rest of the test (see conftest.py): so the kernels of these tests compile, on any machine.
"""

from __future__ import annotations

from typing import Any

import torch

import tvmtile

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a")
"""One of each generation with tensor cores for bfloat16: Ampere, Ada, Hopper, Blackwell."""
HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


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
    target = "cuda" if HAS_GPU else {"kind": "cuda", "arch": arch}
    return tvmtile.compile(program, target=target, **options)


def random(*shape: int, dtype: str) -> torch.Tensor:
    """A tensor of normal numbers, or of integers from -8 to 7 (from 0 if unsigned), on `DEVICE`."""
    if "int" in dtype:
        low = 0 if dtype.startswith("uint") else -8
        return torch.randint(low, 8, shape, device=DEVICE).to(getattr(torch, dtype))
    return torch.randn(shape, device=DEVICE).to(getattr(torch, dtype))
