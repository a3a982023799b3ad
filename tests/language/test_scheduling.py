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
    """The block that visited each tile, and the number of its visit."""

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
