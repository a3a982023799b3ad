"""mbarriers: what they order gets no other barrier, what they do not order does."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import DataRace

SM90 = {"kind": "cuda", "arch": "sm_90a"}
STEPS, N = 5, 64


def emulated(program):
    return tvmtile.compile(program, target=SM90, execution_backend="emulator")


def body_of(kernel):
    return kernel.get_kernel_source().rpartition("__global__")[2]


def barriers(kernel):
    return body_of(kernel).count("__syncthreads")


def handed_over(*, waits=True, arrives=True, stages=2):
    """One half of the threads writes tiles, the other one reads them, reversed."""

    @T.prim_func
    def main(A: T.Tensor((STEPS, N), "float32"), C: T.Tensor((STEPS, N), "float32")):
        with T.Kernel(1, threads=2 * N):
            tile = T.alloc_shared((stages, N), "float32")
            full = T.alloc_barrier([N] * stages)
            empty = T.alloc_barrier([N] * stages)
            tx = T.get_thread_binding()
            for k in T.serial(STEPS):
                if tx < N:
                    T.barrier_wait(empty[k % stages], (k // stages) % 2 ^ 1)
                    tile[k % stages, tx] = A[k, tx]
                    T.barrier_arrive(full[k % stages])
                else:
                    if waits:
                        T.mbarrier_wait_parity(full[k % stages], (k // stages) % 2)
                    C[k, tx - N] = tile[k % stages, 2 * N - 1 - tx]
                    if arrives:
                        T.mbarrier_arrive(empty[k % stages])

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_halves_of_a_block_wait_for_each_other_alone(stages):
    kernel = emulated(handed_over(stages=stages))
    assert barriers(kernel) == 1  # behind the initialisation
    a, c = torch.randn(STEPS, N), torch.zeros(STEPS, N)
    for seed in range(3):
        kernel.adapter.seed = seed
        kernel(a, c.zero_())
        assert torch.equal(c, a.flip(1))


def test_what_no_mbarrier_orders_is_a_race():
    with pytest.raises(DataRace, match=r"no barrier can stand between"):
        emulated(handed_over(waits=False))


def test_what_no_mbarrier_orders_gets_a_barrier_where_all_threads_come():
    body = body_of(emulated(handed_over(arrives=False)))
    assert body.count("__syncthreads") == 1
    assert body.index("for (int k") < body.index("__syncthreads")


def exchange(count, who):
    """All threads write a tile, some arrive, all wait and read it; again, with another tile."""

    @T.prim_func
    def main(A: T.Tensor((2, N), "float32"), C: T.Tensor((2, N), "float32")):
        with T.Kernel(1, threads=N):
            tile = T.alloc_shared((2, N), "float32")
            done = T.alloc_barrier(count)
            tx = T.get_thread_binding()
            for k in T.serial(2):
                tile[k, tx] = A[k, tx]
                if who == "all":
                    T.mbarrier_arrive(done)
                elif who == "one":
                    if tx == 0:
                        T.mbarrier_arrive(done)
                elif who == "a lane of each warp":
                    T.sync_warp()
                    if tx % 32 == 0:
                        T.mbarrier_arrive(done)
                T.mbarrier_wait_parity(done, k)
                C[k, tx] = tile[k, N - 1 - tx]

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("count", "who", "ordered"),
    [(N, "all", True), (2, "a lane of each warp", True), (1, "one", False)],
)
def test_who_arrives_hands_over_what_it_wrote(count, who, ordered):
    kernel = emulated(exchange(count, who))
    before, _, loop = body_of(kernel).partition("for (int k")
    assert before.count("__syncthreads") == ordered
    assert loop.count("__syncthreads") == (not ordered)  # it stands behind the initialisation too
    a, c = torch.randn(2, N), torch.zeros(2, N)
    kernel(a, c)
    assert torch.equal(c, a.flip(1))


def told(at):
    """Blocks of a cluster arrive at a barrier in some iterations, and wait in the same ones."""

    @T.prim_func
    def main(A: T.Tensor((2, 64), "int32")):
        with T.ClusterKernel(2, threads=64, cluster_dims=2) as bx:
            tx, rank = T.get_thread_binding(), T.block_rank_in_cluster()
            alloc = T.alloc_barrier if at == "block" else T.alloc_cluster_barrier
            bars = alloc([128 if at == "first" else 64] * 3)
            for number in (0, 1, 2):
                for k in T.serial(4):
                    condition = (True, k > 0, T.And(k > 0, tx < 64))[number]
                    if condition:
                        if at in ("block", "cluster"):
                            T.barrier_arrive(bars[number])
                        else:
                            to = {"own": rank, "other": 1 - rank, "first": 0}[at]
                            T.mbarrier_arrive(bars[number], to)
                    if condition:
                        if at == "first":
                            if rank == 0:
                                T.barrier_wait(bars[number], (k - (number > 0)) % 2)
                        else:
                            T.mbarrier_wait_parity(bars[number], (k - (number > 0)) % 2)
                    if at in ("other", "first"):
                        T.cluster_sync()  # nobody is two phases ahead
            A[bx, tx] = 1

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize("at", ["block", "cluster", "own", "other", "first"])
def test_branches_with_nothing_but_an_arrival_or_a_wait(at):
    """In all iterations, in some, and in some by a condition on the thread that all fulfil."""
    a = torch.zeros(2, 64, dtype=torch.int32)
    emulated(told(at))(a)
    assert (a == 1).all()


def test_those_who_wait_hand_on_what_they_know():
    """The first warp writes, the second waits and arrives, the third waits for the second."""

    @T.prim_func
    def main(A: T.Tensor((32,), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=96):
            tile = T.alloc_shared((32,), "float32")
            bars = T.alloc_barrier([32, 32])
            tx = T.get_thread_binding()
            if tx < 32:
                tile[tx] = A[tx]
                T.mbarrier_arrive(bars[0])
            elif tx < 64:
                T.mbarrier_wait_parity(bars[0], 0)
                T.mbarrier_arrive(bars[1])
            else:
                T.mbarrier_wait_parity(bars[1], 0)
                C[tx - 64] = tile[95 - tx]

    kernel = emulated(main)
    assert barriers(kernel) == 1
    a, c = torch.randn(32), torch.zeros(32)
    kernel(a, c)
    assert torch.equal(c, a.flip(0))


def test_a_kernel_that_names_no_thread_arrives_with_all():
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            tile = T.alloc_shared((N,), "float32")
            done = T.alloc_barrier(N)
            for k in T.serial(3):
                T.copy(A, tile)
                T.cp_async_barrier_noinc(done)
                T.mbarrier_wait_parity(done, k % 2)
                for i in T.Parallel(N):
                    C[i] = tile[N - 1 - i] + k
                T.fence_proxy_async()

    kernel = emulated(main)
    source = kernel.get_kernel_source()
    assert "cp.async.mbarrier.arrive.noinc.shared.b64" in source
    assert "fence.proxy.async.shared::cta" in source
    a, c = torch.randn(N), torch.zeros(N)
    kernel(a, c)
    assert torch.equal(c, a.flip(0) + 2)


def test_mbarriers_share_no_memory_with_tiles():
    """Two tiles that fit only one after the other: the mbarrier is used before and after both."""

    @T.prim_func
    def main(A: T.Tensor((40000,), "float32"), C: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=128):
            done = T.alloc_barrier(128)
            first = T.alloc_shared((40000,), "float32")
            T.mbarrier_arrive_expect_tx(done, 0)
            T.copy(A, first)
            C[0] = first[39999]
            second = T.alloc_shared((40000,), "float32")
            T.copy(A, second)
            C[1] = second[39998]
            T.mbarrier_wait_parity(done, 0)

    kernel = emulated(main)
    a, c = torch.randn(40000), torch.zeros(2)
    kernel(a, c)
    assert torch.equal(c, a[-2:].flip(0))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_the_instructions_are_those_of_the_gpu(arch):
    @T.prim_func
    def main(C: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            bars = T.alloc_barrier([128, 128, 128])
            T.mbarrier_expect_tx(bars[0], 0)
            T.mbarrier_arrive(bars[0])
            T.mbarrier_arrive_expect_tx(bars[1], 0)
            T.cp_async_barrier_noinc(bars[2])
            for i in T.serial(3):
                T.mbarrier_wait_parity(bars[i], 0)
            T.fence_proxy_async()
            C[T.get_thread_binding()] = 1

    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": arch})
    assert kernel.cubin
