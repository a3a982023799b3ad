"""A cluster compiles for the machine that measures."""

from __future__ import annotations

import os

import pytest
import torch

import tvmtile.language as T
from tvmtile.autotuner import AutoTuner
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


def double(way):
    @T.prim_func
    def double(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            if way == "refused":
                T.copy(A[0:3], B[0:4])
            for i in T.Parallel(64):
                B[i] = A[i] * (3 if way == "wrong" else 2)

    return double


def test_two_workers_of_dask_compile(client, tmp_path, monkeypatch):
    """The workers keep what they compile elsewhere: it comes back by itself."""
    client.run(os.environ.update, TVMTILE_CACHE_DIR=str(tmp_path / "theirs"))
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setattr("tvmtile.jit.artifacts.current_store", current_store)
    tuner = AutoTuner.from_kernel(double, {"way": ["right", "wrong", "refused", "also right"]})
    tuner.set_compile_args(out_idx=-1, target="llvm")
    tuner.set_profile_args(ref_prog=lambda A: A * 2)
    result = tuner.run(warmup=1, rep=3, executor=client.get_executor(pure=False))
    statuses = [trial.status for trial in result.trials]
    assert statuses == ["ok", "wrong result", "not compiled", "ok"]
    x = torch.randn(64)
    assert torch.equal(result.kernel(x), 2 * x)
    # The two right ones are one program.
    assert len(list((tmp_path / "theirs" / "kernels").iterdir())) == 2
    assert len(list((tmp_path / "ours" / "kernels").iterdir())) == 1  # the best one
