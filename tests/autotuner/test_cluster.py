"""A cluster compiles for the machine that measures."""

from __future__ import annotations

import os

import pytest
import torch

from tests.autotuner.kernels import QUICK, tuner
from tvmtile.cache import current_store

pytestmark = pytest.mark.full  # other processes compile

distributed = pytest.importorskip("distributed")


@pytest.fixture
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_two_workers_of_dask_compile(client, tmp_path, monkeypatch):
    """The workers keep what they compile elsewhere: it comes back by itself."""
    client.run(os.environ.update, TVMTILE_CACHE_DIR=str(tmp_path / "theirs"))
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setattr("tvmtile.jit.artifact.current_store", current_store)
    ways = {"way": ["right", "wrong", "refused", "also right"]}
    tuned = tuner(ways, ref_prog=lambda A: A * 2)
    result = tuned.run(executor=client.get_executor(pure=False), **QUICK)
    statuses = [trial.status for trial in result.trials]
    assert statuses == ["ok", "wrong result", "not compiled", "ok"]
    x = torch.randn(64)
    assert torch.equal(result.kernel(x), 2 * x)
    # The two right ones are one program.
    assert len(list((tmp_path / "theirs" / "kernels").iterdir())) == 2
    assert len(list((tmp_path / "ours" / "kernels").iterdir())) == 1  # the best one
