"""Stores that begin in front of a tensor: threads do them, since an H200 takes them for illegal."""

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import CudaEmulationError

HOPPER = {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"}


def added(assumed=False):
    @T.prim_func
    def main(O: T.Tensor((64, 64), "float32"), row: T.int32):
        with T.Kernel(1, threads=128):
            ones = T.alloc_fragment((16, 64), "float32")
            T.fill(ones, 1)
            if assumed:
                T.assume(row >= 0)
            T.atomic_add(O[row, 0], ones)

    return main


def copied(assumed=False):
    @T.prim_func
    def main(O: T.Tensor((64, 64), "float32"), row: T.int32):
        with T.Kernel(1, threads=128):
            zeros = T.alloc_shared((64, 16), "float16")
            ones = T.alloc_fragment((64, 64), "float32")
            T.fill(zeros, 0)
            T.fill(ones, 1)
            T.gemm(zeros, zeros, ones, transpose_B=True)
            if assumed:
                T.assume(row >= 0)
            T.copy(ones, O[row, 0])

    return main


def by_hand():
    @T.prim_func
    def main(O: T.Tensor((64, 64), "float32"), row: T.int32):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((16, 64), "float32")
            T.fill(tile, 1)
            T.tma_copy(tile, O[row, 0])
            T.tma_store_wait()

    return main


def persistent():
    m, n = T.dynamic("m"), T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((m, 32), "bfloat16"), O: T.Tensor((m, n), "float32")):
        with T.Kernel(3, threads=128) as block:
            T.assume(n % 4 == 0)
            tile = T.alloc_shared((64, 32), "bfloat16")
            sums = T.alloc_fragment((64, 64), "float32")
            for i, j in T.Persistent([T.ceildiv(m, 64), T.ceildiv(n, 64)], 3, block):
                T.copy(A[i * 64, 0], tile)
                T.clear(sums)
                T.gemm(tile, tile, sums, transpose_B=True)
                T.copy(sums, O[i * 64, j * 64])

    return main


def expected(row, rows):
    result = torch.zeros(64, 64)
    result[max(row, 0) : max(row + rows, 0)] = 1
    return result


@pytest.mark.parametrize(("make", "rows"), [(added, 16), (copied, 64)])
@pytest.mark.parametrize("row", [-64, -15, 0, 56, 64])
def test_where_it_may_be_threads_store(make, rows, row):
    kernel = tvmtile.compile(make(), **HOPPER)
    assert "cp_async_bulk" not in kernel.get_kernel_source()
    out = torch.zeros(64, 64)
    kernel(out, row)
    assert torch.equal(out, expected(row, rows))


def test_the_choice_says_why_and_what_to_do():
    kernel = tvmtile.compile(added(), **HOPPER)
    (choice,) = [each for each in kernel.choices if each.operator == "atomic_tile"]
    reason = dict(choice.declined)["tma_add"]
    assert "may begin at a negative index, for all that is known of row; T.assume" in reason


@pytest.mark.parametrize(("make", "rows"), [(added, 16), (copied, 64)])
@pytest.mark.parametrize("row", [0, 56, 64])
def test_where_it_is_assumed_not_to_be_tensor_maps_do(make, rows, row):
    kernel = tvmtile.compile(make(assumed=True), **HOPPER)
    assert "cp_async_bulk" in kernel.get_kernel_source().replace("cp_reduce_async", "cp_async")
    out = torch.zeros(64, 64)
    kernel(out, row)
    assert torch.equal(out, expected(row, rows))


def test_the_emulator_refuses_what_the_gpu_does():
    kernel = tvmtile.compile(by_hand(), **HOPPER)
    out = torch.zeros(64, 64)
    kernel(out, 56)
    assert torch.equal(out, expected(56, 16))
    with pytest.raises(CudaEmulationError, match="a bulk tensor store that begins at a negative"):
        kernel(out, -1)


@pytest.mark.parametrize(("m", "n"), [(64, 64), (300, 132), (700, 4)])
def test_tiles_of_persistent_blocks_are_not_in_front(m, n):
    """Whose sizes are not known."""
    kernel = tvmtile.compile(persistent(), **HOPPER)
    assert "cp_async_bulk_tensor" in kernel.get_kernel_source()
    a = torch.randint(-2, 3, (m, 32)).bfloat16()
    out = torch.full((m, n), -1.0)
    kernel(a, out)
    of_tile = torch.arange(m)[:, None] // 64 * 64 + torch.arange(n) % 64
    rows = torch.nn.functional.pad(a.float(), (0, 0, 0, 64))[of_tile]
    assert torch.equal(out, torch.einsum("mk,mnk->mn", a.float(), rows))
