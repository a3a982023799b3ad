"""What the tests of whole programs on Metal share: they run on the emulator, on any machine."""

from __future__ import annotations

import shutil

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _compiler():
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("the emulator needs a C++ compiler")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
