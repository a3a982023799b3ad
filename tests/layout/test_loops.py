"""The iterations of a nest and the elements they touch determine each other's layout."""

import itertools

import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import ir, tirx
from tvm.script import tirx as T

from tvmtile.analysis.nests import Nest
from tvmtile.ir.kernels import is_parallel
from tvmtile.layout.fragment import (
    REGISTER,
    THREAD,
    Digit,
    FragmentLayout,
    replicated,
    spread,
)
from tvmtile.layout.index_map import IndexMap, Part
from tvmtile.layout.loops import LoopAxis, LoopLayout, loop_layout

THREADS = 64


def nest_of(func):
    found = []
    tvm_ffi.structural_walk(
        func.body,
        (tirx.For, lambda loop: found.append(loop) if is_parallel(loop) else None),
        order="pre",
    )
    return Nest(found[0])


def access(nest, name):
    return next(a for a in nest.accesses if a.buffer.name == name)


def followed(func, known, wanted):
    """The layout that `wanted` gets from the layout of `known`."""
    nest = nest_of(func)
    fixed = access(nest, known[0])
    loops = LoopLayout.of_elements(nest, fixed, known[1])
    assert loops is not None
    target = access(nest, wanted)
    return loops.of_fragment(nest, target, shape(target.buffer))


def shape(buffer):
    return tuple(int(extent) for extent in buffer.ty.shape)


TILE = spread((8, 64), THREADS, 4)


def copied(x, y, of_x, of_y, extents=(8, 64), into="y"):
    """A nest of two loops: tensors of two shapes, indices of each, and which one is written."""

    @T.prim_func
    def written_y(x: T.Buffer(x, "float32"), y: T.Buffer(y, "float32")):
        for i in T.parallel(extents[0]):
            for j in T.parallel(extents[1]):
                y[of_y(i, j)] = x[of_x(i, j)]

    @T.prim_func
    def written_x(x: T.Buffer(x, "float32"), y: T.Buffer(y, "float32")):
        for i in T.parallel(extents[0]):
            for j in T.parallel(extents[1]):
                x[of_x(i, j)] = y[of_y(i, j)]

    return written_y if into == "y" else written_x


def plain(i, j):
    return i, j


same = copied((8, 64), (8, 64), plain, plain)
transposed = copied((8, 64), (64, 8), plain, lambda i, j: (j, i))
row_vector = copied((8, 64), (64,), plain, lambda i, j: j, into="x")
packed = copied((8, 64), (8, 32), plain, lambda i, j: (i, j // 2), into="x")
split = copied((8, 64), (8, 4, 16), plain, lambda i, j: (i, j // 16, j % 16))
flat = copied((8, 64), (512,), plain, lambda i, j: i * 64 + j)
reversed_columns = copied((8, 64), (8, 64), plain, lambda i, j: (i, 63 - j))


def test_the_same_indices_give_the_same_layout():
    assert followed(same, ("x", TILE), "y") == TILE


def test_transposed_indices_give_the_transposed_layout():
    layout = followed(transposed, ("x", TILE), "y")
    assert [d for d in layout.axes[0] if d.is_thread] == [d for d in TILE.axes[1] if d.is_thread]
    assert [d for d in layout.axes[1] if d.is_thread] == [d for d in TILE.axes[0] if d.is_thread]


def test_a_vector_is_copied_over_the_threads_of_the_other_axis():
    layout = followed(row_vector, ("x", TILE), "y")
    assert layout.shape == (64,)
    assert {d.stride for d in layout.replicas} == {d.stride for d in TILE.axes[0] if d.is_thread}


def test_an_index_that_is_divided_loses_its_last_digit():
    layout = followed(packed, ("x", TILE), "y")
    assert layout.shape == (8, 32)
    assert layout.registers == TILE.registers // 2


def test_an_index_may_be_split_over_two_axes():
    layout = followed(split, ("x", TILE), "y")
    assert layout.shape == (8, 4, 16)
    assert layout.axes[1:] == (
        (Digit(4, "tx", 4),),
        (Digit(4, "tx", 1), Digit(4, "m", 1)),
    )


def test_two_loops_may_make_one_index():
    layout = followed(flat, ("x", TILE), "y")
    assert layout.shape == (512,)
    assert layout.registers == TILE.registers


def test_an_index_that_runs_backwards_has_no_digits():
    nest = nest_of(reversed_columns)
    loops = LoopLayout.of_elements(nest, access(nest, "x"), TILE)
    assert loops.of_fragment(nest, access(nest, "y"), (8, 64)) is None


def test_any_thread_reads_what_all_threads_hold():
    nest = nest_of(reversed_columns)
    layouts = {"x": replicated((8, 64), THREADS), "y": TILE}
    # y is written by an index that runs backwards, so nothing can run where its elements lie.
    assert loop_layout(nest, lambda buffer: layouts[buffer.name]) is None
    nest = nest_of(same)
    loops = loop_layout(nest, lambda buffer: layouts[buffer.name])
    assert loops.reaches(nest, access(nest, "x"), layouts["x"])


def test_every_copy_of_an_element_is_written():
    nest = nest_of(row_vector)
    layouts = {"x": replicated((8, 64), THREADS), "y": spread((64,), THREADS, 1)}
    assert loop_layout(nest, lambda buffer: layouts[buffer.name]) is None


def test_a_nest_runs_where_the_least_copied_fragment_lies():
    nest = nest_of(row_vector)
    vector = TILE.without_axis(0)
    layouts = {"x": TILE, "y": vector}
    loops = loop_layout(nest, lambda buffer: layouts[buffer.name])
    assert loops.replicas == TILE.replicas


def test_loops_without_digits_run_in_the_threads_that_hold_copies():
    nest = nest_of(copied((8, 64), (8,), plain, lambda i, j: i, into="x"))
    loops = LoopLayout.of_elements(nest, access(nest, "y"), TILE.without_axis(1))
    assert loops.replicas == []
    assert loops.axes[nest.variables[1]].size == 64


@pytest.mark.parametrize("first", [0, 16, 48])
def test_a_slice_runs_where_the_whole_lies(first):
    @T.prim_func
    def sliced(x: T.Buffer((64,), "float32"), out: T.Buffer((16,), "float32")):
        for i in T.parallel(16):
            out[i] = x[i + first]

    nest = nest_of(sliced)
    layout = spread((64,), THREADS, 1)
    loops = LoopLayout.of_elements(nest, access(nest, "x"), layout)
    axis = loops.axes[nest.variables[0]]
    assert axis.size == 64
    assert int(axis.base) == first


def test_the_other_half_of_a_row_lies_in_other_threads():
    nest = nest_of(copied((8, 64), (8, 64), lambda i, j: (i, j + 32), plain, extents=(8, 32)))
    near, far = access(nest, "y"), access(nest, "x")
    loops = LoopLayout.of_elements(nest, near, TILE)
    assert loops.reaches(nest, near, TILE)
    assert not loops.reaches(nest, far, TILE)
    columns = Digit(2, "m", 4), Digit(8, "tx", 1), Digit(4, "m", 1)
    both = FragmentLayout(THREADS, ((Digit(8, "tx", 8),), columns))
    assert LoopLayout.of_elements(nest, near, both).reaches(nest, far, both)


def test_names_in_indices_stand_for_their_values():
    @T.prim_func
    def named(x: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
        for i in T.parallel(64):
            half: T.let[T.int32] = i // 2
            out[i] = x[half * 2]

    nest = nest_of(named)
    read = access(nest, "x")
    assert ir.Var not in {type(i) for i in read.indices}
    layout = LoopLayout(THREADS, {nest.variables[0]: LoopAxis((Digit(64, "tx", 1),))})
    own = layout.of_fragment(nest, read, (64,))
    assert own == FragmentLayout(THREADS, ((Digit(32, "tx", 2), Digit(2, "m", 1)),))


@T.prim_func
def in_steps(x: T.Buffer((8, 64), "float32"), y: T.Buffer((8, 4), "float32"), step: T.int32):
    for i in T.parallel(8):
        for j in T.parallel(4):
            y[i, j] += x[i, step * 4 + j]


def test_a_loop_that_counts_in_steps_of_its_extent_has_the_digits_of_a_step():
    columns = Digit(16, REGISTER, 1), Digit(4, THREAD, 1)
    x = FragmentLayout(32, ((Digit(8, THREAD, 4),), columns))
    y = FragmentLayout(32, ((Digit(8, THREAD, 4),), (Digit(4, THREAD, 1),)))
    assert followed(in_steps, ("x", x), "y") == y
    layouts = {"x": x, "y": y}
    assert loop_layout(nest_of(in_steps), lambda buffer: layouts[buffer.name]) is not None


def test_a_loop_whose_steps_lie_in_different_threads_counts_the_whole_row():
    columns = Digit(16, THREAD, 1), Digit(4, REGISTER, 1)
    x = FragmentLayout(16, ((Digit(8, REGISTER, 4),), columns))
    nest = nest_of(in_steps)
    loops = LoopLayout.of_elements(nest, access(nest, "x"), x)
    assert loops is not None
    assert loops.axes[nest.variables[1]].size == 64


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(1, 4)), max_size=3),
    st.integers(-40, 40),
)
def test_a_base_keeps_the_digits_that_it_neither_fills_nor_carries_into(steps, base):
    parts, scale = [], 1
    for gap, extent in steps:
        scale *= gap
        parts.insert(0, Part(tirx.Var("i", "int32"), 1, extent, scale, is_whole=True))
        scale *= extent

    def digits(index):
        return [index // part.scale % part.extent for part in parts]

    values = itertools.product(*(range(part.extent) for part in parts))
    kept = all(
        digits(base + sum(v * part.scale for v, part in zip(value, parts, strict=True)))
        == list(value)
        for value in values
    )
    assert IndexMap(tuple(parts), base).base_keeps_digits <= kept


def test_variables_that_cancel_have_no_digits():
    """TVM's iterator maps divide by the scale of one, which is 0."""
    nest = nest_of(same)
    i, j = nest.variables
    wanted = IndexMap.of(i % 4, nest)
    assert wanted is not None
    for index in ((j - (j - i)) % 4, (i - j + j) % 4, i % 4 + (j - j) // 4):
        assert IndexMap.of(index, nest) == wanted
