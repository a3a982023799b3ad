"""What the tests on a GPU do where there is none: compile their kernels, and skip the rest."""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn
from zlib import crc32

import pytest

from tests.gpu.machine import ARCHITECTURES, HAS_GPU
from tvmtile.jit.cuda import CudaAdapter, compile_source


@cache
def compiled(source: str, arch: str) -> int:
    """The size of a kernel's machine code; many parameters of tests lead to the same source."""
    return len(compile_source(source, arch).cubin)


def architectures_of(source: str, first: str, every: bool) -> list[str]:
    """The architectures to compile a kernel for: all from the first on, or that and one other.

    The other is chosen by the source, so that the kernels of the tests cover them all.
    """
    later = list(ARCHITECTURES[ARCHITECTURES.index(first) :])
    if every or len(later) < 3:
        return later
    return [first, later[1 + crc32(source.encode()) % (len(later) - 1)]]


@pytest.fixture(autouse=True)
def _compile_instead_of_running(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    def compile_and_skip(adapter: CudaAdapter, *args: Any) -> NoReturn:
        source = adapter.source(kernel_only=True)
        every = pytestconfig.getoption("all_architectures")
        chosen = architectures_of(source, adapter.arch, every)
        for arch in chosen:
            assert compiled(source, arch)
        pytest.skip(f"there is no NVIDIA GPU; compiled for {', '.join(chosen)}")

    if not HAS_GPU:
        monkeypatch.setattr(CudaAdapter, "_refuse", compile_and_skip)
