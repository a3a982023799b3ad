"""The GPU that the tests of this directory run on, and what they do where there is none.

A test compiles its program, makes tensors on `DEVICE`, calls the kernel and compares. Without a GPU
the kernel is compiled to machine code of every architecture, and the call skips the rest of the test:
so all of these kernels are known to compile.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import tvmtile
from tvmtile.jit.cuda import compile_source

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a")
"""One of each generation with tensor cores: Ampere, Ada, Hopper, Blackwell."""
HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


def on_gpu(program: Any, arch: str = "sm_80", **options: Any) -> Any:
    """Compile a program for the GPU that is here; where none is, for all architectures.

    Parameters
    ----------
    program : tvm.tirx.PrimFunc
        A tile program.
    arch : str
        The first architecture that can run it. Without a GPU it is lowered for this one, and the
        source compiled for this one and all later ones.
    **options
        As of `tvmtile.compile`.
    """
    if HAS_GPU:
        return tvmtile.compile(program, target="cuda", **options)
    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": arch}, **options)
    for later in ARCHITECTURES[ARCHITECTURES.index(arch) :]:
        _compiled(kernel.get_kernel_source(), later)
    return _NotRun(kernel)


@cache
def _compiled(source: str, arch: str) -> None:
    """Many parameters of tests lead to the same source."""
    assert compile_source(source, arch).cubin


class _NotRun:
    """A kernel that skips the test when it is called."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, *args: Any) -> None:
        pytest.skip("compiled for all architectures; there is no NVIDIA GPU to run it on")


def random(*shape: int, dtype: str) -> torch.Tensor:
    """A tensor of normal numbers, or of integers from -8 to 7 (from 0 if unsigned), on `DEVICE`."""
    if "int" in dtype:
        low = 0 if dtype.startswith("uint") else -8
        return torch.randint(low, 8, shape, device=DEVICE).to(getattr(torch, dtype))
    return torch.randn(shape, device=DEVICE).to(getattr(torch, dtype))
