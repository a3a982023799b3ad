"""`T.PersistentTileScheduler`: each tile is visited once, in the order that is asked for."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "cuda": {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
}


def visited(m, n, workers, **options):
    """Who visited a tile, and as the how-manieth of its own."""

    @T.prim_func
    def kernel(who: T.Tensor((m, n), "int32"), when: T.Tensor((m, n), "int32")):
        with T.Kernel(workers, threads=32) as block:
            tiles = T.PersistentTileScheduler(m, n, **options)
            tiles.init(block)
            while tiles.valid():
                by, bx = tiles.m_idx, tiles.n_idx
                if T.get_thread_binding() == 0:
                    who[by, bx] += block + 1
                    when[by, bx] = tiles.current_iter
                tiles.next_tile()

    return kernel


def order(m, n, width, column_major):
    """The tiles by their numbers: panels of `width` lines, in each the lines' tiles side by side."""
    along, across = (m, n) if column_major else (n, m)
    panels = [range(first, min(first + width, across)) for first in range(0, across, width)]
    places = [(i, line) for panel in panels for i in range(along) for line in panel]
    return places if column_major else [(row, column) for column, row in places]


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("target", "m", "n", "width", "column_major"),
    [
        ("llvm", 3, 4, 1, True),
        ("llvm", 3, 4, 1, False),
        ("llvm", 5, 7, 3, True),
        ("llvm", 5, 7, 2, False),
        ("metal", 5, 7, 3, True),
        ("cuda", 5, 7, 3, False),
    ],
)
def test_tiles_are_visited_in_order(target, m, n, width, column_major):
    workers = 4
    who, when = torch.zeros(2, m, n, dtype=torch.int32)
    kernel = visited(m, n, workers, swizzle_size=width, column_major=column_major)
    tvmtile.compile(kernel, **TARGETS[target])(who, when)
    for number, place in enumerate(order(m, n, width, column_major)):
        assert who[place] == number % workers + 1
        assert when[place] == number // workers


@pytest.mark.full
def test_blocks_of_a_cluster_visit_neighbours():
    @T.prim_func
    def kernel(who: T.Tensor((6, 5), "int32")):
        with T.Kernel(4, threads=32, cluster_dims=2) as block:
            tiles = T.PersistentTileScheduler(6, 5, cluster_size=2)
            tiles.init(block // 2)
            while tiles.valid():
                row = tiles.m_idx * 2 + T.block_rank_in_cluster()
                if T.get_thread_binding() == 0:
                    who[row, tiles.n_idx] += block + 1
                tiles.next_tile()

    who = torch.zeros(6, 5, dtype=torch.int32)
    tvmtile.compile(kernel, **TARGETS["cuda"])(who)
    clusters = torch.arange(15).view(5, 3).T.repeat_interleave(2, 0) % 2
    assert torch.equal(who, (clusters * 2 + torch.arange(6)[:, None] % 2 + 1).int())


def test_without_state_there_are_places_only():
    @T.prim_func
    def kernel(A: T.Tensor((8,), "int32")):
        with T.Kernel(8, threads=1) as block:
            tiles = T.PersistentTileScheduler(4, 2, stateful=False)
            m, n = tiles.coord(block)
            A[block] = m * 10 + n

    a = torch.zeros(8, dtype=torch.int32)
    tvmtile.compile(kernel, target="llvm")(a)
    assert a.tolist() == [0, 10, 20, 30, 1, 11, 21, 31]
    assert "alloc" not in kernel.script()
