"""Tiles that threads of the producer compute: when, with how many registers, behind which fence."""

from __future__ import annotations

import re

import pytest

import tvmtile
import tvmtile.language as T
from tests.passes.tile.specialization.computed_kernels import COMPUTED
from tvmtile.errors import TileWarning

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
N = 64


def converted(shape, threads=256, *, stages=3, wish=None, disable_tma=False, as_loop=False):
    """A product of float32 by float16 in blocks of a shape."""
    M, N, K = shape

    @T.prim_func
    def main(
        A: T.Tensor((4096, 4096), "float32"),
        B: T.Tensor((4096, 4096), "float16"),
        C: T.Tensor((4096, 4096), "float16"),
    ):
        with T.Kernel(4096 // N, T.ceildiv(4096, M), threads=threads) as (bx, by):
            if wish is not None:
                T.annotate_warp_specialize(wish)
            a, b = T.alloc_shared((M, K), "float16"), T.alloc_shared((K, N), "float16")
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            for k in T.Pipelined(4096 // K, num_stages=stages):
                if as_loop:
                    for i, j in T.Parallel(M, K):
                        a[i, j] = A[by * M + i, k * K + j] * 2
                else:
                    T.copy(A[by * M, k * K], a, disable_tma=disable_tma)
                T.copy(B[k * K, bx * N], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * M, bx * N])

    return main


def decoded(*, by_way_of_a_fragment):
    """A product by weights whose bytes come by a tensor map, and become numbers in the block."""

    @T.prim_func
    def main(
        A: T.Tensor((256, 512), "float16"),
        W: T.Tensor((512, 256), "int8"),
        C: T.Tensor((256, 256), "float32"),
    ):
        with T.Kernel(2, 2, threads=128) as (bx, by):
            a, w = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "int8")
            b = T.alloc_shared((64, 128), "float16")
            values = T.alloc_fragment((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[by * 128, k * 64], a)
                T.copy(W[k * 64, bx * 128], w)
                if by_way_of_a_fragment:
                    for i, j in T.Parallel(64, 128):
                        values[i, j] = w[i, j] * 2
                    T.copy(values, b)
                else:
                    for i, j in T.Parallel(64, 128):
                        b[i, j] = w[i, j] * 2
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 128])

    return main


def compiled(program):
    kernel = tvmtile.compile(program, target=HOPPER)
    (loop,) = [choice for choice in kernel.choices if choice.operator == "Pipelined"]
    return kernel.get_kernel_source(), loop


# When ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_way_of_a_fragment", [False, True])
def test_a_tile_that_is_computed_from_one_that_comes_is_the_consumers(by_way_of_a_fragment):
    _, loop = compiled(decoded(by_way_of_a_fragment=by_way_of_a_fragment))
    assert loop.chosen == "two roles"
    reason = dict(loop.declined)["computing producer"]
    assert reason == "b is computed from w, which a copy brings: threads that multiply do that"


def test_a_block_that_has_a_multiprocessor_for_itself_gets_threads_that_compute():
    _, loop = compiled(converted((128, 256, 64)))
    assert loop.chosen == "two roles, computing producer, persistent blocks"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shape": (128, 128, 64)}, "2 blocks fit on a multiprocessor, each under the"),
        ({"shape": (128, 256, 32)}, "a thread would load 32 registers in an iteration"),
        ({"shape": (128, 256, 64), "as_loop": True}, "and computes would wait for each load"),
        ({"shape": (128, 256, 64), "wish": False}, "the kernel asks for one role"),
        ({"shape": (128, 256, 64), "disable_tma": True}, "is no copy that can go on by itself"),
        (
            {"shape": (192, 256, 64), "threads": 384, "stages": 2},
            "take 128 registers of a thread that multiplies, of 152 that threads which compute",
        ),
    ],
)
def test_other_blocks_have_one_role_and_the_choices_say_why(options, reason):
    source, loop = compiled(converted(**options))
    assert loop.chosen == "one role"
    assert reason in dict(loop.declined)["two roles"]
    assert "setmaxnreg" not in source


def test_a_kernel_that_asks_for_it_gets_it():
    _, loop = compiled(converted((128, 128, 64), wish=True))
    assert "computing producer" in loop.chosen


@pytest.mark.parametrize("K", [32, 64, 128])
@pytest.mark.parametrize("shape", [(64, 64), (128, 128), (128, 256)])
def test_roles_have_no_more_registers_than_the_block_began_with(shape, K):
    """Else an increase would wait for ever."""
    source, _ = compiled(converted((*shape, K), stages=2, wish=True))
    many, few = map(int, re.findall(r"setmaxnreg_(?:inc|dec)_sync_aligned_u32_(\d+)\(\);", source))
    at_first = 65536 // 384 // 8 * 8
    assert few <= at_first <= many
    assert 256 * many + 128 * few <= 384 * at_first


def by_way_of_a_fragment(*, uses="nothing", before=False, view=False, writes=False):
    """Weights that threads double; who touches the fragment, or what they are, besides."""

    @T.prim_func
    def main(
        A: T.Tensor((N, 4 * N), "float16"),
        W: T.Tensor((N, 4 * N), "float32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a, w = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            own = T.alloc_fragment((N, N), "float32")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            if before:
                T.clear(own)
            if view:
                T.fill(T.reshape(w, (N * N,)), 0)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * N], a)
                T.copy(W[0, k * N], own)
                for i, j in T.Parallel(N, N):
                    w[i, j] = own[i, j] * 2
                T.gemm(a, w, c, transpose_B=True)
                if uses == "consumer":
                    for i, j in T.Parallel(N, N):
                        c[i, j] += own[i, j]
                if writes:
                    T.copy(own, W[0, k * N])
            if uses == "end":
                T.copy(own, C)
            else:
                T.copy(c, C)

    return main


@pytest.mark.parametrize(
    ("options", "computes"),
    [
        ({}, True),
        ({"uses": "consumer"}, False),
        ({"uses": "end"}, False),
        ({"before": True}, False),
        ({"view": True}, False),
        ({"writes": True}, False),
    ],
    ids=str,
)
def test_a_fragment_on_the_way_is_touched_by_nothing_else(options, computes):
    """Else consumers compute the tile, as they did."""
    _, loop = compiled(by_way_of_a_fragment(**options))
    assert loop.chosen == "two roles" + computes * ", computing producer"


@pytest.mark.parametrize("computes", [True, False], ids=["computed", "moved"])
def test_a_tile_that_depends_on_the_thread_is_no_producers(computes):
    """Threads of the producer have other numbers."""

    @T.prim_func
    def main(
        A: T.Tensor((N, 4 * N), "float16"),
        B: T.Tensor((4 * N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            tx = T.get_thread_binding()
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                for i, j in T.Parallel(N, N):
                    row = i * (tx // 128 + 1)
                    a[i, j] = A[row, k * N + j] * 2 if computes else A[row, k * N + j]
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    with pytest.warns(TileWarning, match="asks which thread does it"):
        _, loop = compiled(main)
    assert loop.chosen == "one role"


# How ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "registers"),
    [
        ((128, 256, 64), ["200", "104"]),  # 64 elements that a thread loads
        ((128, 256, 32), ["216", "72"]),
        ((64, 256, 64), ["216", "72"]),
    ],
)
def test_threads_that_compute_have_registers_for_what_they_load(shape, registers):
    source, _ = compiled(converted(shape, stages=2, wish=True))
    found = re.findall(r"setmaxnreg_(?:inc|dec)_sync_aligned_u32_(\d+)\(\);", source)
    assert found == registers


def test_registers_of_a_fragment_are_known_where_its_group_is_not_the_first():
    source, _ = compiled(by_way_of_a_fragment())
    assert re.search(r"own_ptr\[\d+\]", source)
    assert not re.search(r"own_ptr\[[^\]]*threadIdx", source)


FENCE_OF_CONSUMERS = re.compile(
    r"fence_proxy_proxy_async_shared__cta\(\);\s+tvm_builtin_ptx_wgmma_fence"
)


@pytest.mark.parametrize("name", ["converted_beside_tiles", "weights_times_scales"])
def test_the_fence_is_that_of_the_threads_that_store(name):
    source, _ = compiled(COMPUTED[name]().program)
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


@pytest.mark.parametrize("fence", ["behind", "none", "in front", "of a few", "too late"])
def test_a_fence_of_the_threads_that_store_stands_before_they_arrive(fence):
    """Elsewhere it orders nothing, and those who multiply have one of their own."""
    source = tvmtile.compile(by_hand(fence), target=HOPPER).get_kernel_source()
    loop = source[source.rindex("mbarrier_wait((&(full") :]
    assert bool(FENCE_OF_CONSUMERS.search(loop)) == (fence != "behind")
