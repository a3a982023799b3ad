"""PlanSharedMemory on CUDA: how often threads wait, and how much memory there is."""

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.errors import OutOfSharedMemory


def test_tiles_of_an_iteration_share_memory_on_cuda():
    @T.prim_func
    def program(A: T.Tensor((4, 2, 16384), "float32"), C: T.Tensor((4, 2, 16384), "float32")):
        with T.Kernel(1, threads=128):
            keys = T.alloc_shared((16384,), "float32")  # 64 KB each, of 99
            values = T.alloc_shared((16384,), "float32")
            for k in T.serial(4):
                T.copy(A[k, 0, :], keys)
                for i in T.Parallel(16384):
                    C[k, 0, i] = keys[16383 - i]
                T.copy(A[k, 1, :], values)
                for i in T.Parallel(16384):
                    C[k, 1, i] = values[16383 - i]

    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_89"})
    # The tiles are filled and read, one after the other, by all threads.
    assert kernel.get_kernel_source().partition("for (int k ")[2].count("__syncthreads()") == 4


def with_tiles(count):
    """A block has 227 KB: 1814 times 128 bytes for the large tile, and two more for small ones."""

    @T.prim_func
    def main(A: T.Tensor((232192,), "uint8"), C: T.Tensor((232192,), "uint8")):
        with T.Kernel(1, threads=128):
            large = T.alloc_shared((232192,), "uint8")
            tiles = [T.alloc_shared((16,), "uint8") for _ in range(count)]
            T.copy(A, large)
            for tile in tiles:
                T.copy(A[0:16], tile)
            for tile in tiles:
                T.copy(tile, C[0:16])
            T.copy(large, C)

    return main


def test_tiles_begin_at_multiples_of_128_bytes_on_cuda():
    target = {"kind": "cuda", "arch": "sm_90a"}
    kernel = tvmtile.compile(with_tiles(2), target=target)
    assert kernel.resources()[0].shared == 227 * 1024
    message = r"227\.125 KB at once; a block of CUDA sm_90a has 227 KB"
    with pytest.raises(OutOfSharedMemory, match=message):
        tvmtile.compile(with_tiles(3), target=target)
