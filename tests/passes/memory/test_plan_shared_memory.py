"""PlanSharedMemory: sharing where a block would not fit, and the error where that is not enough."""

import pytest
import torch
from tvm import ir
from tvm_ffi import structural_equal

import tvmtile
import tvmtile.language as T
from tvmtile.errors import OutOfSharedMemory
from tvmtile.passes import PlanSharedMemory
from tvmtile.pipeline import lowering_passes
from tvmtile.target import parse

HALF = 4096  # float32 elements: 16 KB, half of what a threadgroup of Metal has


def placed(program):
    """A program with its shared tiles placed, not planned yet."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in lowering_passes(parse("metal")):
        if step.info.name == PlanSharedMemory.info.name:
            return mod
        mod = step(mod)
    raise AssertionError("the plan is not in the pipeline")


def one_after_the_other(count, size=HALF):
    """Tiles that are copied in and out, one after the other."""

    @T.prim_func
    def main(A: T.Tensor((count, size), "float32"), C: T.Tensor((count, size), "float32")):
        with T.Kernel(1, threads=128):
            for n in T.unroll(count, explicit=True):
                tile = T.alloc_shared((size,), "float32")
                T.copy(A[n, :], tile)
                for i in T.Parallel(size):
                    C[n, i] = tile[size - 1 - i]

    return main


def together(count, size=HALF):
    """Tiles that are all filled before any is read."""

    @T.prim_func
    def main(A: T.Tensor((count, size), "float32"), C: T.Tensor((count, size), "float32")):
        with T.Kernel(1, threads=128):
            tiles = T.alloc_shared((count, size), "float32")
            more = T.alloc_shared((size,), "float32")
            T.copy(A, tiles)
            T.copy(A[0, :], more)
            T.copy(tiles, C)
            T.copy(more, C[0, :])

    return main


def test_tiles_that_fit_are_left_apart():
    mod = placed(together(1, HALF // 2))
    assert structural_equal(PlanSharedMemory(mod), mod)


def two_phases():
    @T.prim_func
    def main(A: T.Tensor((3, HALF), "float32"), C: T.Tensor((3, HALF), "float32")):
        with T.Kernel(1, threads=128):
            first = T.alloc_shared((HALF,), "float32")
            second = T.alloc_shared((HALF,), "float32")
            third = T.alloc_shared((HALF,), "float32")
            T.copy(A[0, :], first)
            T.copy(A[1, :], second)
            for i in T.Parallel(HALF):
                C[0, i] = first[HALF - 1 - i] + second[i]
            T.copy(A[2, :], third)
            for i in T.Parallel(HALF):
                C[2, i] = third[HALF - 1 - i]
                C[1, i] = second[HALF - 1 - i]

    return main


def test_tiles_that_are_used_one_after_the_other_share_memory():
    planned = PlanSharedMemory(placed(two_phases())).script()
    assert 'tiles = T.alloc_shared((4096,), "uint32")' in planned
    assert 'first = tiles.view("float32")' in planned
    assert 'third = tiles.view("float32")' in planned
    assert "second = T.alloc_shared((4096,))" in planned


@pytest.mark.full
def test_tiles_that_share_memory_wait_for_each_other():
    kernel = tvmtile.compile(two_phases(), target="metal", execution_backend="emulator")
    A, C = torch.randn(3, HALF), torch.empty(3, HALF)
    kernel(A, C)
    torch.testing.assert_close(C, torch.stack([A[0].flip(0) + A[1], A[1].flip(0), A[2].flip(0)]))


def test_what_does_not_fit_is_an_error_that_lists_the_tiles():
    with pytest.raises(OutOfSharedMemory, match="the shared tiles need") as error:
        tvmtile.compile(together(2), target="metal", execution_backend="emulator")
    assert "tiles[2, 4096] float32: 32 KB" in str(error.value)


@pytest.mark.full
def test_smaller_tiles_lie_side_by_side_in_the_memory_of_a_larger_one():
    @T.prim_func
    def main(A: T.Tensor((2, HALF), "float32"), C: T.Tensor((2 * HALF,), "float32")):
        with T.Kernel(1, threads=128):
            first = T.alloc_shared((HALF,), "float32")
            second = T.alloc_shared((HALF,), "float32")
            both = T.alloc_shared((2 * HALF,), "float32")
            total = T.alloc_fragment((2, HALF), "float32")
            T.copy(A[0, :], first)
            T.copy(A[1, :], second)
            for i, j in T.Parallel(2, HALF):
                total[i, j] = first[HALF - 1 - j] - second[HALF - 1 - j] * (i * 2)
            for i, j in T.Parallel(2, HALF):
                both[i * HALF + j] = total[i, j]
            for i in T.Parallel(2 * HALF):
                C[i] = both[2 * HALF - 1 - i]

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    A, C = torch.randn(2, HALF), torch.empty(2 * HALF)
    kernel(A, C)
    first, second = A.flip(1)
    torch.testing.assert_close(C, torch.cat([first, first - second * 2]).flip(0))


def rewritten_in_a_loop(reads_the_last=False, size=HALF * 3 // 2):
    """Two tiles that do not fit together, each written anew in each iteration."""

    @T.prim_func
    def main(A: T.Tensor((4, 2, size), "float32"), C: T.Tensor((4, 2, size), "float32")):
        with T.Kernel(1, threads=128):
            keys = T.alloc_shared((size,), "float32")
            values = T.alloc_shared((size,), "float32")
            if reads_the_last:
                T.clear(values)
            for k in T.serial(4):
                T.copy(A[k, 0, :], keys)
                for i in T.Parallel(size):
                    C[k, 0, i] = keys[size - 1 - i]
                if reads_the_last:
                    T.copy(values, C[k, 1, :])
                T.copy(A[k, 1, :], values)
                if not reads_the_last:
                    for i in T.Parallel(size):
                        C[k, 1, i] = values[size - 1 - i]

    return main


@pytest.mark.full
def test_tiles_that_an_iteration_writes_anew_share_memory():
    kernel = tvmtile.compile(rewritten_in_a_loop(), target="metal", execution_backend="emulator")
    A, C = torch.randn(4, 2, HALF * 3 // 2), torch.empty(4, 2, HALF * 3 // 2)
    kernel(A, C)
    torch.testing.assert_close(C, A.flip(2))


@pytest.mark.full
def test_tiles_of_an_iteration_share_memory_on_cuda():
    program = rewritten_in_a_loop(size=16384)  # 64 KB each, of 99
    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_89"})
    body = kernel.get_kernel_source()
    body = body[body.index("for (int k ") :]
    # The tiles are filled and read, one after the other, by all threads.
    assert body.count("__syncthreads()") == 4


def test_a_tile_that_keeps_its_value_for_the_next_iteration_shares_none():
    program = rewritten_in_a_loop(reads_the_last=True)
    with pytest.raises(OutOfSharedMemory, match="the shared tiles need 48 KB at once"):
        tvmtile.compile(program, target="metal", execution_backend="emulator")


def in_one_parallel_loop(rows):
    """A tile, and behind it two more that half of the threads use, without waiting in between."""

    @T.prim_func
    def main(A: T.Tensor((HALF,), "float32"), C: T.Tensor((HALF,), "float32")):
        with T.Kernel(1, threads=128):
            first = T.alloc_shared((HALF,), "float32")
            second = T.alloc_shared((rows, 64), "float32")
            third = T.alloc_shared((rows, 64), "float32")
            T.copy(A, first)
            for i in T.Parallel(HALF):
                C[i] = first[HALF - 1 - i]
            for i in T.Parallel(64):
                second[0, i] = A[i]
                C[i] = second[0, i]
                third[0, 63 - i] = A[64 + i]
                C[i] = C[i] - third[0, 63 - i]

    return main


def test_tiles_that_some_threads_use_alone_lie_apart():
    """They can't wait for each other: some may still read a tile when others write the next one."""
    kernel = tvmtile.compile(
        in_one_parallel_loop(rows=48), target="metal", execution_backend="emulator"
    )
    A, C = torch.randn(HALF), torch.empty(HALF)
    kernel(A, C)
    torch.testing.assert_close(C, torch.cat([A[:64] - A[64:128], A.flip(0)[64:]]))


def test_tiles_that_some_threads_use_alone_must_fit_beside_each_other():
    with pytest.raises(OutOfSharedMemory, match="the shared tiles need 40 KB at once"):
        tvmtile.compile(in_one_parallel_loop(rows=80), target="metal", execution_backend="emulator")


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("small", "fits"), [(2, True), (3, False)])
def test_tiles_begin_at_multiples_of_128_bytes_on_cuda(small, fits):
    """A block has 227 KB: 1814 times 128 bytes for the large tile, and two more for small ones."""

    @T.prim_func
    def main(A: T.Tensor((232192,), "uint8"), C: T.Tensor((232192,), "uint8")):
        with T.Kernel(1, threads=128):
            large = T.alloc_shared((232192,), "uint8")
            tiles = [T.alloc_shared((16,), "uint8") for _ in range(small)]
            T.copy(A, large)
            for tile in tiles:
                T.copy(A[0:16], tile)
            for tile in tiles:
                T.copy(tile, C[0:16])
            T.copy(large, C)

    target = {"kind": "cuda", "arch": "sm_90a"}
    if fits:
        assert tvmtile.compile(main, target=target).resources()[0].shared == 227 * 1024
        return
    with pytest.raises(
        OutOfSharedMemory, match=r"227\.125 KB at once; a block of CUDA sm_90a has 227 KB"
    ):
        tvmtile.compile(main, target=target)
