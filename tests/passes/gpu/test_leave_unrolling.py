"""LeaveUnrolling: nests under guards come as loops to the compiler of the source."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

TARGETS = {
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "cuda": {"target": {"kind": "cuda", "arch": "sm_80"}, "execution_backend": "emulator"},
}
PRAGMAS = {"metal": '_Pragma("clang loop unroll(full)")', "cuda": "#pragma unroll"}


def copies(rows, columns):
    """Two tiles with a view of one of them, through shared memory and through registers."""

    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float16"), C: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(columns, 32), T.ceildiv(rows, 32), threads=32) as (bx, by):
            tile = T.alloc_shared((32, 32), "float16")
            flat = T.view(tile, (1024,))
            own = T.alloc_fragment((32, 32), "float16")
            T.copy(A[by * 32, bx * 32], tile)
            for i, j in T.Parallel(32, 32):
                own[i, j] = flat[i * 32 + j] * 2
            T.copy(own, C[by * 32, bx * 32])

    return main


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(70, 45), (64, 64), (1, 33)])
def test_guarded_nests_are_loops_that_compute_the_same(target, shape):
    kernel = tvmtile.compile(copies(*T.dynamic("m, n")), **TARGETS[target])
    source = kernel.get_kernel_source()
    assert source.count(PRAGMAS[target]) >= 2
    a, c = torch.randn(shape).half(), torch.zeros(shape).half()
    kernel(a, c)
    assert torch.equal(c, a * 2)


@pytest.mark.parametrize("target", TARGETS)
def test_nests_without_guards_are_written_out(target):
    source = tvmtile.compile(copies(64, 64), **TARGETS[target]).get_kernel_source()
    assert PRAGMAS[target] not in source.partition("tile")[2]


@pytest.mark.parametrize("target", TARGETS)
def test_a_guard_that_is_the_same_for_a_whole_nest_leaves_it_written_out(target):
    @T.prim_func
    def main(A: T.Tensor((8, 1024), "float32"), C: T.Tensor((1024,), "float32"), row: T.int32):
        with T.Kernel(1, threads=32):
            own = T.alloc_fragment((1024,), "float32")
            for i in T.Parallel(1024):
                own[i] = T.if_then_else(row < 8, A[row, i], 0.0)
            T.copy(own, C)

    source = tvmtile.compile(main, **TARGETS[target]).get_kernel_source()
    assert PRAGMAS[target] not in source.partition("own")[2]


@pytest.mark.parametrize("target", TARGETS)
def test_atomic_updates_are_written_out(target):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), C: T.Tensor((n,), "int32")):
        with T.Kernel(T.ceildiv(n, 1024), threads=32) as bx:
            for i in T.Parallel(1024):
                if bx * 1024 + i < n:
                    T.atomic_add(C[bx * 1024 + i], A[bx * 1024 + i])

    kernel = tvmtile.compile(main, **TARGETS[target])
    a, c = torch.arange(1500, dtype=torch.int32), torch.ones(1500, dtype=torch.int32)
    kernel(a, c)
    assert torch.equal(c, a + 1)


@pytest.mark.parametrize("target", TARGETS)
def test_guards_of_known_extents_are_written_out(target):
    source = tvmtile.compile(copies(70, 45), **TARGETS[target]).get_kernel_source()
    assert PRAGMAS[target] not in source.partition("tile")[2]
