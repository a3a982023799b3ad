"""mbarriers: what they order gets no other barrier, what they do not order does.

`tiles_that_mbarriers_hand_over` has halves of a block that wait for each other alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.programs import catalogue
from tvmtile.errors import DataRace

SM90 = {"kind": "cuda", "arch": "sm_90a"}
N = 64
FULL, EMPTY = "full[k % 2]", "empty[k % 2]"


def emulated(program):
    return tvmtile.compile(program, target=SM90, execution_backend="emulator")


def body_of(kernel):
    return kernel.get_kernel_source().rpartition("__global__")[2]


@pytest.fixture
def handed_over(tmp_path):
    """The program of the catalogue with another statement in the place of one."""

    def kernel(copied, before, after):
        case = catalogue()["tiles_that_mbarriers_hand_over"].case(copied=copied)
        assert before in case.source
        program = replace(case, source=case.source.replace(before, after))
        return emulated(loaded(program, tmp_path).main)

    return kernel


@pytest.mark.parametrize(
    ("copied", "before", "after", "message"),
    [
        (
            False,
            f"T.mbarrier_wait_parity({FULL}, k // 2 % 2)",
            "pass",
            "no barrier can stand between",
        ),
        (
            True,
            f"T.cp_async_barrier_noinc({FULL})",
            f"T.barrier_arrive({FULL})",
            "before the asynchronous copy into them is waited for",
        ),
    ],
)
def test_what_no_mbarrier_orders_is_a_race(handed_over, copied, before, after, message):
    with pytest.raises(DataRace, match=message):
        handed_over(copied, before, after)


@pytest.mark.filterwarnings("ignore:nothing arrives at the mbarrier")
def test_what_no_mbarrier_orders_gets_a_barrier_where_all_threads_come(handed_over):
    body = body_of(handed_over(False, f"T.barrier_arrive({EMPTY})", "pass"))
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
    assert body_of(kernel).count("__syncthreads") == 1
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


@T.macro
def answers(waited, tx, bars, asked, answer):
    if waited:
        T.mbarrier_wait_parity(bars[0], 0)
    answer[tx] = asked[31 - tx] + 1
    T.mbarrier_arrive(bars[1])


@T.macro
def asks(tx, bars, asked, answer, A, C):
    asked[tx - 32] = A[tx - 32]
    T.mbarrier_arrive(bars[0])
    T.mbarrier_wait_parity(bars[1], 0)
    C[tx - 32] = answer[63 - tx]


def there_and_back(form, waited=True):
    """The second warp writes a tile, the first one answers with another: what comes first waits."""

    @T.prim_func
    def main(A: T.Tensor((32,), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=64):
            asked, answer = T.alloc_shared((32,), "float32"), T.alloc_shared((32,), "float32")
            bars = T.alloc_barrier([32, 32])
            tx = T.get_thread_binding()
            if form == "two cases":
                if tx < 32:
                    answers(waited, tx, bars, asked, answer)
                else:
                    asks(tx, bars, asked, answer, A, C)
            else:
                if tx < 32:
                    answers(waited, tx, bars, asked, answer)
                if tx >= 32:
                    asks(tx, bars, asked, answer, A, C)

    return main


@pytest.mark.parametrize("form", ["two cases", "two branches"])
def test_branches_of_different_threads_have_no_order(form):
    kernel = emulated(there_and_back(form))
    assert body_of(kernel).count("__syncthreads") == 1  # behind the initialisation
    a, c = torch.randn(32), torch.zeros(32)
    kernel(a, c)
    assert torch.equal(c, a + 1)


def test_a_wait_that_is_left_out_of_the_first_branch_is_a_race():
    with pytest.raises(DataRace, match="no barrier can stand between"):
        emulated(there_and_back("two cases", waited=False))


def test_a_tile_that_is_written_again_is_no_answer_to_an_earlier_wait():
    @T.prim_func
    def main(A: T.Tensor((2, 32), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=64):
            tile, full = T.alloc_shared((32,), "float32"), T.alloc_barrier(32)
            tx = T.get_thread_binding()
            for k in T.unroll(2):
                if tx < 32:
                    tile[tx] = A[k, tx]
                    T.mbarrier_arrive(full)
                if tx >= 32:
                    T.mbarrier_wait_parity(full, k)
                    C[tx - 32] = tile[63 - tx]

    kernel = emulated(main)
    a, c = torch.randn(2, 32), torch.zeros(32)
    kernel(a, c)
    assert torch.equal(c, a[1].flip(0))
    assert body_of(kernel).count("__syncthreads") == 2
