"""How simdgroups share a product, and what they refuse."""

import pytest

import tvmtile.language as T
from tvmtile.tileop.gemm.partition import Partition
from tvmtile.tileop.gemm.partition import partition as share_out
from tvmtile.tileop.registry import Decline


def partition(m, n, simdgroups, policy):
    return share_out(m, n, simdgroups, policy, (8, 8), "simdgroups")


Square, FullRow, FullCol = (
    T.GemmWarpPolicy.Square,
    T.GemmWarpPolicy.FullRow,
    T.GemmWarpPolicy.FullCol,
)


@pytest.mark.parametrize("policy", list(T.GemmWarpPolicy))
@pytest.mark.parametrize("simdgroups", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("extents", [(64, 64), (128, 32), (16, 256), (128, 128)])
def test_simdgroups_share_the_whole_accumulator_and_no_more(extents, simdgroups, policy):
    share = partition(*extents, simdgroups, policy)
    assert share.rows * share.columns == simdgroups
    assert (
        8 * share.rows * share.row_matrices,
        8 * share.columns * share.column_matrices,
    ) == extents


def test_the_tile_of_128_over_8_simdgroups_is_32_matrices_each():
    share = partition(128, 128, 8, Square)
    assert share.row_matrices * share.column_matrices == 32


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Square, Partition(2, 2, 4, 4)),
        (FullRow, Partition(4, 1, 2, 8)),
        (FullCol, Partition(1, 4, 8, 2)),
    ],
)
def test_the_policy_says_along_which_axis(policy, expected):
    assert partition(64, 64, 4, policy) == expected


def test_a_policy_gives_way_where_an_axis_is_too_short():
    assert partition(16, 64, 4, FullRow) == Partition(2, 2, 1, 4)


def test_extents_that_are_no_multiples_of_8_are_refused():
    with pytest.raises(
        Decline, match=r"\[60, 64\] does not consist of 8x8 matrices .one of \[64, 64\] does"
    ):
        partition(60, 64, 4, Square)


def test_what_simdgroups_cannot_share_is_refused_with_what_they_can():
    with pytest.raises(
        Decline, match="3 simdgroups .96 threads. can't share .*64 or 128 or 256 or 512 threads can"
    ):
        partition(32, 32, 3, Square)


@pytest.mark.parametrize(
    ("extents", "groups", "expected"),
    [
        ((16, 16), 4, Partition(2, 2, 1, 1)),
        ((8, 16), 4, Partition(1, 2, 1, 1)),
        ((8, 8), 8, Partition(1, 1, 1, 1)),
        ((32, 32), 3, Partition(1, 1, 4, 4)),
        ((24, 16), 6, Partition(3, 2, 1, 1)),
        ((24, 16), 12, Partition(3, 2, 1, 1)),
    ],
)
def test_groups_that_are_too_many_repeat_what_others_do(extents, groups, expected):
    assert share_out(*extents, groups, Square, (8, 8), "warps", repeats=True) == expected
