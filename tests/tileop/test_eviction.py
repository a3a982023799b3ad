"""`eviction_policy=` of copies: what the L2 cache is told, and by whom it can be told."""

from __future__ import annotations

import warnings

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileWarning

SM90 = {"kind": "cuda", "arch": "sm_90a"}


def copied(policy, impl="tma", *, ways=("load", "store", "begun")):
    """A tile goes to shared memory by one of three copies, and back."""

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float16")
            if "begun" in ways:
                bar = T.alloc_barrier(1)
                T.tma_copy(A, tile, barrier=bar, eviction_policy=policy)
                if T.get_thread_binding() == 0:
                    T.mbarrier_arrive(bar)
                T.mbarrier_wait_parity(bar, 0)
            if "load" in ways:
                T.copy(A, tile, eviction_policy=policy, impl=impl)
            T.copy(tile, B, eviction_policy=policy if "store" in ways else None, impl=impl)

    return kernel


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("policy", "told", "hints"),
    [(1, "first", 3), ("evict_first", "first", 3), (2, "last", 3), ("evict_normal", "", 0)],
)
def test_copies_by_tensor_maps_tell_the_cache(policy, told, hints):
    a, b = torch.randn(64, 64).half(), torch.zeros(64, 64).half()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TileWarning)
        kernel = tvmtile.compile(copied(policy), target=SM90, execution_backend="emulator")
    kernel(a, b)
    assert torch.equal(a, b)
    body = kernel.get_kernel_source().rpartition("__global__")[2]
    assert body.count(f"L2__evict_{told}") == hints
    assert body.count("_L2__cache_hint") == hints
    assert tvmtile.compile(copied(policy), target=SM90).cubin


@pytest.mark.full
def test_a_multicast_tells_the_cache():
    @T.prim_func
    def kernel(A: T.Tensor((2, 64, 64), "float16"), B: T.Tensor((2, 64, 64), "float16")):
        with T.Kernel(2, threads=128, cluster_dims=2) as block:
            tile = T.alloc_shared((64, 64), "float16")
            T.copy_cluster(A[block, 0, 0], tile, cluster_mask=3, eviction_policy="evict_last")
            T.copy(tile, B[block, 0, 0])

    a, b = torch.randn(2, 64, 64).half(), torch.zeros(2, 64, 64).half()
    compiled = tvmtile.compile(kernel, target=SM90, execution_backend="emulator")
    compiled(a, b)
    assert torch.equal(b, a[:1].expand(2, 64, 64))
    assert "multicast__cluster_L2__cache_hint" in compiled.get_kernel_source()
