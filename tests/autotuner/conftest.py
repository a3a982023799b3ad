"""Fixtures of the autotuner's tests: a cache of their own, and a child that is this process."""

from __future__ import annotations

import pickle
import shutil

import pytest

from tvmtile.autotuner import child, measuring
from tvmtile.cache import cache_directory


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Processes that run other tests have theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMTILE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def no_times(own_cache):
    """Nothing is known from another test."""
    shutil.rmtree(cache_directory() / "tuned", ignore_errors=True)


class _ThisProcess:
    """Does a task as a child does, between the bytes that come in and those that go out."""

    is_alive = True

    def __init__(self, has_torch=True):
        pass

    def close(self):
        pass

    def run(self, function, *args, timeout):
        return pickle.loads(child._done(pickle.dumps((function, args))))


@pytest.fixture
def in_this_process(monkeypatch):
    """Another process takes seconds to start: it is for tests of what may happen to it."""
    monkeypatch.setattr("tvmtile.cache.settings._switched", None)  # a task sets it
    for module in (child, measuring):
        monkeypatch.setattr(module, "borrow", _ThisProcess)
        monkeypatch.setattr(module, "give_back", lambda child: None)
