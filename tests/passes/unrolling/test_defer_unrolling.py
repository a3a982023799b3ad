"""DeferUnrolling: the nests of a very long kernel are loops for the compiler of the source."""

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
BARRIERS = {"metal": "barrier(", "cuda": "sync"}


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
            row = T.alloc_fragment((64,), "float32")
            T.copy(A, own)
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                own[i, j] = sum_of_shares(own[i, j], [tile[i, j], tile[j, i]], count)
            for i in T.unroll(64):
                for j in T.Parallel(64):
                    row[j] = tile[i, 63 - j]
                for j in T.Parallel(64):
                    tile[i, j] = sum_of_shares(tile[i, j], [row[j], A[i, j]], count)
            for i, j in T.Parallel(64, 64):
                C[i, j] = own[i, j] - tile[63 - i, j]

    return main


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_the_longest_nests_of_a_very_long_kernel_are_loops(target):
    """Also those with barriers; the source grows with what is written, not with the elements."""
    short, long = (tvmtile.compile(sums(count), **TARGETS[target]) for count in (1, 40))
    sources = [kernel.get_kernel_source() for kernel in (short, long)]
    assert [PRAGMAS[target] in source for source in sources] == [False, True]
    assert [source.count(BARRIERS[target]) > 32 for source in sources] == [True, False]
    assert len(sources[1]) < 3 * len(sources[0])
    a, c = torch.randn(64, 64), torch.zeros(64, 64)
    long(a, c)
    own, tile = sum_of_shares(a, [a, a.T], 40), sum_of_shares(a, [a.flip(1), a], 40)
    torch.testing.assert_close(c, own - tile.flip(0))
