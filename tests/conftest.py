"""Fixtures of all tests: the machine's marks, golden files, and which tier runs."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from itertools import islice
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from platformdirs import user_cache_path

TIERS = {"fast": 2, "full": 6, "nightly": 200}
"""The tiers, each with those before it, and how many examples a test with `hypothesis.given` draws."""
for _tier, _examples in TIERS.items():
    # How fast a machine draws examples and runs them says nothing of what is tested.
    settings.register_profile(
        _tier,
        max_examples=_examples,
        derandomize=_tier != "nightly",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )
    parser.addoption(
        "--tier",
        choices=TIERS,
        default="fast",
        help="fast: each value of a parameter once, two architectures; full: all parameters and "
        "architectures, and tests marked so; nightly: all tests, and all of tests/gpu emulated",
    )
    parser.addoption(
        "--part",
        default="1/1",
        help="1/4: of four parts of the tests, which take about equal time, the first",
    )
    parser.addoption(
        "--fuzz-seeds",
        type=int,
        help="how many random programs of tests/fuzz to run; 30 on the CPU and 10 on each emulator "
        "where absent",
    )


@pytest.fixture(scope="session")
def tier(pytestconfig: pytest.Config) -> str:
    """The tier that runs: fast, full or nightly."""
    return pytestconfig.getoption("tier")


@pytest.fixture
def own_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the tables of operators and lowerings: a test may add its own, which end with it."""
    from tvmtile.ir import operators
    from tvmtile.tileop import registry

    registry._import_lowerings()
    monkeypatch.setattr(operators, "_OPERATORS", dict(operators._OPERATORS))
    table = {key: list(candidates) for key, candidates in registry._LOWERINGS.items()}
    monkeypatch.setattr(registry, "_LOWERINGS", table)


def pytest_configure(config: pytest.Config) -> None:
    """Compile what names no target for the CPU, on a machine with a GPU too.

    What the tests compile is kept where every clone of this user finds it, and not in the user's own
    cache, whose entries it would push out.
    """
    settings.load_profile(config.getoption("tier"))
    os.environ.setdefault("TVMTILE_TARGET", "llvm")
    kept = user_cache_path("tvmtile-tests", appauthor=False)
    os.environ.setdefault("TVMTILE_CACHE_DIR", str(kept))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests, once collected, stay to the end: the garbage collector need not see them.

    It would go through all of it again and again: a quarter of the time of collection, and more than
    a twentieth of that of the tests. Of what these leave, little is in cycles.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


@pytest.fixture
def sources_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources count as those that this process runs: a checkout may change while tests run."""
    from tvmtile import _loading

    monkeypatch.setattr(_loading, "STARTED", time.time())


@pytest.fixture(autouse=True)
def _compile_what_is_patched(request: pytest.FixtureRequest) -> None:
    """A test that patches the compiler is not given what was compiled without its patches."""
    if "monkeypatch" in request.fixturenames:
        monkeypatch = request.getfixturevalue("monkeypatch")
        monkeypatch.setattr("tvmtile.jit.artifact.current_store", lambda: None)


@pytest.fixture(autouse=True)
def _verify_between_passes() -> Iterator[None]:
    """Check what must hold between the passes, in every kernel that a test compiles."""
    import tvm

    from tvmtile.passes import Verifier

    with tvm.transform.PassContext(instruments=[Verifier()]):
        yield


@pytest.hookimpl(trylast=True)  # what is left of -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _skip_what_is_missing(items)
    kept = _of_part(_of_tier(items, config.getoption("tier")), config.getoption("part"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def _of_tier(items: list[pytest.Item], tier: str) -> set[str]:
    """Names of the tests that run in a tier: a mark says the first that a test runs in."""
    later = list(TIERS)[list(TIERS).index(tier) + 1 :]
    marks = {item: [mark for mark in map(item.get_closest_marker, later) if mark] for item in items}
    items = [item for item in items if all("but" in mark.kwargs for mark in marks[item])]
    return _covering(items) if tier == "fast" else {item.nodeid for item in items}


def _of_part(names: set[str], part: str) -> set[str]:
    """The names of one part, by a hash: each case is in one."""
    number, count = map(int, part.split("/"))
    return {name for name in names if crc32(name.encode()) % count == number - 1}


def _covering(items: list[pytest.Item]) -> set[str]:
    """Names of tests that have each value of a parameter in one which runs, if any with it does.

    Of those marked `full(but=2)` the first two.
    """
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    limits: dict[str, int | None] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        tests[name].append(item)
        mark = item.get_closest_marker("full")
        limits[name] = mark.kwargs["but"] if mark else None
    return {case for name, cases in tests.items() for case in islice(_cover(cases), limits[name])}


def _cover(items: list[pytest.Item]) -> Iterator[str]:
    """Take the test with the most values that are missing; of equals, values that were taken less."""
    values = {item: _values(item) for item in items}
    runs = {item: item.get_closest_marker("skip") is None for item in items}
    emulated = {item: item.get_closest_marker("emulated") is not None for item in items}
    taken: Counter[object] = Counter()

    def worth(item: pytest.Item) -> tuple[bool, int, bool, int]:
        missing = sum(not taken[value] for value in values[item])
        return runs[item], missing, emulated[item], -sum(taken[value] for value in values[item])

    while left := [item for item in items if not all(taken[value] for value in values[item])]:
        best = max(left, key=worth)
        yield best.nodeid
        taken.update(values[best])


def _values(item: pytest.Item) -> set[object]:
    """The values given to a test; of a parameter with named fields, each of these."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return {None}
    named = [value for value in callspec.params.values() if hasattr(value, "_asdict")]
    values = {(at, name) for at, name in enumerate(callspec._idlist) if name not in map(str, named)}
    return values.union(*(value._asdict().items() for value in named))


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """A test that could only compile its kernels is neither passed nor skipped."""
    if report.when == "call" and report.passed and ("compiled", True) in report.user_properties:
        return "compiled", "c", "COMPILED"
    return None


def _skip_what_is_missing(items: list[pytest.Item]) -> None:
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
