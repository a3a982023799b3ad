"""What all tests share: the machine's marks, and golden files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )
    parser.addoption(
        "--all-architectures",
        action="store_true",
        help="compile the kernels of tests/gpu for every architecture where there is no GPU, not two",
    )
    parser.addoption(
        "--emulate-all",
        action="store_true",
        help="run all tests of tests/gpu in the emulator where there is no GPU, not one in eight",
    )
    parser.addoption(
        "--fuzz-seeds",
        type=int,
        help="how many random programs of tests/fuzz to run; 80 on the CPU and 20 on each emulator "
        "where absent",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Compile what names no target for the CPU, on a machine with a GPU too.

    What the tests compile is kept beside what pytest keeps, not in the user's cache.
    """
    os.environ.setdefault("TVMTILE_TARGET", "llvm")
    os.environ.setdefault("TVMTILE_CACHE_DIR", str(config.rootpath / ".pytest_cache" / "tvmtile"))


@pytest.fixture(autouse=True)
def _compile_what_is_patched(request: pytest.FixtureRequest) -> None:
    """A test that patches the compiler is not given what was compiled without its patches."""
    if "monkeypatch" in request.fixturenames:
        monkeypatch = request.getfixturevalue("monkeypatch")
        monkeypatch.setattr("tvmtile.jit.artifacts.current_store", lambda: None)


@pytest.fixture(autouse=True)
def _verify_between_passes() -> Iterator[None]:
    """Check what must hold between the passes, in every kernel that a test compiles."""
    import tvm

    from tvmtile.passes import Verifier

    with tvm.transform.PassContext(instruments=[Verifier()]):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        "gpu": pytest.mark.skip(reason="needs an NVIDIA GPU"),
        "sm90": pytest.mark.skip(reason="needs an NVIDIA GPU of compute capability 9.0"),
        "mps": pytest.mark.skip(reason="needs an Apple GPU"),
    }
    if not any(item.get_closest_marker(mark) for item in items for mark in missing):
        return
    import torch

    if torch.cuda.is_available():
        del missing["gpu"]
        if torch.cuda.get_device_capability()[0] == 9:
            del missing["sm90"]
    if torch.backends.mps.is_available():
        del missing["mps"]
    for item in items:
        for mark, skip in missing.items():
            if item.get_closest_marker(mark):
                item.add_marker(skip)
