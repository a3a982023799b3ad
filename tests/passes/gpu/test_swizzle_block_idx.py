"""SwizzleBlockIdx: every block is visited once, in panels."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T


def order_of_blocks(width, height, panel_size, order):
    """What number of start each block of the grid has."""

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


def test_strips_of_rows():
    assert order_of_blocks(3, 5, 2, "strip") == [
        [0, 2, 4],
        [1, 3, 5],
        [6, 8, 10],
        [7, 9, 11],
        [12, 13, 14],
    ]


def test_every_second_panel_is_gone_through_backwards():
    assert order_of_blocks(3, 5, 2, "row") == [
        [0, 2, 4],
        [1, 3, 5],
        [10, 8, 6],
        [11, 9, 7],
        [12, 13, 14],
    ]


@pytest.mark.parametrize("order", ["row", "column", "strip", "mlx"])
@pytest.mark.parametrize(("width", "height"), [(4, 1), (1, 4), (5, 7)])
def test_every_block_once(width, height, order):
    started = order_of_blocks(width, height, 3, order)
    assert sorted(number for row in started for number in row) == list(range(width * height))


def test_panels_of_four_are_the_order_of_mlx():
    swizzled = [[None] * 3 for _ in range(8)]
    for tile_y in range(2):  # MLX: x of the grid counts four rows of tiles, which lie side by side
        for tile_x in range(3 * 4):
            swizzled[tile_y * 4 + tile_x % 4][tile_x // 4] = tile_y * 12 + tile_x
    assert order_of_blocks(3, 8, 4, "mlx") == swizzled


@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize(("width", "height"), [(9, 1), (1, 9)])
def test_a_grid_of_one_row_or_column_stays_as_it_is(width, height, order):
    @T.prim_func
    def main(A: T.Tensor((height, width), "int32")):
        with T.Kernel(width, height, threads=32) as (bx, by):
            T.use_swizzle(4, order)
            A[by, bx] = 1

    target = {"kind": "cuda", "arch": "sm_80"}
    assert "panel" not in tvmtile.compile(main, target=target).get_kernel_source()
    started = order_of_blocks(width, height, 4, order)
    assert [number for row in started for number in row] == list(range(9))


def test_panels_of_columns():
    rows = torch.tensor(order_of_blocks(3, 5, 2, "row"))
    assert order_of_blocks(5, 3, 2, "column") == rows.T.tolist()
