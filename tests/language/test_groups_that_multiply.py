"""Warpgroups that multiply tiles of the whole block: who waits for whom where a user names groups."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.pipelines import numbers

TARGETS = {
    "hopper": {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"},
    "llvm": {"target": "llvm"},
}
N, STEPS = 64, 4


def halves(stages):
    """All threads copy a tile, which each of two warpgroups multiplies by one of its own."""

    @T.prim_func
    def main(
        A: T.Tensor((N, STEPS * N), "float16"),
        B: T.Tensor((STEPS * N, 2 * N), "float16"),
        C: T.Tensor((N, 2 * N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((N, N), "float16")
            b, d = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c, e = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float32")
            with T.ws(0):
                T.clear(c)
            with T.ws(1):
                T.clear(e)
            for k in T.Pipelined(STEPS, num_stages=stages):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.copy(B[k * N, N], d)
                with T.ws(0):
                    T.gemm(a, b, c)
                with T.ws(1):
                    T.gemm(a, d, e)
            with T.ws(0):
                T.copy(c, C[0, 0])
            with T.ws(1):
                T.copy(e, C[0, N])

    return main


@pytest.mark.full
@pytest.mark.parametrize("stages", [0, 1, 2, 3])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_a_tile_is_copied_when_both_have_multiplied_the_one_before(target, stages):
    kernel = tvmtile.compile(halves(stages), **TARGETS[target])
    a, b = numbers(N, STEPS * N), numbers(STEPS * N, 2 * N)
    for seed in range(1 if target == "llvm" else 4):
        kernel.adapter.seed = seed
        c = torch.zeros(N, 2 * N)
        kernel(a, b, c)
        assert torch.equal(c, a.float() @ b.float())


def test_without_stages_the_loop_has_two_barriers():
    """One behind the copies, one before the next ones."""
    source = tvmtile.compile(halves(0), **TARGETS["hopper"]).get_kernel_source()
    loop = source[source.index("for (int k") :]
    assert loop[: loop.index("\n  }\n")].count("__syncthreads") == 2


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_two_warpgroups_of_three_multiply_together(target):
    """The rows of one product are shared by the second and the third warpgroup."""

    @T.prim_func
    def main(
        A: T.Tensor((2 * N, N), "float16"),
        B: T.Tensor((N, N), "float16"),
        C: T.Tensor((2 * N, N), "float32"),
    ):
        with T.Kernel(1, threads=384):
            a, b = T.alloc_shared((2 * N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((2 * N, N), "float32")
            with T.ws(0):
                T.copy(A, a)
                T.copy(B, b)
            with T.ws(1, 2):
                T.gemm(a, b, c, clear_accum=True)
                T.copy(c, C)

    a, b, c = numbers(2 * N, N), numbers(N, N), torch.zeros(2 * N, N)
    kernel = tvmtile.compile(main, **TARGETS[target])
    kernel(a, b, c)
    assert torch.equal(c, a.float() @ b.float())
    assert ("wgmma" in kernel.get_kernel_source()) == (target == "hopper")
