"""Tests on a GPU, where there is none.

The first of each test's parameters, and one in eight of the others, run in the emulator; the rest
compile their kernels, and are reported as compiled.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import pytest

from tests.gpu.machine import ARCHITECTURES, EMULATED, HAS_GPU
from tvmtile.jit.backends import CudaAdapter
from tvmtile.jit.cuda import compile_source


@cache
def compiled(source: str, arch: str) -> int:
    """The size of a kernel's machine code; many parameters of tests lead to the same source."""
    return len(compile_source(source, arch).cubin)


def architectures_of(source: str, first: str, every: bool) -> list[str]:
    """The architectures to compile a kernel for: all from the first on, or that and one other.

    The other is chosen by the source, so that the kernels of the tests cover them all. Instructions of
    one architecture leave no other.
    """
    if _OF_ONE_ARCHITECTURE in source:
        return [first]
    later = list(ARCHITECTURES[ARCHITECTURES.index(first) :])
    if every or len(later) < 3:
        return later
    return [first, later[1 + crc32(source.encode()) % (len(later) - 1)]]


_OF_ONE_ARCHITECTURE = "wgmma"
_EMULATED_ONE_IN = 8


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests that run in the emulator."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    seen: set[str] = set()
    for item in here:
        test = item.nodeid.partition("[")[0]
        chosen = test not in seen or crc32(item.nodeid.encode()) % _EMULATED_ONE_IN == 0
        seen.add(test)
        if chosen or config.getoption("tier") == "nightly":
            item.add_marker(pytest.mark.emulated)


@pytest.fixture(autouse=True)
def _emulate(request: pytest.FixtureRequest) -> Iterator[None]:
    token = EMULATED.set(request.node.get_closest_marker("emulated") is not None)
    yield
    EMULATED.reset(token)


class Compiled(pytest.skip.Exception):
    """Ends a test whose kernel was compiled, where nothing can run it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report what was compiled and not run as that."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(Compiled):
        report.outcome, report.longrepr = "passed", None
        report.user_properties.append(("compiled", True))
    return report


@pytest.fixture(autouse=True)
def _compile_instead_of_running(pytestconfig: pytest.Config) -> Iterator[None]:
    def compile_only(adapter: CudaAdapter, *args: Any) -> NoReturn:
        source = adapter.source(kernel_only=True)
        every = pytestconfig.getoption("tier") != "fast"
        chosen = architectures_of(source, adapter.arch, every)
        for arch in chosen:
            assert compiled(source, arch)
        raise Compiled(f"there is no NVIDIA GPU; compiled for {', '.join(chosen)}")

    # The fixture monkeypatch would have every kernel compiled again: see tests/conftest.py.
    with pytest.MonkeyPatch.context() as patched:
        if not HAS_GPU:
            patched.setattr(CudaAdapter, "_refuse", compile_only)
        yield
