"""The targets for which a test of several compiles its programs."""

from __future__ import annotations

from functools import partial

import pytest

import tvmtile
from tests.gpu.machine import by_way_of_gpu

_COMPILERS = {
    "llvm": tvmtile.compile,
    "metal": partial(tvmtile.compile, target="metal", execution_backend="emulator"),
    "cuda": by_way_of_gpu,
}


@pytest.fixture(params=["llvm", "metal", pytest.param("cuda", marks=pytest.mark.gpu)])
def compiled(request):
    """Compile a program for the CPU, an NVIDIA GPU, or Metal, whose emulator looks for races too."""
    return _COMPILERS[request.param]
