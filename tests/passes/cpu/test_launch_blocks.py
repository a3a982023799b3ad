"""LaunchBlocksOnCpu: blocks that wait for each other."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidValue
from tvmtile.jit.arguments import launch_failure

CUDA = {"kind": "cuda", "arch": "sm_90a"}


def reversed_sums(n, block=64):
    """Each block writes its part, reads the mirrored part of another one, and adds it to its own."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
            own = T.alloc_fragment((block,), "float32")
            first = bx * block
            for i in T.Parallel(block):
                A[first + i] = first + i
            T.sync_grid()
            for i in T.Parallel(block):
                own[i] = A[n - first - i - 1]
            T.sync_grid()
            for i in T.Parallel(block):
                A[first + i] = A[first + i] + own[i]

    return main


@pytest.mark.parametrize("extent", [256, T.dynamic("n")], ids=["known", "dynamic"])
def test_what_precedes_a_barrier_is_done_by_all_blocks_before_what_follows(extent):
    kernel = tvmtile.compile(reversed_sums(extent), target="llvm")
    for n in (256,) if extent == 256 else (64, 640):
        a = torch.rand(n)
        kernel(a)
        assert a.tolist() == [n - 1] * n


def test_barriers_in_loops_that_all_blocks_go_through():
    """Neighbours are averaged again and again, on a ring of two axes of blocks."""

    @T.prim_func
    def main(steps: T.int32, A: T.Tensor((2, 8, 32), "float32")):
        with T.Kernel(4, 2, threads=32) as (bx, by):
            block = by * 4 + bx
            for step in T.serial(steps):
                now = step % 2
                for i in T.Parallel(32):
                    left = A[now, (block + 7) % 8, i]
                    A[1 - now, block, i] = (left + A[now, (block + 1) % 8, i]) / 2
                T.sync_grid()

    a = torch.rand(2, 8, 32)
    expected = a[0].clone()
    for _ in range(5):
        expected = (expected.roll(1, 0) + expected.roll(-1, 0)) / 2
    tvmtile.compile(main, target="llvm")(5, a)
    torch.testing.assert_close(a[1], expected)


def test_a_loop_runs_as_long_as_a_tensor_says():
    @T.prim_func
    def main(Left: T.Tensor((1,), "int32"), A: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=32) as bx:
            while Left[0] > 0:
                A[bx] = A[bx] + 1
                T.sync_grid()
                if bx == 0:
                    Left[0] = Left[0] - 1
                T.sync_grid()

    left, a = torch.tensor([3], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    tvmtile.compile(main, target="llvm")(left, a)
    assert a.tolist() == [3] * 4


def test_values_and_tiles_of_a_block_live_across_a_barrier():
    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(2, 2, threads=128) as (bx, by):
            tile_a = T.alloc_shared((32, 64), "float16")
            tile_b = T.alloc_shared((64, 32), "float16")
            total = T.alloc_fragment((32, 32), "float32")
            scale = A[by * 32, bx * 32]
            T.copy(A[by * 32, 0], tile_a)
            T.copy(B[0, bx * 32], tile_b)
            T.gemm(tile_a, tile_b, total, clear_accum=True)
            flat = T.view(tile_a, (32 * 64,))
            T.sync_grid()
            T.fill(A[by * 32 : by * 32 + 32, bx * 32 : bx * 32 + 32], 0)
            T.sync_grid()
            T.gemm(tile_a, tile_b, total)
            for i, j in T.Parallel(32, 32):
                C[by * 32 + i, bx * 32 + j] = total[i, j] * scale + flat[i * 64 + j]

    a, b, c = torch.rand(64, 64).half(), torch.rand(64, 64).half(), torch.zeros(64, 64)
    product = 2 * (a.float() @ b.float())
    expected = torch.empty(64, 64)
    for y in (0, 32):
        for x in (0, 32):
            part = product[y : y + 32, x : x + 32] * a[y, x].float()
            expected[y : y + 32, x : x + 32] = part + a[y : y + 32, :32].float()
    tvmtile.compile(main, target="llvm")(a, b, c)
    torch.testing.assert_close(c, expected)
    assert not a.any()


def test_code_by_thread_index_with_arrays_of_a_thread():
    @T.prim_func
    def main(Counts: T.Tensor((4,), "int32"), A: T.Tensor((4, 64), "int32")):
        with T.Kernel(4, threads=64) as bx:
            tx = T.get_thread_binding()
            mine = T.alloc_local((1,), "int32")
            total = T.alloc_shared((1,), "int32")
            mine[0] = (bx + 1) * tx
            if tx == 0:
                total[0] = 0
            T.sync_threads()
            T.atomic_add(total[0], mine[0])
            T.sync_threads()
            if tx == 0:
                Counts[bx] = total[0]
            T.sync_grid()
            before = T.alloc_var("int32", 0)
            for block in T.serial(bx):
                before += Counts[block]
            A[bx, tx] = before + mine[0]

    counts = torch.zeros(4, dtype=torch.int32)
    a = torch.zeros(4, 64, dtype=torch.int32)
    tvmtile.compile(main, target="llvm")(counts, a)
    own = torch.arange(1, 5)[:, None] * torch.arange(64)
    assert counts.tolist() == own.sum(1).tolist()
    assert torch.equal(a.long(), own + (own.sum(1).cumsum(0) - own.sum(1))[:, None])


@pytest.mark.full
def test_cuda_launches_cooperatively():
    kernel = tvmtile.compile(reversed_sums(256), target=CUDA)
    assert kernel.get_kernel_source().count("tvm_builtin_cuda_grid_sync();") == 2
    assert kernel.cubin


def test_a_launch_that_cuda_has_no_room_for_names_the_barrier():
    refused = RuntimeError("CUDALaunch Error: CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE")
    error = launch_failure(reversed_sums(256), refused)
    assert isinstance(error, InvalidValue)
    assert "the GPU has no room" in str(error)
    assert error.location.text == "T.sync_grid()"
    other = RuntimeError("CUDALaunch Error: CUDA_ERROR_LAUNCH_FAILED")
    assert launch_failure(reversed_sums(256), other) is other


@pytest.mark.parametrize("barrier", [T.sync_grid, T.sync_threads])
def test_extents_of_a_grid_may_have_different_widths(barrier):
    m, n = T.dynamic("m", "int64"), T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((m, n), "float32"), B: T.Tensor((m, n), "float32")):
        with T.Kernel(n, m, threads=32) as (bx, by):
            B[by, bx] = A[by, bx]
            barrier()
            B[by, bx] = B[by, bx] + 1

    A, B = torch.randn(7, 5), torch.empty(7, 5)
    tvmtile.compile(main, target="llvm")(A, B)
    assert torch.equal(B, A + 1)
