"""Groups of the blocks of a cluster that hand tiles over at each other's mbarriers."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import CudaEmulationError, DataRace

SM90 = {"kind": "cuda", "arch": "sm_90a"}
STAGES, TILE = 2, 64


def multicast_product(turns=1, free="all", order="consumers", rows=128, columns=128, inner=256):
    """Two blocks multiply a tile of A, which the first one loads for both, by their own ones of B.

    `free` says who is told that a stage is free: `all` blocks, the block's `own` producer, the `other`
    block's, or the `first` one. The branch of the consumers stands in front, or that of the producers.
    """
    steps = inner // TILE

    @T.macro
    def load(A, B, a, b, full, empty, bx, by, turn):
        for k in range(steps):
            n = turn * steps + k
            if free != "first" or T.block_rank_in_cluster() == 0:
                T.mbarrier_wait_parity(empty[n % STAGES], (n // STAGES + 1) % 2)
            T.tma_copy(
                A[by * TILE, k * TILE], a[n % STAGES], barrier=full[n % STAGES], cluster_mask=3
            )
            T.tma_copy(B[k * TILE, bx * TILE], b[n % STAGES], barrier=full[n % STAGES])
            T.mbarrier_arrive(full[n % STAGES])

    @T.macro
    def multiply(C, a, b, c, full, empty, bx, by, turn):
        T.clear(c)
        for k in range(steps):
            n = turn * steps + k
            T.mbarrier_wait_parity(full[n % STAGES], n // STAGES % 2)
            T.gemm(a[n % STAGES], b[n % STAGES], c)
            if free == "all":
                for rank in T.unroll(2):
                    T.mbarrier_arrive(empty[n % STAGES], rank)
            elif free == "first":
                T.mbarrier_arrive(empty[n % STAGES], 0)
            else:
                own = T.block_rank_in_cluster()
                T.mbarrier_arrive(empty[n % STAGES], own if free == "own" else 1 - own)
        T.copy(c, C[by * TILE, bx * TILE])

    @T.prim_func
    def kernel(
        A: T.Tensor((rows, inner), "float16"),
        B: T.Tensor((inner, columns), "float16"),
        C: T.Tensor((rows, columns), "float32"),
    ):
        grid = (columns // TILE, rows // TILE // turns)
        with T.ClusterKernel(*grid, threads=256, cluster_dims=2) as (bx, by):
            a = T.alloc_shared((STAGES, TILE, TILE), "float16")
            b = T.alloc_shared((STAGES, TILE, TILE), "float16")
            c = T.alloc_fragment((TILE, TILE), "float32")
            full = T.alloc_barrier([128] * STAGES)
            empty = T.alloc_cluster_barrier([128 if free in ("own", "other") else 256] * STAGES)
            for turn in T.serial(turns):
                row = by * turns + turn
                if order == "consumers":
                    if T.get_thread_binding() < 128:
                        multiply(C, a, b, c, full, empty, bx, row, turn)
                    else:
                        load(A, B, a, b, full, empty, bx, row, turn)
                else:
                    with T.ws(1):
                        load(A, B, a, b, full, empty, bx, row, turn)
                    with T.ws(0):
                        multiply(C, a, b, c, full, empty, bx, row, turn)

    return kernel


def marked(tensor):
    """A block stores to a tensor, and tells the others of its cluster, which load a tile of `A`."""

    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
        with T.ClusterKernel(2, threads=128, cluster_dims=2):
            tile = T.alloc_shared((64, 64), "float16")
            told = T.alloc_cluster_barrier(128)
            came = T.alloc_barrier(1)
            for i in T.Parallel(64):
                (A if tensor == "A" else B)[0, i] = 1
            T.mbarrier_arrive(told, 1 - T.block_rank_in_cluster())
            T.mbarrier_wait_parity(told, 0)
            T.tma_copy(A[0, 0], tile, barrier=came)
            if T.get_thread_binding() == 0:
                T.mbarrier_arrive(came)
            T.mbarrier_wait_parity(came, 0)

    return kernel


def passed_on(free="other", rounds=4):
    """A group sends tiles to the other block of its cluster, where another group takes them."""

    @T.prim_func
    def kernel(
        A: T.Tensor((4, rounds, 16, 32), "float16"), B: T.Tensor((4, rounds, 16, 32), "float16")
    ):
        with T.ClusterKernel(4, threads=256, cluster_dims=2) as bx:
            mine = T.alloc_shared((16, 32), "float16")
            given = T.alloc_shared((16, 32), "float16")
            full = T.alloc_cluster_barrier(1)
            empty = T.alloc_cluster_barrier(128)
            rank = T.block_rank_in_cluster()
            if T.get_thread_binding() >= 128:
                for k in T.serial(rounds):
                    T.mbarrier_wait_parity(full, k % 2)
                    T.copy(given, B[bx, k, 0, 0])
                    if free == "other":
                        T.mbarrier_arrive(empty, 1 - rank)
                    else:
                        T.mbarrier_arrive(empty)
            else:
                for k in T.serial(rounds):
                    T.mbarrier_wait_parity(empty, (k + 1) % 2)
                    T.copy(A[bx, k, 0, 0], mine)
                    T.copy_cluster(mine, given, dst_block=1 - rank, remote_barrier=full)

    return kernel


def emulated(program):
    return tvmtile.compile(program, target=SM90, execution_backend="emulator")


@pytest.fixture
def seeds(tier):
    """Orders in which blocks, groups and copies come."""
    return range(20 if tier == "nightly" else 4)


@pytest.mark.full
@pytest.mark.parametrize("order", ["consumers", "producers"])
@pytest.mark.parametrize("turns", [1, 2])
def test_a_tile_for_two_blocks_is_loaded_when_both_are_through_with_the_one_before(
    turns, order, seeds
):
    kernel = emulated(multicast_product(turns, order=order, rows=TILE * turns))
    a, b = torch.randn(TILE * turns, 256).half(), torch.randn(256, 128).half()
    for seed in seeds:
        c = torch.zeros(TILE * turns, 128)
        kernel.adapter.seed = seed
        kernel(a, b, c)
        torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-3, atol=1e-3)
    source = kernel.get_kernel_source()
    assert "mbarrier.arrive.shared::cluster.b64" in source  # no fence of the GPU for each tile
    assert "arrive.release.cluster.shared::cluster" not in source
    assert "__syncthreads" not in source[source.index("wgmma") :]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("free", ["own", "other", "first"])
def test_a_tile_that_its_readers_do_not_free_is_a_race(free):
    with pytest.raises(DataRace, match="written by threads 128 to 255 .* read by threads 0 to 127"):
        tvmtile.compile(multicast_product(free=free), target=SM90)


@pytest.mark.full
@pytest.mark.parametrize("free", ["own", "other"])
def test_where_the_producers_stand_in_front_the_emulator_finds_it(free):
    kernel = emulated(multicast_product(2, free, "producers"))
    a, b = torch.randn(128, 256).half(), torch.randn(256, 128).half()
    with pytest.raises(CudaEmulationError) as caught:
        kernel(a, b, torch.zeros(128, 128))
    # The tile is written too early, or a phase ends that a producer has still to wait for.
    assert caught.value.kind in {"race", "protocol"}


@pytest.mark.full(but=1)
@pytest.mark.parametrize("tensor", ["A", "B"])
def test_what_threads_wrote_to_a_tensor_is_published_where_the_kernel_reads_it(tensor):
    source = tvmtile.compile(marked(tensor), target=SM90).get_kernel_source()
    assert ("mbarrier.arrive.release.cluster" in source) == (tensor == "A")
    assert ("mbarrier.try_wait.parity.acquire.cluster" in source) == (tensor == "A")


@pytest.mark.full
def test_a_tile_is_sent_when_the_block_that_gets_it_has_freed_it(seeds):
    kernel = emulated(passed_on())
    a = torch.randn(4, 4, 16, 32).half()
    for seed in seeds:
        b = torch.zeros_like(a)
        kernel.adapter.seed = seed
        kernel(a, b)
        assert torch.equal(b, a.view(2, 2, 4, 16, 32).flip(1).view_as(a))
    assert "arrive.release.cluster.shared::cluster" not in kernel.get_kernel_source()


def test_a_tile_that_the_own_block_has_freed_is_not_the_one_that_is_sent():
    with pytest.raises(DataRace, match=r"elements of given\[16, 32\] float16 are written"):
        tvmtile.compile(passed_on("own"), target=SM90)
