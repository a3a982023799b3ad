"""FenceLoads: where fences stand between what threads do with a tile and the copy that fills it."""

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import CudaEmulationError
from tvmtile.passes import FenceLoads
from tvmtile.pipeline import LOWERING

SM90 = {"kind": "cuda", "arch": "sm_90a"}
FENCE = "tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();"
ROUNDS = 6


def emulated(program):
    return tvmtile.compile(program, target=SM90, execution_backend="emulator")


def in_turn(by_warp=True, is_read=True, conditional=False):
    """A warp copies a tile in each round, which another one reads, and gives back."""

    @T.prim_func
    def main(A: T.Tensor((ROUNDS, 32), "float32"), C: T.Tensor((ROUNDS, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32,), "float32")
            full, empty = T.alloc_barrier(1), T.alloc_barrier(1 if by_warp else 32)
            tx = T.get_thread_binding()
            for k in range(ROUNDS):
                if tx >= 32:
                    T.mbarrier_wait_parity(empty, 1 - k % 2)
                    T.tma_copy(A[k, 0], tile, barrier=full)
                    if tx == 32:
                        T.mbarrier_arrive(full)
                else:
                    T.mbarrier_wait_parity(full, k % 2)
                    if conditional:
                        if tile[tx] > 0:
                            C[k, tx] = 1
                    elif is_read:
                        C[k, tx] = tile[tx]
                    if by_warp:
                        T.sync_warp()
                        if tx == 0:
                            T.mbarrier_arrive(empty)
                    else:
                        T.mbarrier_arrive(empty)

    return main


def alone(rounds=ROUNDS):
    """All threads read what one of them has copied."""

    @T.prim_func
    def main(A: T.Tensor((ROUNDS, 32), "float32"), C: T.Tensor((ROUNDS, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32,), "float32")
            for k in T.serial(rounds):
                T.copy(A[k, 0], tile, impl="tma")
                T.copy(tile, C[k, 0])

    return main


def numbered(number=1):
    """A warp copies a tile in each round; another one gives it back at a barrier."""

    @T.prim_func
    def main(A: T.Tensor((ROUNDS, 32), "float32"), C: T.Tensor((ROUNDS, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32,), "float32")
            full = T.alloc_barrier(1)
            tx = T.get_thread_binding()
            if tx >= 32:
                for k in range(ROUNDS):
                    T.tma_copy(A[k, 0], tile, barrier=full)
                    if tx == 32:
                        T.mbarrier_arrive(full)
                    T.sync_threads(number, 64)
            else:
                for k in range(ROUNDS):
                    T.mbarrier_wait_parity(full, k % 2)
                    C[k, tx] = tile[tx]
                    T.sync_threads(number, 64)

    return main


def kernel_text(kernel):
    return kernel.get_kernel_source().split("__global__")[-1]


READ = "tile_ptr[((int)threadIdx.x)]"
BY_READERS = {
    "one arrives for a warp": (in_turn(), "warp_sync()"),
    "each arrives": (in_turn(by_warp=False), "mbarrier_arrive"),
    "a condition reads": (in_turn(conditional=True), "warp_sync()"),
    "a numbered barrier": (numbered(), "bar_sync"),
}


def check(kernel, expected=None):
    a = torch.rand(ROUNDS, 32) + 1
    for seed in range(4):
        c = torch.zeros_like(a)
        kernel.adapter.seed = seed
        kernel(a, c)
        assert torch.equal(c, a if expected is None else expected)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", BY_READERS)
def test_readers_have_a_fence_before_they_give_a_tile_back(name):
    program, gives_back = BY_READERS[name]
    kernel = emulated(program)
    text = kernel_text(kernel)
    assert text.count(FENCE) == 1
    read = text.rindex(READ)
    assert read < text.index(FENCE) < text.index(gives_back, read)
    check(kernel, torch.ones(ROUNDS, 32) if name == "a condition reads" else None)


def test_who_copies_has_it_where_all_meet_at_a_barrier():
    kernel = emulated(alone())
    before, after = kernel_text(kernel).split(FENCE)
    assert before.rstrip().endswith("if (((int)threadIdx.x) == 0) {")
    assert "__syncthreads" not in after
    check(kernel)


@pytest.mark.parametrize("program", [in_turn(is_read=False), alone(rounds=1)])
def test_a_tile_that_is_not_read_or_copied_once_needs_none(program):
    assert FENCE not in kernel_text(tvmtile.compile(program, target=SM90))


@pytest.mark.full
def test_what_matrix_units_read_needs_none():
    @T.prim_func
    def main(
        A: T.Tensor((128, 256), "float16"),
        B: T.Tensor((256, 128), "float16"),
        C: T.Tensor((128, 128), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    text = kernel_text(tvmtile.compile(main, target=SM90))
    assert "wgmma" in text
    assert FENCE not in text[: text.rindex("wgmma")]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("program", [in_turn(), in_turn(by_warp=False), alone(), numbered()])
def test_the_emulator_misses_it(program, monkeypatch):
    passes = tuple(each for each in LOWERING["cuda"] if each is not FenceLoads)
    monkeypatch.setitem(LOWERING, "cuda", passes)
    with pytest.raises(CudaEmulationError, match="writes tile_ptr.*, which .* read, and no fence"):
        check(emulated(program))
