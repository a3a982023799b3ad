"""Work of a cluster's blocks together: `T.cluster_sync`, its steps, `T.block_rank_in_cluster`."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import CudaEmulationError

SM90 = {"kind": "cuda", "arch": "sm_90a"}
STEPS = {
    "sync": [T.cluster_sync],
    "steps": [T.cluster_arrive, T.cluster_wait],
    "relaxed": [T.cluster_arrive_relaxed, T.cluster_wait],
    "none": [],
}


def exchanging(steps):
    """Each block takes what the other one of its cluster has put into a tensor."""

    @T.prim_func
    def kernel(A: T.Tensor((4, 64), "float32"), S: T.Tensor((4, 64), "float32")):
        with T.Kernel(4, threads=64, cluster_dims=2) as bx:
            for i in T.Parallel(64):
                S[bx, i] = A[bx, i] * 2
            for step in STEPS[steps]:
                step()
            rank = T.block_rank_in_cluster()
            if rank == 0:
                for i in T.Parallel(64):
                    A[bx, i] = S[bx + 1, 63 - i]
            else:
                for i in T.Parallel(64):
                    A[bx, i] = S[bx - 1, 63 - i] + rank

    return kernel


@pytest.mark.full(but=1)
@pytest.mark.parametrize("steps", ["sync", "steps"])
def test_blocks_of_a_cluster_exchange_elements(steps):
    kernel = tvmtile.compile(exchanging(steps), target=SM90, execution_backend="emulator")
    a = torch.randn(4, 64)
    expected = (a * 2).view(2, 2, 64).flip(1, 2).reshape(4, 64) + torch.tensor([0, 1, 0, 1])[
        :, None
    ]
    kernel(a, torch.zeros(4, 64))
    assert torch.equal(a, expected)
    assert kernel.adapter.statistics.cluster_barriers == 4 * 2 * 2


@pytest.mark.full(but=1)
@pytest.mark.parametrize("steps", ["relaxed", "none"])
def test_without_a_barrier_that_orders_them_they_race(steps):
    kernel = tvmtile.compile(exchanging(steps), target=SM90, execution_backend="emulator")
    with pytest.raises(CudaEmulationError, match=r"by T\.cluster_sync\(\)") as caught:
        kernel(torch.randn(4, 64), torch.zeros(4, 64))
    assert caught.value.kind == "race"


def test_it_compiles_for_hopper():
    kernel = tvmtile.compile(exchanging("sync"), target=SM90)
    source = kernel.get_kernel_source()
    assert "barrier.cluster.arrive.release.aligned" in source
    assert "barrier.cluster.wait.acquire.aligned" in source
    assert kernel.cubin
