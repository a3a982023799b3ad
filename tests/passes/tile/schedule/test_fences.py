"""Tiles that threads of a producer store: which fence shows them to the product."""

from __future__ import annotations

import re

import pytest

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import compiled
from tests.programs import catalogue

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
N = 64
FENCE_OF_CONSUMERS = re.compile(
    r"fence_proxy_proxy_async_shared__cta\(\);\s+tvm_builtin_ptx_wgmma_fence"
)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("roles_product", {"dtypes": ("float32", "float16", "float16"), "stages": 3}),
        ("roles_weights_that_are_converted", {"form": "times scales"}),
    ],
)
def test_the_fence_is_that_of_the_threads_that_store(name, given, tmp_path):
    source = compiled(catalogue()[name].case(**given), "sm_90a", tmp_path).get_kernel_source()
    assert re.search(r"fence_proxy_proxy_async_shared__cta\(\);\s+\w+_warp_sync\(\);", source)
    assert not FENCE_OF_CONSUMERS.search(source)


def by_hand(fence):
    """A producer of one's own, with a fence somewhere."""

    @T.prim_func
    def main(
        A: T.Tensor((N, 4 * N), "float32"),
        B: T.Tensor((N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((2, N, N), "float16")
            b = T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            full, empty = T.alloc_barrier([128, 128]), T.alloc_barrier([128, 128])
            come = T.alloc_barrier(256)
            T.tma_copy(B, b, barrier=come)
            T.barrier_arrive(come)
            T.barrier_wait(come, 0)
            tx = T.get_thread_binding()
            if tx < 128:
                T.clear(c)
                for k in T.serial(4):
                    T.barrier_wait(full[k % 2], k // 2 % 2)
                    T.gemm(a[k % 2, 0:N, 0:N], b, c)
                    T.barrier_arrive(empty[k % 2])
                T.copy(c, C)
            else:
                for k in T.serial(4):
                    T.barrier_wait(empty[k % 2], k // 2 % 2 ^ 1)
                    if fence == "in front":
                        T.fence_proxy_async()
                    T.copy(A[0, k * N], a[k % 2, 0:N, 0:N])
                    if fence == "of a few" and tx < 160:
                        T.fence_proxy_async()
                    if fence == "behind":
                        T.fence_proxy_async()
                    T.barrier_arrive(full[k % 2])
                    if fence == "too late":
                        T.fence_proxy_async()

    return main


@pytest.mark.full(but=2)
@pytest.mark.parametrize("fence", ["behind", "none", "in front", "of a few", "too late"])
def test_a_fence_of_the_threads_that_store_stands_before_they_arrive(fence):
    """Elsewhere it orders nothing, and those who multiply have one of their own."""
    source = tvmtile.compile(by_hand(fence), target=HOPPER).get_kernel_source()
    loop = source[source.rindex("mbarrier_wait((&(full") :]
    assert bool(FENCE_OF_CONSUMERS.search(loop)) == (fence != "behind")
