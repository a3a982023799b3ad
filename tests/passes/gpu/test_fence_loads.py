"""FenceLoads: where fences stand between what threads do with a tile and the copy that fills it."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import CudaEmulationError
from tvmtile.passes import FenceLoads
from tvmtile.pipeline import LOWERING

SM90 = {"kind": "cuda", "arch": "sm_90a"}
FENCE = "tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();"
READ = re.compile(r"tile_ptr\)?\[\(\(int\)threadIdx\.x\)\]")
ROUNDS = 6


def in_turn(how):
    """A warp copies a tile in each round, which another one reads, and gives back."""
    arrivals = 32 if how == "each arrives" else 1

    @T.prim_func
    def main(A: T.Tensor((ROUNDS, 32), "float32"), C: T.Tensor((ROUNDS, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32,), "float32")
            words = T.view(tile, (32,), "int32")
            full, empty = T.alloc_barrier(1), T.alloc_barrier(arrivals)
            tx = T.get_thread_binding()
            for k in range(ROUNDS):
                if tx >= 32:
                    if how != "a numbered barrier":
                        T.mbarrier_wait_parity(empty, 1 - k % 2)
                    T.tma_copy(A[k, 0], tile, barrier=full)
                    if tx == 32:
                        T.mbarrier_arrive(full)
                    if how == "a numbered barrier":
                        T.sync_threads(1, 64)
                else:
                    T.mbarrier_wait_parity(full, k % 2)
                    if how == "a condition reads":
                        if tile[tx] > 0:
                            C[k, tx] = A[k, tx]
                    elif how == "a view reads":
                        if words[tx] > 0:
                            C[k, tx] = A[k, tx]
                    elif how != "nobody reads":
                        C[k, tx] = tile[tx]
                    if how == "a numbered barrier":
                        T.sync_threads(1, 64)
                    elif how == "each arrives":
                        T.mbarrier_arrive(empty)
                    else:
                        T.sync_warp()
                        if tx == 0:
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


def emulated(program):
    return tvmtile.compile(program, target=SM90, execution_backend="emulator")


def text_of(kernel):
    return kernel.get_kernel_source().split("__global__")[-1]


def results(kernel, a):
    """The results of its copies, in several orders."""
    for seed in range(4):
        c = torch.zeros_like(a)
        kernel.adapter.seed = seed
        kernel(a, c)
        yield c


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("how", "gives_back"),
    [
        ("one arrives for a warp", "warp_sync()"),
        ("each arrives", "mbarrier_arrive"),
        ("a condition reads", "warp_sync()"),
        ("a view reads", "warp_sync()"),
        ("a numbered barrier", "bar_sync"),
    ],
)
def test_readers_have_a_fence_before_they_give_a_tile_back(how, gives_back):
    kernel = emulated(in_turn(how))
    text = text_of(kernel)
    assert text.count(FENCE) == 1
    *_, read = (found.start() for found in READ.finditer(text))
    assert read < text.index(FENCE) < text.index(gives_back, read)
    a = torch.rand(ROUNDS, 32) + 1
    assert all(torch.equal(c, a) for c in results(kernel, a))


def test_who_copies_has_a_fence_where_all_meet_at_a_barrier():
    kernel = emulated(alone())
    before, after = text_of(kernel).split(FENCE)
    assert before.rstrip().endswith("if (((int)threadIdx.x) == 0) {")
    assert "__syncthreads" not in after
    a = torch.rand(ROUNDS, 32)
    assert all(torch.equal(c, a) for c in results(kernel, a))


@pytest.mark.parametrize("program", [in_turn("nobody reads"), alone(rounds=1)])
def test_a_tile_that_is_not_read_or_copied_once_needs_none(program):
    assert FENCE not in text_of(tvmtile.compile(program, target=SM90))


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

    text = text_of(tvmtile.compile(main, target=SM90))
    assert "wgmma" in text
    assert FENCE not in text[: text.rindex("wgmma")]


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    "program",
    [
        in_turn("one arrives for a warp"),
        in_turn("each arrives"),
        alone(),
        in_turn("a numbered barrier"),
    ],
)
def test_the_emulator_misses_a_fence(program, monkeypatch):
    passes = tuple(each for each in LOWERING["cuda"] if each is not FenceLoads)
    monkeypatch.setitem(LOWERING, "cuda", passes)
    kernel = emulated(program)
    with pytest.raises(CudaEmulationError, match="writes tile_ptr.*, which .* read, and no fence"):
        list(results(kernel, torch.rand(ROUNDS, 32)))
