"""Asynchronous copies that a kernel writes by thread: groups, mbarriers, predicates."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import DataRace

SM80 = {"kind": "cuda", "arch": "sm_80"}
SM90 = {"kind": "cuda", "arch": "sm_90a"}
STEPS, N = 6, 64


def by_groups():
    """Two tiles: one is copied while the other one is read."""

    @T.prim_func
    def main(A: T.Tensor((STEPS, N * 4), "float32"), C: T.Tensor((STEPS, N * 4), "float32")):
        with T.Kernel(1, threads=N):
            tile = T.alloc_shared((2, N * 4), "float32")
            tx = T.get_thread_binding()
            T.ptx_cp_async(
                T.access_ptr(tile[0, tx * 4], "w", 4), T.access_ptr(A[0, tx * 4], "r", 4), 4
            )
            T.ptx_commit_group()
            for k in T.serial(STEPS):
                if k + 1 < STEPS:
                    T.ptx_cp_async(
                        T.access_ptr(tile[(k + 1) % 2, tx * 4], "w", 4),
                        T.access_ptr(A[k + 1, tx * 4], "r", 4),
                        4,
                    )
                T.ptx_commit_group()
                T.ptx_wait_group(1)
                T.sync_threads()
                for i in T.serial(4):
                    C[k, tx * 4 + i] = tile[k % 2, N * 4 - 1 - (tx * 4 + i)]
                T.sync_threads()

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", SM80], ids=["llvm", "metal", "cuda"])
def test_groups_of_copies(target):
    kernel = runnable(by_groups(), target)
    a = torch.randn(STEPS, N * 4)
    for seed in range(1 if target != SM80 else 4):
        kernel.adapter.seed = seed
        c = torch.zeros_like(a)
        kernel(a, c)
        assert torch.equal(c, a.flip(1))
    if target == SM80:
        assert kernel.adapter.statistics.async_copies == STEPS * N


def on_mbarriers(noinc):
    """One half of the threads copies, the other half reads what has come."""

    @T.prim_func
    def main(A: T.Tensor((STEPS, N * 4), "float32"), C: T.Tensor((STEPS, N * 4), "float32")):
        with T.Kernel(1, threads=2 * N):
            tile = T.alloc_shared((2, N * 4), "float32")
            full, empty = T.alloc_barrier([N] * 2), T.alloc_barrier([N] * 2)
            tx = T.get_thread_binding()
            for k in T.serial(STEPS):
                if tx < N:
                    T.barrier_wait(empty[k % 2], k // 2 % 2 ^ 1)
                    T.ptx_cp_async(
                        T.access_ptr(tile[k % 2, tx * 4], "w", 4),
                        T.access_ptr(A[k, tx * 4], "r", 4),
                        4,
                    )
                    if noinc:
                        T.cp_async_barrier_noinc(full[k % 2])
                    else:
                        T.barrier_arrive(full[k % 2])
                else:
                    T.barrier_wait(full[k % 2], k // 2 % 2)
                    for i in T.serial(4):
                        C[k, (tx - N) * 4 + i] = tile[k % 2, (2 * N - tx) * 4 - 1 - i]
                    T.barrier_arrive(empty[k % 2])

    return main


def test_copies_that_an_mbarrier_completes():
    kernel = tvmtile.compile(on_mbarriers(True), target=SM90, execution_backend="emulator")
    body = kernel.get_kernel_source().rpartition("__global__")[2]
    assert body.count("__syncthreads") == 1  # behind the initialisation
    a, c = torch.randn(STEPS, N * 4), torch.zeros(STEPS, N * 4)
    for seed in range(4):
        kernel.adapter.seed = seed
        kernel(a, c.zero_())
        assert torch.equal(c, a.flip(1))


def test_who_arrives_before_its_copies_have_does_not_hand_them_over():
    with pytest.raises(DataRace, match="before the asynchronous copy into them is waited for"):
        tvmtile.compile(on_mbarriers(False), target=SM90)


@pytest.mark.parametrize("target", ["llvm", SM80], ids=["llvm", "cuda"])
def test_zeros_where_a_predicate_does_not_hold(target):
    @T.prim_func
    def main(A: T.Tensor((N, 8), "float16"), C: T.Tensor((N, 8), "float16")):
        with T.Kernel(1, threads=N):
            tile = T.alloc_shared((N, 8), "float16")
            tx = T.get_thread_binding()
            T.ptx_cp_async(
                T.access_ptr(tile[tx, 0], "w", 8),
                T.access_ptr(A[tx, 0], "r", 8),
                8,
                predicate=tx % 3 > 0,
            )
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            for i in T.serial(8):
                C[tx, i] = tile[tx, i]

    kernel = runnable(main, target)
    a = torch.randn(N, 8).half()
    c = torch.ones_like(a)
    kernel(a, c)
    expected = a * (torch.arange(N) % 3 > 0)[:, None]
    assert torch.equal(c, expected)


def test_addresses_of_buffers_and_regions():
    @T.prim_func
    def main(A: T.Tensor((4, 8), "float32"), C: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=1):
            tile = T.alloc_shared((4, 8), "float32")
            T.ptx_cp_async(T.access_ptr(tile, "w"), T.access_ptr(A[1:2, 4:8], "r"), 4)
            T.ptx_cp_async(
                T.access_ptr(tile[3, 4], "w", ignore_last_ndim=1),
                T.access_ptr(A[2, 0], "r", offset=2),
                2,
            )
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.copy(tile, C)

    kernel = tvmtile.compile(main, target="llvm")
    a, c = torch.randn(4, 8), torch.zeros(4, 8)
    kernel(a, c)
    assert torch.equal(c[0, :4], a[1, 4:])
    assert torch.equal(c[3, :2], a[2, 2:4])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_machine_code(arch):
    assert tvmtile.compile(by_groups(), target={"kind": "cuda", "arch": arch}).cubin
