"""Fixtures of tests of whole programs on Metal: they run on the emulator, on any machine.

Those that take the fixture `compiled` run on an NVIDIA GPU too, where there is one.
"""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.gpu.machine import by_way_of_gpu
from tests.running import emulated


@pytest.fixture(autouse=True, scope="session")
def _compiler():
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("the emulator needs a C++ compiler")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=["metal", pytest.param("cuda", marks=pytest.mark.gpu)])
def compiled(request):
    """Compile a program for a GPU; its kernel takes tensors of the CPU."""
    return {"metal": emulated, "cuda": by_way_of_gpu}[request.param]
