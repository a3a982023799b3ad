"""Simdgroups, matrices, atomics: `kernels/simdgroups.metal`, written from the specification."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tvmtile.emulator.metal import compile_msl

KERNELS = Path(__file__).parent / "kernels"
RNG = np.random.default_rng(1)


@cache
def kernel(name):
    return compile_msl((KERNELS / "simdgroups.metal").read_text(encoding="utf-8")).kernel(name)


@pytest.mark.full
def test_reductions_over_lanes():
    a = RNG.uniform(0.5, 1.5, (4, 32)).astype(np.float32)
    n = RNG.integers(0, 100, (4, 32)).astype(np.int32)
    n[1] = np.arange(60, 92)
    out, integers = np.zeros((4, 32, 7), np.float32), np.zeros((4, 32, 7), np.int32)
    statistics = kernel("reductions")(a, out, n, integers, grid=2, threads=64)
    x = a.astype(np.float64)
    sums = np.cumsum(x, axis=1)
    wide = [x.sum(1), x.max(1), x.min(1), x.prod(1)]
    for column, expected in enumerate(wide):
        np.testing.assert_allclose(out[..., column], expected[:, None].repeat(32, 1), rtol=1e-5)
    np.testing.assert_allclose(out[..., 4], sums, rtol=1e-5)
    np.testing.assert_allclose(out[..., 5], sums - x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out[..., 6], 2 * x.sum(1)[:, None].repeat(32, 1), rtol=1e-5)
    ballot = [int(sum(1 << i for i in range(32) if row[i] > 50)) for row in n]
    expected = [
        np.bitwise_and.reduce(n, axis=1),
        np.bitwise_or.reduce(n, axis=1),
        np.bitwise_xor.reduce(n, axis=1),
        (n > 90).any(1),
        (n >= 0).all(1),
        np.array(ballot, np.uint32).view(np.int32),
        np.ones(4),
    ]
    for column, value in enumerate(expected):
        np.testing.assert_array_equal(integers[..., column], value[:, None].repeat(32, 1))
    assert statistics.simd_functions == 14 * 4


def test_shuffles():
    a = RNG.standard_normal((2, 32)).astype(np.float16)
    out = np.zeros((2, 32, 8), np.float16)
    kernel("shuffles")(a, out, grid=1, threads=64)
    lane = np.arange(32)
    # Lanes that would read past an end keep their own value.
    sources = [
        31 - lane,
        lane ^ 5,
        np.where(lane < 3, lane, lane - 3),
        np.where(lane + 4 > 31, lane, lane + 4),
        0 * lane + 7,
        0 * lane,
        (lane + 1) % 32,
        (lane - 2) % 32,
    ]
    for column, source in enumerate(sources):
        np.testing.assert_array_equal(out[..., column], a[:, source])


def test_block_sum_through_threadgroup_memory_given_by_the_host():
    a = RNG.standard_normal(1024).astype(np.float32)
    out = np.zeros(1, np.float32)
    statistics = kernel("block_sum")(a, out, grid=1, threads=1024, threadgroup_memory={0: 32 * 4})
    np.testing.assert_allclose(out[0], a.astype(np.float64).sum(), rtol=1e-4, atol=1e-4)
    assert statistics.threadgroup_barriers == 1
    assert statistics.threadgroup_memory == 128
    assert statistics.device_bytes_read == 4096


def test_simdgroup_barriers_order_the_lanes_of_a_simdgroup():
    a = RNG.integers(-100, 100, 64).astype(np.int32)
    out = np.zeros(2, np.int32)
    statistics = kernel("simdgroup_tree")(a, out, grid=1, threads=64)
    np.testing.assert_array_equal(out, a.reshape(2, 32).sum(1))
    assert statistics.simdgroup_barriers == 10
    assert statistics.threadgroup_barriers == 0


def test_atomics():
    a = RNG.integers(-1000, 1000, 256).astype(np.int32)
    counters = np.array([5, -(2**31), 2**31 - 1, 1], np.int32)
    bits, total, histogram = np.zeros(1, np.uint32), np.ones(1, np.float32), np.zeros(4, np.int32)
    kernel("atomics")(a, counters, bits, total, histogram, grid=4, threads=64)
    assert counters.tolist() == [5 + a.sum(), a.max(), a.min(), 1 + 2 * 256]
    assert bits[0] == np.bitwise_or.reduce(np.uint32(1) << (a & 31).astype(np.uint32))
    assert total[0] == 1 + 0.5 * a.sum()
    np.testing.assert_array_equal(histogram, np.bincount(a[:64] & 3, minlength=4))


def test_each_lane_holds_two_neighbours_of_a_row():
    matrix = np.arange(64, dtype=np.float32)
    out = np.zeros((32, 4), np.float32)
    kernel("lane_map")(matrix, out, grid=1, threads=32)
    # Quads of lanes, by rows of the table; the numbers are elements 8 row + column.
    lane = np.arange(32)
    quad = lane // 4
    row = (quad & 4) + (lane // 2) % 4
    column = (quad & 2) * 2 + (lane % 2) * 2
    np.testing.assert_array_equal(out[:, 0], 8 * row + column)
    np.testing.assert_array_equal(out[:, 1], 8 * row + column + 1)
    np.testing.assert_array_equal(out[:, 2], 8 * column + row)
    np.testing.assert_array_equal(out[:, 3], 8 * (column + 1) + row)
    assert sorted(out[:, :2].ravel().tolist()) == list(range(64))


@pytest.mark.parametrize(
    ("name", "inputs", "output", "tolerance"),
    [
        ("block_half", torch.float16, torch.float32, 1e-6),
        ("block_bfloat", torch.bfloat16, torch.float32, 1e-6),
        ("block_float", torch.float32, torch.float32, 1e-6),
        ("block_all_half", torch.float16, torch.float16, 1e-3),
    ],
)
def test_blocks_of_matrices_by_origin_stride_and_transpose(name, inputs, output, tolerance):
    a, b = (torch.randn(32, 24).to(inputs) for _ in range(2))
    c = torch.randn(32, 24).to(output)
    d = torch.zeros(32, 24, dtype=output)
    kernel(name)(a, b, c, d, grid=1, threads=32)
    rows, columns = slice(16, 24), slice(8, 16)
    expected = torch.zeros(32, 24, dtype=torch.float64)
    # b is loaded transposed from (row 16, column 8).
    block = a[rows, columns].double() @ b[rows, columns].double().T
    expected[rows, columns] = block + c[rows, columns].double()
    torch.testing.assert_close(d.double(), expected, rtol=tolerance, atol=4 * tolerance)


def test_diagonal_and_filled_matrices():
    a = RNG.standard_normal((8, 8)).astype(np.float32)
    out = np.zeros((4, 8, 8), np.float32)
    statistics = kernel("special_matrices")(a, out, grid=1, threads=32)
    np.testing.assert_array_equal(out, [2 * a, 3 * a, np.full((8, 8), 4), a.T])
    assert statistics.matrix_loads == 1
    assert statistics.matrix_stores == 4
    assert statistics.matrix_multiplies == 2


@pytest.mark.parametrize("threads", [1, 20, 33, 63])
def test_last_simdgroup_may_be_short(threads):
    source = """
        #include <metal_stdlib>
        using namespace metal;
        kernel void count(device uint* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
          out[i] = simd_sum(1u) + (simd_all(true) ? 100 : 0) + (simd_ballot(true).all() ? 200 : 0);
        }"""
    out = np.zeros(threads, np.uint32)
    compile_msl(source).kernel("count")(out, grid=1, threads=threads)
    whole = threads // 32 * 32
    expected = np.where(np.arange(threads) < whole, 32, threads - whole) + 300
    np.testing.assert_array_equal(out, expected)
