"""Layouts of fragments: every element has its threads and its register, and TVM sees the same."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx
from tvm.sym import Analyzer

from tvmtile.layout.fragment import (
    REGISTER,
    THREAD,
    Digit,
    FragmentLayout,
    common_refinement,
    gaps,
    layout_of,
    replicated,
    spread,
)
from tvmtile.tileop.gemm.simdgroup import COLUMN, ROW


def value(expression):
    return int(Analyzer().simplify(expression))


def place(layout, indices):
    constants = [tirx.const(index, "int32") for index in indices]
    return value(layout.thread_of(constants)), value(layout.register_of(constants))


def fragment(layout, dtype="float32"):
    return tirx.decl_buffer(
        layout.shape, dtype, name="x", scope="local.fragment", layout=layout.to_tvm()
    )


def matrix():
    return FragmentLayout(32, (ROW, COLUMN))


shapes = st.lists(st.integers(1, 70), min_size=1, max_size=3)
threads = st.sampled_from([32, 64, 96, 128])


@settings(max_examples=100)
@given(shapes, threads, st.sampled_from([1, 2, 4, 8]))
def test_a_spread_tile_has_a_place_of_its_own_for_every_element(shape, count, vector):
    layout = spread(tuple(shape), count, vector)
    assert all(have >= need for have, need in zip(layout.shape, shape, strict=True))
    copies = math.prod(digit.extent for digit in layout.replicas)
    assert math.prod(layout.shape) * copies == layout.registers * count


@pytest.mark.parametrize(
    "layout", [spread((4, 6), 32, 2), spread((5, 3), 96, 1), matrix()], ids=str
)
def test_no_two_elements_share_a_register(layout):
    places = {place(layout, i) for i in itertools.product(*(range(e) for e in layout.shape))}
    assert len(places) == math.prod(layout.shape)
    assert all(t < layout.threads and r < layout.registers for t, r in places)


def test_neighbouring_threads_hold_neighbours_in_memory():
    layout = spread((8, 64), 128, 4)
    assert [place(layout, (0, j)) for j in (0, 3, 4, 60)] == [(0, 0), (0, 3), (1, 0), (15, 0)]
    assert place(layout, (1, 0)) == (16, 0)


def test_threads_without_work_take_some_of_the_neighbours():
    assert spread((64,), 64, 4).registers == 1
    assert spread((8, 8), 64, 4).registers == 1
    assert spread((8, 8), 32, 4).registers == 2
    assert spread((200,), 128, 4).registers == 2


def test_threads_move_as_few_times_as_they_can():
    assert spread((3, 26), 64, 4).axes[1][-1] == Digit(2, REGISTER, 1)
    # 3 moves of 4, though 9 of 1 would leave fewer places empty.
    assert spread((16, 36), 64, 8).registers == 12


def test_what_fits_into_fewer_threads_is_copied():
    layout = spread((64,), 128, 4)
    assert layout.replicas == [Digit(2, THREAD, 64)]


def test_an_axis_that_the_threads_do_not_divide_is_padded():
    assert spread((200,), 128, 1).shape == (256,)


def test_a_replicated_tile_has_all_elements_in_every_thread():
    layout = replicated((3, 5), 64)
    assert layout.registers == 15
    assert math.prod(digit.extent for digit in layout.replicas) == 64


def test_the_elements_of_a_simdgroup_matrix_lie_where_mlx_finds_them():
    # mlx/backend/metal/kernels/steel/gemm/mma.h, BaseMMAFrag::get_coord
    for lane in range(32):
        quad = lane // 4
        row = (quad & 4) + (lane // 2) % 4
        column = (quad & 2) * 2 + (lane % 2) * 2
        assert place(matrix(), (row, column)) == (lane, 0)
        assert place(matrix(), (row, column + 1)) == (lane, 1)


@pytest.mark.parametrize(
    "layout",
    [spread((8, 64), 128, 4), spread((64,), 128, 4), replicated((4, 4), 32), matrix()],
    ids=str,
)
def test_a_layout_is_read_back_from_the_type_of_a_buffer(layout):
    assert layout_of(fragment(layout)) == layout


def test_tvm_applies_the_layout_as_we_do():
    layout = spread((8, 64), 128, 4)
    for indices in [(0, 0), (3, 17), (7, 63)]:
        applied = layout.to_tvm().apply(*indices, shape=list(layout.shape))
        thread, register = place(layout, indices)
        assert value(tirx.const(0, "int32") + applied[THREAD]) == thread
        assert value(tirx.const(0, "int32") + applied.get(REGISTER, 0)) == register


def test_a_buffer_without_a_layout_has_none():
    assert layout_of(tirx.decl_buffer((8,), "float32", scope="local.fragment")) is None


def test_reducing_an_axis_copies_the_rest_over_its_threads():
    rest = matrix().without_axis(1)
    assert rest.axes == (ROW,)
    assert rest.replicas == [Digit(2, THREAD, 1), Digit(2, THREAD, 8)]
    assert rest.registers == 1


def test_gaps_are_the_digits_that_nothing_has():
    assert gaps(128, [Digit(4, THREAD, 2), Digit(2, THREAD, 64)]) == [
        Digit(2, THREAD, 1),
        Digit(8, THREAD, 8),
    ]


@pytest.mark.parametrize(
    ("first", "second", "extents"),
    [
        ([8], [2, 4], [2, 4]),
        ([2, 4], [4, 2], [2, 2, 2]),
        ([2, 3], [3, 2], None),
        ([4], [2, 4], [4]),
    ],
)
def test_two_ways_to_write_an_index_are_refined(first, second, extents):
    def digits(sizes):
        return [Digit(size, REGISTER, 1) for size in sizes]

    pairs = common_refinement(digits(first), digits(second))
    assert extents == (None if pairs is None else [a.extent for a, _ in pairs])
