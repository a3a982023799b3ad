"""What the emulator finds: each kernel of `kernels/mistakes.metal` has one mistake planted."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tvmtile.emulator.metal import compile_msl
from tvmtile.errors import MetalEmulationError

SOURCE = (Path(__file__).parent / "kernels" / "mistakes.metal").read_text(encoding="utf-8")


@cache
def module():
    return compile_msl(SOURCE)


def floats(count):
    return np.zeros(count, np.float32)


def line_of(comment):
    """The line of the source that has a comment."""
    (line,) = [i for i, text in enumerate(SOURCE.splitlines(), 1) if f"// {comment}" in text]
    return line


def error_of(name, *arguments, **launch):
    """Launch a kernel that must fail; the arguments must be left as they were."""
    before = [a.copy() for a in arguments if isinstance(a, np.ndarray)]
    with pytest.raises(MetalEmulationError) as caught:
        module().kernel(name)(*arguments, **launch)
    after = [a for a in arguments if isinstance(a, np.ndarray)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert caught.value.kernel == name
    assert f"kernel {name!r}: " in str(caught.value)
    return caught.value


def check(error, kind, comment, *, buffer=None, index=None, threads=None):
    assert (error.kind, error.line) == (kind, line_of(comment)), str(error)
    assert SOURCE.splitlines()[error.line - 1].strip() in str(error)
    assert (error.buffer, error.index) == (buffer, index), str(error)
    if threads is not None:
        assert error.threads == tuple((t, 0, 0) for t in threads), str(error)


# --- races


def test_read_without_a_barrier():
    error = error_of("read_without_barrier", floats(64), grid=1, threads=64)
    assert (error.kind, error.buffer) == ("race", "tile")
    # The reader ran first: it is the write that finds it.
    writer, reader = (t[0] for t in error.threads)
    assert (error.index, reader) == (writer, 63 - writer)
    assert f"writes tile[{writer}], which thread ({reader}, 0, 0) read" in str(error)
    assert "put a threadgroup_barrier between" in str(error)


def test_write_without_a_barrier_after_reads():
    error = error_of("write_without_barrier", floats(64), grid=1, threads=64)
    first, second = (t[0] for t in error.threads)
    check(error, "race", "race: write after read", buffer="tile", index=error.index)
    # Whoever of the two comes second is named first; the reader has the number before.
    assert (first - second) % 64 in {1, 63}
    assert error.index == max(first, second) or {first, second} == {0, 63}


def test_two_writes_of_one_address():
    error = error_of("two_writes", floats(1), grid=1, threads=64)
    check(error, "race", "race: two writes", buffer="sums", index=2, threads=(40, 3))
    assert "thread (40, 0, 0) writes sums[2], which thread (3, 0, 0) wrote" in str(error)


def test_barrier_with_the_flag_of_other_memory_orders_nothing():
    error = error_of("wrong_barrier_flag", floats(64), grid=1, threads=64)
    comment = "race: the barrier orders device memory only"
    check(error, "race", comment, buffer="tile", index=error.index)
    assert error.threads[0][0] + error.threads[1][0] == 63


def test_simdgroup_barrier_does_not_order_two_simdgroups():
    error = error_of("simdgroup_barrier_is_not_enough", floats(64), grid=1, threads=64)
    assert (error.kind, error.buffer) == ("race", "tile")
    assert abs(error.threads[0][0] - error.threads[1][0]) == 32


def test_bytes_beside_each_other_do_not_race():
    out = np.zeros(64, np.uint8)
    module().kernel("neighbours_in_a_word")(out, grid=1, threads=64)
    np.testing.assert_array_equal(out, np.arange(64))


def test_matrix_load_races_with_the_lanes_that_fill_the_tile():
    error = error_of("matrix_before_barrier", floats(64), grid=1, threads=64)
    check(error, "race", "race: matrix load", buffer="tile", index=error.index)


def test_race_in_device_memory_can_be_allowed():
    data = np.zeros(128, np.int32)
    error = error_of("device_race", data, grid=1, threads=64)
    assert (error.kind, error.buffer) == ("race", "data")
    assert error.threads[0][0] ^ error.threads[1][0] == 1
    module().kernel("device_race")(data, grid=1, threads=64, check_device_races=False)


def test_race_of_two_threadgroups():
    error = error_of("threadgroups_race", np.zeros(8, np.int32), grid=(1, 3), threads=32)
    check(error, "race", "race: two threadgroups", buffer="data", index=7, threads=(5, 5))
    assert "update the element atomically" in str(error)
    assert "put a threadgroup_barrier" not in str(error)
    assert error.threadgroup == (0, 1, 0)
    assert "thread (5, 0, 0) of threadgroup (0, 0, 0) wrote" in str(error)


def test_plain_access_races_with_atomics():
    counter, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    error = error_of("atomic_and_plain", counter, out, grid=1, threads=64)
    comment = "race: a plain read among atomics"
    assert (error.kind, error.buffer, error.index) == ("race", "count", 0)
    assert error.line == line_of(comment) or "atomically" in str(error)
    assert (9, 0, 0) in error.threads


# --- bounds


def test_read_past_the_end_of_a_buffer():
    halves = np.zeros(64, np.float16)
    error = error_of("past_device_end", halves, halves.copy(), grid=2, threads=32)
    check(error, "out_of_bounds", "bounds: read", buffer="in", index=64, threads=(31,))
    assert error.threadgroup == (1, 0, 0)
    assert "in has 64 elements" in str(error)


def test_write_before_the_start_of_a_buffer():
    error = error_of("before_device_start", np.zeros(32, np.int32), grid=1, threads=32)
    check(error, "out_of_bounds", "bounds: write", buffer="out", index=-2, threads=(0,))


def test_vector_that_ends_outside():
    error = error_of("half_a_vector_outside", floats(10), grid=1, threads=4)
    comment = "bounds: a vector that ends outside"
    check(error, "out_of_bounds", comment, buffer="out", index=2, threads=(2,))


def test_past_the_end_of_a_threadgroup_array_is_not_the_next_array():
    error = error_of("past_threadgroup_end", floats(32), grid=1, threads=32)
    comment = "bounds: the first of two arrays"
    check(error, "out_of_bounds", comment, buffer="first", index=32, threads=(31,))


def test_index_outside_of_its_row():
    error = error_of("index_of_an_array", floats(1), 9, grid=1, threads=1)
    comment = "bounds: an index within the array, outside of its row"
    check(error, "out_of_bounds", comment, buffer="table", index=9, threads=(0,))


@pytest.mark.parametrize("at", [8, -1])
def test_index_of_thread_memory(at):
    error = error_of("index_of_registers", floats(1), at, grid=1, threads=1)
    check(error, "out_of_bounds", "bounds: thread memory", buffer="registers", index=at)


def test_matrix_that_ends_outside():
    a, out = np.zeros((8, 20), np.float16), np.zeros(64, np.float16)
    module().kernel("matrix_past_the_end")(a, out, 20, grid=1, threads=32)
    error = error_of("matrix_past_the_end", a, out, 24, grid=1, threads=32)
    comment = "bounds: matrix load"
    check(error, "out_of_bounds", comment, buffer="in", index=error.index)
    row, column = divmod(error.index, 24)
    assert 6 <= row < 8
    assert column < 8
    assert error.index >= 160


def test_address_in_no_buffer():
    error = error_of("null_buffer", floats(1), 16, grid=1, threads=1)
    assert (error.kind, error.buffer) == ("out_of_bounds", None)
    assert error.line == line_of("bounds: no buffer at all")
    assert "memory of no buffer" in str(error)


# --- never written


def test_threadgroup_memory_never_written():
    error = error_of("never_written", floats(64), grid=1, threads=64)
    comment = "never written: tile[63]"
    check(error, "uninitialized", comment, buffer="tile", index=63, threads=(62,))


def test_threadgroup_memory_does_not_outlive_its_threadgroup():
    error = error_of("kept_from_another_threadgroup", floats(64), grid=2, threads=32)
    comment = "never written: by this threadgroup"
    check(error, "uninitialized", comment, buffer="tile", index=0, threads=(0,))
    assert error.threadgroup == (1, 0, 0)


def test_accumulator_never_filled():
    ones = np.ones(64, np.float32)
    error = error_of("accumulator_never_filled", ones, floats(64), grid=1, threads=32)
    check(error, "uninitialized", "never written: the accumulator", threads=(0,))
    assert "takes matrix 'c'" in str(error)


def test_matrix_of_which_half_the_elements_were_written():
    error = error_of("half_filled_matrix", np.zeros(64, np.float16), grid=1, threads=32)
    check(error, "uninitialized", "never written: each lane's second element", threads=(0,))


# --- divergence


def test_barrier_in_a_branch():
    error = error_of("barrier_in_a_branch", floats(64), grid=1, threads=64)
    check(error, "divergence", "divergence: in a branch")
    waiting, returned = (t[0] for t in error.threads)
    assert waiting < 40 <= returned
    assert f"but thread ({returned}, 0, 0) has returned" in str(error)


def test_two_barriers_are_not_one():
    error = error_of("two_barriers", floats(64), grid=1, threads=64)
    check(error, "divergence", "divergence: another barrier", threads=(32, 0))
    assert f"(line {line_of('divergence: one barrier')})" in str(error)


def test_lanes_that_returned_early():
    module().kernel("early_return")(floats(64), 32, grid=1, threads=64)
    error = error_of("early_return", floats(64), 50, grid=1, threads=64)
    check(error, "divergence", "divergence: simd_sum", threads=(32, 50))


def test_matrix_load_that_a_lane_misses():
    error = error_of("matrix_in_a_branch", floats(64), floats(64), grid=1, threads=32)
    assert error.kind == "divergence"
    assert (13, 0, 0) in error.threads
    assert "simdgroup_load" in str(error)
    assert "simdgroup_store" in str(error)


def test_loops_of_different_length_around_a_barrier():
    error = error_of("different_trip_counts", floats(64), grid=1, threads=64)
    check(error, "divergence", "divergence: trip counts")


# --- alignment


def test_misaligned_vector_in_device_memory():
    a, out = np.arange(72, dtype=np.float32), np.zeros((16, 4), np.float32)
    module().kernel("misaligned_vector")(a, out, 4, grid=1, threads=16)
    np.testing.assert_array_equal(out.ravel(), np.arange(4, 68))
    error = error_of("misaligned_vector", a, out, 2, grid=1, threads=16)
    check(error, "misaligned", "misaligned: device", buffer="in", index=2, threads=(0,))
    assert "multiple of 16 bytes" in str(error)


def test_view_is_aligned_as_it_lies_in_its_array():
    a, out = np.arange(73, dtype=np.float32), np.zeros((16, 4), np.float32)
    error = error_of("misaligned_vector", a[1:], out, 0, grid=1, threads=16)
    check(error, "misaligned", "misaligned: device", buffer="in", index=0, threads=(0,))


def test_misaligned_vector_in_threadgroup_memory():
    error = error_of("misaligned_tile", np.zeros((32, 4), np.float16), grid=1, threads=32)
    comment = "misaligned: rows of 12 bytes"
    check(error, "misaligned", comment, buffer="tile", index=6, threads=(1,))


# --- arguments of simdgroup functions, limits


def test_matrix_pointer_that_depends_on_the_lane():
    error = error_of("pointer_per_lane", floats(128), floats(64), grid=1, threads=32)
    check(error, "not_uniform", "not uniform: pointer", threads=(31, 1))
    assert "simdgroup_load gets another pointer" in str(error)


def test_shuffle_from_a_lane_that_is_not_there():
    error = error_of("lane_out_of_range", floats(32), grid=1, threads=32)
    check(error, "invalid_lane", "invalid lane: 32")
    assert "lane 32" in str(error)


@pytest.mark.full
def test_matrix_needs_all_lanes():
    error = error_of("matrix_without_all_lanes", floats(64), grid=1, threads=20)
    assert (error.kind, error.line) == ("invalid_lane", line_of("invalid lane: too few"))


def test_threadgroup_memory_beyond_32_kilobytes():
    error = error_of("too_much_memory", floats(32), grid=1, threads=32)
    assert (error.kind, error.buffer) == ("threadgroup_memory", "second")
    assert error.line == line_of("threadgroup memory: too much")
    assert "12000 bytes, which makes 36000 together" in str(error)


def test_write_to_a_buffer_that_is_constant():
    error = error_of("writes_a_constant", floats(4), floats(1), grid=1, threads=1)
    check(error, "read_only", "read-only", buffer="table", index=1, threads=(0,))
