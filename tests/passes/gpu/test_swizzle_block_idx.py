"""SwizzleBlockIdx: every block is visited once, in panels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import tvmtile
import tvmtile.language as T


def order_of_blocks(width, height, panel_size, order):
    """The number in the order of starts of each block of the grid."""

    @T.prim_func
    def main(counter: T.Tensor((1,), "int32"), started: T.Tensor((height, width), "int32")):
        with T.Kernel(width, height, threads=32) as (bx, by):
            T.use_swizzle(panel_size, order)
            if T.get_thread_binding() == 0:
                started[by, bx] = T.atomic_add(counter[0], 1, return_prev=True)

    started = torch.full((height, width), -1, dtype=torch.int32)
    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    kernel(torch.zeros(1, dtype=torch.int32), started)
    return started.tolist()


STRIPS = [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11], [12, 13, 14]]
AND_BACK = [[0, 2, 4], [1, 3, 5], [10, 8, 6], [11, 9, 7], [12, 13, 14]]
# x of MLX's grid counts four rows of tiles, which lie side by side.
MLX = [[row // 4 * 12 + column * 4 + row % 4 for column in range(3)] for row in range(8)]


@pytest.mark.parametrize(
    ("grid", "panel_size", "order", "expected"),
    [
        ((3, 5), 2, "strip", STRIPS),
        ((3, 5), 2, "row", AND_BACK),
        ((5, 3), 2, "column", [list(column) for column in zip(*AND_BACK, strict=True)]),
        ((3, 8), 4, "mlx", MLX),
        ((9, 1), 4, "row", [list(range(9))]),
        ((1, 9), 4, "column", [[number] for number in range(9)]),
    ],
)
def test_blocks_start_by_panels(grid, panel_size, order, expected):
    assert order_of_blocks(*grid, panel_size, order) == expected


@given(st.integers(1, 7), st.integers(1, 7), st.sampled_from(["row", "column", "strip", "mlx"]))
@example(4, 1, "mlx")
@example(5, 7, "column")
def test_every_block_starts_once(width, height, order):
    started = order_of_blocks(width, height, 3, order)
    assert sorted(number for row in started for number in row) == list(range(width * height))
