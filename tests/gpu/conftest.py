"""What the tests on a GPU do where there is none: compile their kernels, and skip the rest."""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

import pytest

from tests.gpu.machine import ARCHITECTURES, HAS_GPU
from tvmtile.jit.cuda import CudaAdapter, compile_source


@cache
def compiled(source: str, arch: str) -> int:
    """The size of a kernel's machine code; many parameters of tests lead to the same source."""
    return len(compile_source(source, arch).cubin)


def compile_and_skip(adapter: CudaAdapter, *args: Any) -> NoReturn:
    first = ARCHITECTURES.index(adapter._compilation.arch)
    for arch in ARCHITECTURES[first:]:
        assert compiled(adapter.source(kernel_only=True), arch)
    pytest.skip("compiled for all architectures; there is no NVIDIA GPU to run it on")


@pytest.fixture(autouse=True)
def _compile_instead_of_running(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_GPU:
        monkeypatch.setattr(CudaAdapter, "_refuse", compile_and_skip)
