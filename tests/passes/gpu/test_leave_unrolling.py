"""LeaveUnrolling: nests under guards and very long ones are loops for the compiler of the source."""

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


def sum_of_shares(value, others, count):
    """An expression that is as long as one likes."""
    for step in range(count):
        value = value * 0.5 + others[step % len(others)]
    return value


def sums(count):
    """Long nests: on registers alone, and on a tile that threads exchange between iterations."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=32):
            own = T.alloc_fragment((64, 64), "float32")
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, own)
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                own[i, j] = sum_of_shares(own[i, j], [tile[i, j], tile[j, i]], count)
            for i, j in T.Parallel(64, 64):
                tile[i, j] = sum_of_shares(tile[i, j], [own[i, j], tile[i, j]], count)
            for i, j in T.Parallel(64, 64):
                C[i, j] = own[i, j] - tile[63 - i, j]

    return main


@pytest.mark.parametrize("target", TARGETS)
def test_the_longest_nests_of_a_very_long_kernel_are_loops(target):
    short, long = (tvmtile.compile(sums(count), **TARGETS[target]) for count in (1, 40))
    assert PRAGMAS[target] not in short.get_kernel_source().partition("tile")[2]
    assert PRAGMAS[target] in long.get_kernel_source()
    # It grows with what is written, not with the elements that this is done for, too.
    assert len(long.get_kernel_source()) < 3 * len(short.get_kernel_source())
    a, c = torch.randn(64, 64), torch.zeros(64, 64)
    long(a, c)
    own = sum_of_shares(a, [a, a.T], 40)
    tile = sum_of_shares(a, [own, a], 40)
    torch.testing.assert_close(c, own - tile.flip(0))


def test_barriers_in_a_long_nest_do_not_keep_it_from_being_a_loop():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((64, 64), "float32")
            row = T.alloc_fragment((64,), "float32")
            T.copy(A, tile)
            for i in T.unroll(64):
                for j in T.Parallel(64):
                    row[j] = tile[i, 63 - j]
                for j in T.Parallel(64):
                    tile[i, j] = sum_of_shares(tile[i, j], [row[j], A[i, j]], 40)
            T.copy(tile, C)

    kernel = tvmtile.compile(main, **TARGETS["cuda"])
    loop = kernel.get_kernel_source().partition(PRAGMAS["cuda"])[2]
    assert "sync" in loop.partition("C_ptr[")[0]
    a, c = torch.randn(64, 64), torch.zeros(64, 64)
    kernel(a, c)
    torch.testing.assert_close(c, sum_of_shares(a, [a.flip(1), a], 40))
