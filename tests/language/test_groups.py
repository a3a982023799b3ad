"""Groups of threads: what tile operators mean in a branch that lets in some of a block's warps."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import (
    CudaEmulationError,
)

TARGETS = {
    "llvm": {"target": "llvm"},
    "cuda": {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}


@pytest.fixture(params=list(TARGETS))
def compiled(request):
    """Compile a program for a target that this machine can run."""
    return lambda program: tvmtile.compile(program, **TARGETS[request.param])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# Work without barriers -----------------------------------------------------------------------------


@pytest.mark.full(but=1)
@pytest.mark.parametrize("threads", [(0, 128, 256), (32, 128, 192), (0, 96, 128)])
def test_two_groups_do_different_things(compiled, threads):
    first, end, count = threads

    @T.prim_func
    def program(
        A: T.Tensor((64, 48), "float32"),
        B: T.Tensor((64, 48), "float32"),
        C: T.Tensor((64, 48), "float32"),
    ):
        with T.Kernel(1, threads=count):
            tx = T.get_thread_binding()
            x = T.alloc_fragment((64, 48), "float32")
            y = T.alloc_fragment((48,), "float32")
            if T.And(tx >= first, tx < end):
                T.copy(A, x)
                for i, j in T.Parallel(64, 48):
                    x[i, j] = x[i, j] * 2
                T.copy(x, B)
            elif tx >= end:
                for i in T.serial(64):
                    T.copy(A[i, :], y)
                    for j in T.Parallel(48):
                        C[i, j] = y[j] + i
                C[0, 0] = 7

    a, b, c = torch.randn(64, 48), torch.zeros(64, 48), torch.zeros(64, 48)
    compiled(program)(a, b, c)
    expected = a + torch.arange(64.0)[:, None]
    expected[0, 0] = 7
    torch.testing.assert_close(b, a * 2, rtol=0, atol=0)
    torch.testing.assert_close(c, expected, rtol=0, atol=0)


@pytest.mark.full(but=1)
def test_atomics_and_sizes_known_at_run_time(compiled):
    @T.prim_func
    def program(A: T.Tensor((T.dynamic("n"),), "int32"), C: T.Tensor((2,), "int32")):
        n = A.shape[0]
        with T.Kernel(1, threads=128):
            if T.get_warp_idx() == 2:
                for i in T.Parallel(n):
                    T.atomic_add(C[0], A[i])
            elif T.get_warp_idx() == 1:
                for i in T.Parallel(n):
                    if A[i] > 3:
                        T.atomic_add(C[1], 1)

    a, c = torch.randint(0, 9, (77,), dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    compiled(program)(a, c)
    assert c.tolist() == [int(a.sum()), int((a > 3).sum())]


@pytest.mark.full(but=1)
def test_sums_within_a_warp(compiled):
    @T.prim_func
    def program(A: T.Tensor((16, 64), "float32"), C: T.Tensor((2, 16), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((16, 64), "float32")
            total = T.alloc_fragment((16,), "float32")
            other = T.alloc_fragment((16, 64), "float32")
            most = T.alloc_fragment((16,), "float32")
            if T.get_thread_binding() < 32:
                T.copy(A, tile)
                T.reduce_sum(tile, total, dim=1)
                T.copy(total, C[0, :])
            else:
                T.copy(A, other)
                T.reduce_max(other, most, dim=1)
                T.copy(most, C[1, :])

    a, c = torch.randint(-9, 9, (16, 64)).float(), torch.zeros(2, 16)
    compiled(program)(a, c)
    torch.testing.assert_close(c, torch.stack([a.sum(1), a.amax(1)]), rtol=0, atol=0)


@pytest.mark.full(but=1)
def test_a_store_in_a_branch_of_any_threads(compiled):
    """What is the same for all threads that come is done by one of them, which does come."""

    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), C: T.Tensor((6,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if tx == 5:
                C[0] = 1
            if tx >= 40:
                C[1] = 2
                if tx % 7 == 3:
                    C[2] = 3
            else:
                C[3] = 4
            for _ in T.serial(tx // 63):
                C[4] = 5
            if A[tx] == 9:
                C[5] = 6

    a, c = torch.arange(64, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    compiled(program)(a, c)
    assert c.tolist() == [1, 2, 3, 4, 5, 6]


# Work with barriers --------------------------------------------------------------------------------


@pytest.fixture(params=["llvm", "cuda"])
def with_barriers(request):
    """Compile a program for a target where any group has barriers of its own."""
    return lambda program: tvmtile.compile(program, **TARGETS[request.param])


@pytest.mark.full
def test_a_product_beside_sums(with_barriers):
    """mma.sync by 4 warps of 8, from shared tiles; the others transpose and reduce."""

    @T.prim_func
    def program(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
        D: T.Tensor((64,), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            other = T.alloc_shared((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            turned = T.alloc_fragment((64, 64), "float32")
            total = T.alloc_fragment((64,), "float32")
            with T.ws(1):
                T.copy(A, a)
                T.copy(B, b)
                T.gemm(a, b, acc, clear_accum=True)
                T.copy(acc, C)
            with T.ws(0):
                T.copy(A, other)
                for i, j in T.Parallel(64, 64):
                    turned[i, j] = other[j, i]
                T.reduce_sum(turned, total, dim=0)
                T.copy(total, D)

    a, b = (torch.randint(-3, 4, (64, 64)).half() for _ in range(2))
    c, d = torch.zeros(64, 64), torch.zeros(64)
    with_barriers(program)(a, b, c, d)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=0, atol=0)
    torch.testing.assert_close(d, a.float().sum(1), rtol=0, atol=0)


@pytest.mark.full
def test_pipelined_products_of_two_groups(with_barriers):
    """Each group pipelines copies of its own, asynchronously on CUDA."""

    @T.macro
    def half(A, B, C, row):
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((32, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[row, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[row, 0])

    @T.prim_func
    def program(
        A: T.Tensor((64, 128), "float16"),
        B: T.Tensor((128, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=192):
            if T.get_thread_binding() < 64:
                half(A, B, C, 0)
            else:
                half(A, B, C, 32)

    a, b = torch.randint(-3, 4, (64, 128)).half(), torch.randint(-3, 4, (128, 64)).half()
    c = torch.zeros(64, 64)
    with_barriers(program)(a, b, c)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=0, atol=0)


@pytest.mark.full(but=1)
def test_scans_and_sums_of_several_warps(with_barriers):
    @T.prim_func
    def program(A: T.Tensor((8, 256), "int32"), C: T.Tensor((2, 8, 256), "int32")):
        with T.Kernel(1, threads=288):
            tile = T.alloc_shared((8, 256), "int32")
            held = T.alloc_fragment((8, 256), "int32")
            most = T.alloc_fragment((256,), "int32")
            if T.get_warp_idx() == 0:
                T.fill(C[1, 7, :], -1)
            if T.And(T.get_warp_idx() >= 1, T.get_warp_idx() < 5):
                T.copy(A, tile)
                T.cumsum(tile, dim=1)
                T.copy(tile, C[0, :, :])
            if T.get_warp_idx() >= 5:
                T.copy(A, held)
                T.reduce_max(held, most, dim=0)
                T.copy(most, C[1, 0, :])

    a, c = (
        torch.randint(-9, 9, (8, 256), dtype=torch.int32),
        torch.zeros(2, 8, 256, dtype=torch.int32),
    )
    with_barriers(program)(a, c)
    assert torch.equal(c[0], a.cumsum(1, dtype=torch.int32))
    assert torch.equal(c[1, 0], a.amax(0))
    assert torch.equal(c[1, 7], torch.full((256,), -1, dtype=torch.int32))


def test_groups_hand_over_between_regions(with_barriers):
    """What one region writes another one reads, in a loop: barriers of the block between them."""

    @T.prim_func
    def program(A: T.Tensor((4, 128), "float32"), C: T.Tensor((4, 128), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((128,), "float32")
            for k in T.serial(4):
                with T.ws(0):
                    for i in T.Parallel(128):
                        tile[i] = A[k, 127 - i]
                with T.ws(1):
                    for i in T.Parallel(128):
                        C[k, i] = tile[i] + k

    a, c = torch.randn(4, 128), torch.zeros(4, 128)
    with_barriers(program)(a, c)
    torch.testing.assert_close(c, a.flip(1) + torch.arange(4.0)[:, None], rtol=0, atol=0)


@pytest.mark.full(but=1)
def test_a_group_meets_itself_in_several_regions(with_barriers):
    @T.prim_func
    def program(A: T.Tensor((4, 256), "float32"), C: T.Tensor((4, 256), "float32")):
        with T.Kernel(1, threads=384):
            mine = T.alloc_shared((256,), "float32")
            for k in T.serial(4):
                with T.ws(1, 2):
                    for i in T.Parallel(256):
                        mine[i] = A[k, i]
                with T.ws(0):
                    T.atomic_add(C[k, 0], 1.0)
                with T.ws(2, 1):
                    for i in T.Parallel(256):
                        C[k, i] = mine[255 - i]

    # the first warpgroup adds before or after the other two write
    a, c = torch.randn(4, 256), torch.zeros(4, 256)
    with_barriers(program)(a, c)
    torch.testing.assert_close(c[:, 1:], a.flip(1)[:, 1:], rtol=0, atol=0)


def test_a_region_in_a_region(with_barriers):
    @T.prim_func
    def program(A: T.Tensor((256,), "float32"), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=384):
            tile = T.alloc_shared((256,), "float32")
            with T.ws(0, 1):
                T.copy(A, tile)
                with T.ws(1):
                    for i in T.Parallel(128):
                        tile[i] = tile[255 - i]
                for i in T.Parallel(256):
                    C[i] = tile[255 - i]

    a, c = torch.randn(256), torch.zeros(256)
    with_barriers(program)(a, c)
    expected = a.clone()
    expected[:128] = a.flip(0)[:128]
    torch.testing.assert_close(c, expected.flip(0), rtol=0, atol=0)


def test_threads_of_a_group_exchange_elements(with_barriers):
    """Code written by thread index gets barriers in a region too, or names them."""

    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), C: T.Tensor((3, 64), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((64,), "int32")
            if tx < 64:
                shared[tx] = A[tx]
                C[0, tx] = shared[63 - tx]
                T.sync_threads()
                shared[tx] = A[tx] * 2
                T.sync_threads(5)
                C[1, tx] = shared[63 - tx]
                T.sync_threads(6, 64)
                shared[tx] = A[tx] * 3
                C[2, tx] = shared[63 - tx]

    a, c = torch.arange(64, dtype=torch.int32), torch.zeros(3, 64, dtype=torch.int32)
    with_barriers(program)(a, c)
    assert torch.equal(c, torch.stack([a.flip(0), a.flip(0) * 2, a.flip(0) * 3]))


@pytest.mark.full(but=1)
def test_a_group_counts_by_itself(with_barriers):
    """A variable that one group uses has one value for it, and decides about its work."""

    @T.prim_func
    def program(
        A: T.Tensor((64,), "float32"),
        Steps: T.Tensor((2,), "int32"),
        C: T.Tensor((64,), "float32"),
        D: T.Tensor((2,), "int32"),
    ):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((64,), "float32")
            flipped = T.alloc_fragment((64,), "float32")
            if tx < 64:
                done = T.alloc_var("int32", 0)
                T.copy(A, tile)
                while done < Steps[0]:
                    for i in T.Parallel(64):
                        flipped[i] = tile[63 - i]
                    for i in T.Parallel(64):
                        tile[i] = flipped[i] + 1
                    done += 1
                    if done == Steps[1]:
                        T.fill(tile, 0)
                T.copy(tile, C)
                D[0] = done
            else:
                if tx % 64 == 3:
                    D[1] = 7

    for steps, cleared in [(0, 9), (3, 9), (4, 2)]:
        a, c = torch.randn(64), torch.zeros(64)
        d = torch.zeros(2, dtype=torch.int32)
        expected = a.clone()
        for step in range(1, steps + 1):
            expected = expected.flip(0) + 1
            if step == cleared:
                expected.zero_()
        with_barriers(program)(a, torch.tensor([steps, cleared], dtype=torch.int32), c, d)
        torch.testing.assert_close(c, expected, rtol=0, atol=0)
        assert d.tolist() == [steps, 7]


@pytest.mark.full(but=1)
def test_one_simdgroup_waits_for_itself(compiled):
    @T.prim_func
    def program(A: T.Tensor((8, 32), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=96):
            tile = T.alloc_shared((8, 32), "float32")
            row = T.alloc_fragment((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            if T.get_warp_idx() == 1:
                T.copy(A, tile)
                for i in T.serial(8):
                    for j in T.Parallel(32):
                        row[j] = tile[7 - i, 31 - j]
                    for j in T.Parallel(32):
                        tile[i, j] += row[j]
                T.sync_threads()
                T.reduce_sum(tile, total, dim=0)
                T.copy(total, C)

    a, c = torch.randint(-9, 9, (8, 32)).float(), torch.zeros(32)
    expected = a.clone()
    for i in range(8):
        expected[i] = expected[7 - i].flip(0) + expected[i]
    compiled(program)(a, c)
    torch.testing.assert_close(c, expected.sum(0), rtol=0, atol=0)


# Groups that run at the same time --------------------------------------------------------------------


def on_cuda(program, arch="sm_80"):
    target = {"kind": "cuda", "arch": arch}
    return tvmtile.compile(program, target=target, execution_backend="emulator")


STEPS, TILE = 6, 32


def produced_by_a_warp(*, asynchronous):
    """Two buffers, each with a barrier for full and one for empty, by hand."""
    copy = T.async_copy if asynchronous else T.copy

    @T.prim_func
    def program(
        A: T.Tensor((STEPS * TILE, TILE), "float16"),
        B: T.Tensor((STEPS * TILE, TILE), "float16"),
        C: T.Tensor((TILE, TILE), "float32"),
    ):
        with T.Kernel(1, threads=160):
            a = T.alloc_shared((2, TILE, TILE), "float16")
            b = T.alloc_shared((2, TILE, TILE), "float16")
            acc = T.alloc_fragment((TILE, TILE), "float32")
            if T.get_warp_idx() == 4:
                for k in T.serial(STEPS):
                    if k >= 2:
                        T.sync_threads(3 + k % 2, 160)
                    copy(A[k * TILE, 0], a[k % 2, :, :])
                    copy(B[k * TILE, 0], b[k % 2, :, :])
                    if asynchronous:
                        T.ptx_wait_group(0)
                    T.named_barrier_arrive(1 + k % 2, 160)
            else:
                T.clear(acc)
                for k in T.serial(STEPS):
                    T.sync_threads(1 + k % 2, 160)
                    T.gemm(a[k % 2, :, :], b[k % 2, :, :], acc, transpose_A=True)
                    if k < STEPS - 2:
                        T.named_barrier_arrive(3 + k % 2, 160)
                T.copy(acc, C)

    return program


@pytest.mark.full(but=1)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_warp_produces_what_others_consume(asynchronous):
    a, b = (torch.randint(-3, 4, (STEPS * TILE, TILE)).half() for _ in range(2))
    c = torch.zeros(TILE, TILE)
    kernel = on_cuda(produced_by_a_warp(asynchronous=asynchronous))
    kernel(a, b, c)
    torch.testing.assert_close(c, a.float().T @ b.float(), rtol=0, atol=0)
    assert "__syncthreads" not in kernel.get_kernel_source()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nvidias_compiler_takes_groups(arch):
    program = produced_by_a_warp(asynchronous=True)
    assert tvmtile.compile(program, target={"kind": "cuda", "arch": arch}).cubin


@pytest.mark.full
def test_a_warpgroup_copies_by_tma_and_another_one_multiplies():
    """TileLang's way to specialise warpgroups: two buffers and four mbarriers."""
    size, steps = 64, 4

    @T.prim_func
    def program(
        A: T.Tensor((size, size * steps), "float16"),
        B: T.Tensor((size * steps, size), "float16"),
        C: T.Tensor((size, size), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((2, size, size), "float16")
            b = T.alloc_shared((2, size, size), "float16")
            acc = T.alloc_fragment((size, size), "float32")
            full = T.alloc_barrier([128, 128])
            empty = T.alloc_barrier([128, 128])
            with T.ws(0):
                T.clear(acc)
            for k in T.serial(steps):
                with T.ws(1):
                    T.barrier_wait(empty[k % 2], k // 2 % 2 ^ 1)
                    T.tma_copy(A[0, k * size], a[k % 2, :, :], barrier=full[k % 2])
                    T.tma_copy(B[k * size, 0], b[k % 2, :, :], barrier=full[k % 2])
                    T.barrier_arrive(full[k % 2])
                with T.ws(0):
                    T.barrier_wait(full[k % 2], k // 2 % 2)
                    T.gemm(a[k % 2, :, :], b[k % 2, :, :], acc)
                    T.barrier_arrive(empty[k % 2])
            with T.ws(0):
                T.copy(acc, C)

    a, b = (torch.randint(-3, 4, s).half() for s in ((size, size * steps), (size * steps, size)))
    c = torch.zeros(size, size)
    on_cuda(program, "sm_90a")(a, b, c)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=0, atol=0)


def test_a_barrier_that_is_missing_between_groups_is_found():
    """The compiler leaves the order to the user's barriers; the emulator checks it."""

    @T.prim_func
    def program(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64,), "float32")
            if T.get_warp_idx() == 0:
                T.named_barrier_arrive(1, 64)
                T.copy(A, tile)
            else:
                T.sync_threads(1, 64)
                T.copy(tile, C)

    with pytest.raises(CudaEmulationError, match="race"):
        on_cuda(program)(torch.randn(64), torch.zeros(64))


def test_two_of_three_groups_meet_at_a_barrier():

    @T.prim_func
    def program(A: T.Tensor((128,), "float32"), C: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=384):
            tile = T.alloc_shared((128,), "float32")
            own = T.alloc_fragment((128,), "float32")
            tx = T.get_thread_binding()
            if tx < 128:
                T.copy(A, own)
                for i in T.Parallel(128):
                    tile[i] = own[i] * 2
                T.sync_threads(5, 256)
            elif tx < 256:
                T.sync_threads(5, 256)
                for i in T.Parallel(128):
                    C[i] = tile[127 - i]

    a, c = torch.randn(128), torch.zeros(128)
    on_cuda(program)(a, c)
    assert torch.equal(c, 2 * a.flip(0))
