"""`T.copy_cluster`, `T.tma_copy(cluster_mask=)` and barriers of a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.emulator.cuda.planted import subject
from tvmtile.emulator.cuda import compile_cuda
from tvmtile.errors import CudaEmulationError

SM90 = {"kind": "cuda", "arch": "sm_90a"}


def emulated(func, *args, **options):
    kernel = tvmtile.compile(func, target=SM90, execution_backend="emulator", **options)
    kernel(*args)
    return kernel


def passed_on(rows, columns, wide, dtype="float32", *, has_barrier=True):
    """Each block gives its tile to the other one of its cluster, which stores it."""

    @T.prim_func
    def kernel(A: T.Tensor((4, rows, columns), dtype), B: T.Tensor((4, rows, columns), dtype)):
        with T.ClusterKernel(4, threads=64, cluster_dims=2) as bx:
            mine = T.alloc_shared((rows, wide), dtype)
            other = T.alloc_shared((rows, wide), dtype)
            full = T.alloc_cluster_barrier([1])
            rank = T.block_rank_in_cluster()
            T.copy(A[bx, 0:rows, 0:columns], mine[0:rows, 0:columns])
            tile = mine[0:rows, 0:columns]
            if has_barrier:
                T.copy_cluster(
                    tile, other[0:rows, 0:columns], dst_block=1 - rank, remote_barrier=full
                )
                T.mbarrier_wait_parity(full, 0)
            else:
                T.copy_cluster(tile, other[0:rows, 0:columns], dst_block=1 - rank)
                T.cluster_sync()
            T.copy(other[0:rows, 0:columns], B[bx, 0:rows, 0:columns])

    return kernel


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("rows", "columns", "wide", "dtype", "instruction"),
    [
        (4, 32, 32, "float32", "cp.async.bulk.shared::cluster.shared::cta"),  # one run
        (4, 32, 64, "float16", "cp.async.bulk.shared::cluster.shared::cta"),  # a run a row
        (4, 31, 64, "float32", "st.shared::cluster.b32"),  # rows of 124 bytes
        (3, 5, 5, "int8", "st.shared::cluster.b8"),
    ],
)
def test_a_tile_goes_to_another_block(rows, columns, wide, dtype, instruction):
    a = torch.randint(-9, 9, (4, rows, columns)).to(getattr(torch, dtype))
    b = torch.zeros_like(a)
    kernel = emulated(passed_on(rows, columns, wide, dtype), a, b)
    assert torch.equal(b, a.view(2, 2, rows, columns).flip(1).view_as(a))
    source = kernel.get_kernel_source()
    assert instruction in source
    is_fenced = ".release.cluster.shared::cluster.b64" in source
    assert is_fenced == instruction.startswith("st.")  # what threads store there has to be seen


@pytest.mark.parametrize(
    ("scope", "of_block"),
    [
        (".release.cluster.shared", ".shared"),
        ("acquire.cluster.shared", "acquire.cta.shared"),
    ],
)
@pytest.mark.parametrize("stored", ["there", "in a tensor"])
def test_what_is_told_at_the_scope_of_a_block_alone_is_a_race(stored, scope, of_block):
    """The arrival, or the wait, that another block's stores need is found where it is a block's own."""
    if stored == "there":
        a = torch.randn(4, 4, 31)
        expected = a.view(2, 2, 4, 31).flip(1).view_as(a)
        case = subject(passed_on(4, 31, 64), (a, torch.empty_like(a)), expected.double())
    else:
        sums, stores = torch.zeros(4, dtype=torch.int32), torch.zeros(4, 64, dtype=torch.int32)
        expected = torch.tensor([125.0, 0, 125, 0]).double()
        case = subject(counting(128), (sums, stores), expected)
        case = replace(case, result=sums, added=True)
    case.run(compile_cuda(case.source, arch=case.arch).kernel(case.name))
    assert scope in case.source
    text = case.source.replace(scope, of_block)
    with pytest.raises(CudaEmulationError) as caught:
        case.run(compile_cuda(text, arch=case.arch).kernel(case.name))
    assert caught.value.kind == "race"


def test_without_an_mbarrier_a_barrier_of_the_cluster_orders_it():
    a, b = torch.randn(4, 4, 32), torch.zeros(4, 4, 32)
    kernel = emulated(passed_on(4, 32, 32, has_barrier=False), a, b)
    assert torch.equal(b, a.view(2, 2, 4, 32).flip(1).view_as(a))
    assert "st.shared::cluster.b32" in kernel.get_kernel_source()


def multicast(mask, *, rounds=1, split=False):
    @T.prim_func
    def kernel(
        A: T.Tensor((8, rounds * 16, 64), "float16"), B: T.Tensor((8, rounds * 16, 64), "float16")
    ):
        with T.ClusterKernel(8, threads=64, cluster_dims=4) as bx:
            tile = T.alloc_shared((16, 64), "float16")
            full = T.alloc_cluster_barrier(1)
            for k in T.serial(rounds):
                if split:
                    T.tma_copy(A[bx, k * 16, 0], tile, barrier=full, cluster_mask=mask)
                    if T.get_thread_binding() == 0:
                        T.mbarrier_arrive(full)
                    T.mbarrier_wait_parity(full, k % 2)
                else:
                    T.copy_cluster(A[bx, k * 16, 0], tile, cluster_mask=mask)
                T.copy(tile, B[bx, k * 16, 0])
                if split:
                    T.cluster_sync()

    return kernel


@pytest.mark.full
@pytest.mark.parametrize(("mask", "split"), [(0b0011, True), (0b1010, False), (0b1111, False)])
def test_blocks_of_a_mask_get_the_tile_of_the_first(mask, split):
    a = torch.randn(8, 48, 64).half()
    b = torch.zeros_like(a)
    kernel = emulated(multicast(mask, rounds=3, split=split), a, b)
    members = [rank for rank in range(4) if mask >> rank & 1]
    for block in range(8):
        first = block - block % 4 + members[0]
        assert torch.equal(b[block], a[first if block % 4 in members else block])
    assert ".multicast::cluster" in kernel.get_kernel_source()
    assert tvmtile.compile(multicast(mask, split=split), target=SM90).cubin


@pytest.mark.full
@pytest.mark.parametrize("stages", [0, 2])
def test_blocks_of_a_cluster_multiply_by_one_tile(stages):
    @T.prim_func
    def matmul(
        A: T.Tensor((64, 128), "float16"),
        B: T.Tensor((128, 128), "float16"),
        C: T.Tensor((64, 128), "float32"),
    ):
        with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=stages):
                T.copy_cluster(A[0, k * 64], a, cluster_mask=0b11)
                T.copy(B[k * 64, bx * 64], b)
                T.gemm(a, b, c)
            T.copy(c, C[0, bx * 64])

    a, b, c = torch.randn(64, 128).half(), torch.randn(128, 128).half(), torch.zeros(64, 128)
    kernel = emulated(matmul, a, b, c)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-3, atol=1e-3)
    assert "wgmma" in kernel.get_kernel_source()


def counting(arrivals):
    """The first block of a cluster waits for arrivals of all threads."""

    @T.prim_func
    def kernel(A: T.Tensor((4,), "int32"), S: T.Tensor((4, 64), "int32")):
        with T.ClusterKernel(4, threads=64, cluster_dims=2) as bx:
            bar = T.alloc_cluster_barrier([arrivals])
            tx = T.get_thread_binding()
            S[bx, tx] = tx
            T.mbarrier_arrive(bar, 0)
            if T.block_rank_in_cluster() == 0:
                T.mbarrier_wait_parity(bar, 0)
                if tx == 0:
                    A[bx] = S[bx, 63] + S[bx + 1, 62]

    return kernel


def test_blocks_arrive_at_the_barrier_of_another_one():
    a, s = torch.zeros(4, dtype=torch.int32), torch.zeros(4, 64, dtype=torch.int32)
    kernel = emulated(counting(128), a, s)
    assert a.tolist() == [125, 0, 125, 0]
    source = kernel.get_kernel_source()
    assert "mbarrier.arrive.release.cluster.shared::cluster.b64" in source
    assert "mbarrier.try_wait.parity.acquire.cluster" in source


def test_more_arrivals_than_a_barrier_expects_are_found():
    s = torch.zeros(4, 64, dtype=torch.int32)
    with pytest.raises(CudaEmulationError, match=r"thread \(63, 0, 0\) writes S_ptr.63.") as caught:
        emulated(counting(64), torch.zeros(4, dtype=torch.int32), s)
    assert caught.value.kind == "race"  # the phase is over before all have come
