"""Groups of threads that run at the same time: a producer beside its consumers, and their races."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import compiled
from tests.pipelines import numbers
from tests.programs import catalogue
from tests.running import runnable
from tvmtile.errors import CudaEmulationError

AMPERE, HOPPER = ({"kind": "cuda", "arch": arch} for arch in ("sm_80", "sm_90a"))
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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_warp_produces_what_others_consume(asynchronous):
    a, b = numbers(STEPS * TILE, TILE), numbers(STEPS * TILE, TILE).flip(0).contiguous()
    c = torch.zeros(TILE, TILE)
    kernel = runnable(produced_by_a_warp(asynchronous=asynchronous), AMPERE)
    kernel(a, b, c)
    assert torch.equal(c, a.float().T @ b.float())
    assert "__syncthreads" not in kernel.get_kernel_source()


@pytest.mark.parametrize("target", [AMPERE, HOPPER], ids=["sm_80", "sm_90a"])
def test_nvidias_compiler_takes_groups(target):
    assert tvmtile.compile(produced_by_a_warp(asynchronous=True), target=target).cubin


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
        runnable(program, AMPERE)(torch.randn(64), torch.zeros(64))


def test_warpgroups_that_multiply_a_tile_without_stages_have_two_barriers(tmp_path):
    """One behind the copies, one before the next ones."""
    case = catalogue()["warpgroups_that_multiply_one_tile"].case(stages=0)
    source = compiled(case, "sm_90a", tmp_path).get_kernel_source()
    loop = source[source.index("for (int k") :]
    assert loop[: loop.index("\n  }\n")].count("__syncthreads") == 2
