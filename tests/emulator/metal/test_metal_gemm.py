"""Matrix multiplication written by hand (`kernels/gemm.metal`): numbers, traffic, and time."""

import os
from functools import cache
from pathlib import Path

import pytest
import torch

from tvmtile.emulator.metal import compile_msl

SOURCE = (Path(__file__).parent / "kernels" / "gemm.metal").read_text(encoding="utf-8")
# Seconds of processor time, and what a loaded machine may make of them.
COMPILE_BUDGET = 0.3
GEMM_BUDGET = 0.7
NOISE = 1.5
TRIES = 5


@cache
def compiled():
    return compile_msl(SOURCE).kernel("gemm")


def gemm(m, n, k):
    """The product, what it should be, and what was counted."""
    generator = torch.Generator().manual_seed(m * n + k)
    a, b = (torch.randn(shape, generator=generator).half() for shape in ((m, k), (k, n)))
    c, shape = torch.zeros(m, n).half(), torch.tensor([m, n, k], dtype=torch.int32)
    counted = compiled()(a, b, c, shape, grid=(-(-n // 64), -(-m // 64)), threads=128)
    return c.double(), a.double() @ b.double(), counted


@pytest.mark.parametrize(("m", "n", "k"), [(64, 128, 32), (70, 65, 33), (1, 7, 1)])
def test_gemm_of_ragged_shapes(m, n, k):
    result, expected, _ = gemm(m, n, k)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3 * k**0.5)


def test_what_a_gemm_costs_is_counted():
    _, _, statistics = gemm(128, 64, 96)
    steps, groups = 96 // 32, 2
    assert statistics.threadgroup_barriers == groups * steps * 2
    assert statistics.matrix_multiplies == 128 * 64 * 96 // 512
    assert statistics.matrix_loads == groups * steps * 4 * 4 * 8
    assert statistics.threadgroup_bytes_written == groups * steps * 2 * 64 * 32 * 2
    assert statistics.threadgroup_bytes_read == statistics.matrix_loads * 128
    assert statistics.device_bytes_written == 128 * 64 * 2
    assert statistics.threadgroup_memory == 2 * 64 * 32 * 2
    # The tiles, each element once, and what every thread reads of the shape: 12 bytes and more.
    tiles = groups * steps * 2 * 64 * 32 * 2
    assert tiles + groups * 128 * 12 <= statistics.device_bytes_read < tiles * 1.2


def test_loads_and_stores_of_threads_are_counted_by_what_an_instruction_moves():
    source = """
    #include <metal_stdlib>
    using namespace metal;
    kernel void k(device const half* a [[buffer(0)]], device half* out [[buffer(1)]],
                  uint i [[thread_position_in_threadgroup]]) {
      alignas(16) threadgroup half tile[512];
      ((threadgroup uint4*)tile)[i] = ((device const uint4*)a)[i];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      simdgroup_half8x8 m;
      simdgroup_load(m, tile + i / 32 * 64, 8);
      simdgroup_store(m, out + i / 32 * 64, 8);
      out[128 + i] = tile[8 * i];
    }"""
    a, out = torch.randn(512).half(), torch.zeros(192, dtype=torch.float16)
    statistics = compile_msl(source).kernel("k")(a, out, grid=1, threads=64)
    torch.testing.assert_close(out, torch.cat([a[:128], a[::8]]))
    assert statistics.device_reads == statistics.threadgroup_writes == 64
    assert statistics.threadgroup_reads == statistics.device_writes == 64
    assert statistics.threadgroup_bytes_read == 2 * 64 * 2 + 64 * 2


def best_seconds(function, budget):
    best = float("inf")
    for _ in range(TRIES):
        start = os.times()[:4]  # of this process and of its children
        function()
        best = min(best, sum(os.times()[:4]) - sum(start))
        if best <= budget:
            break
    return best


def test_compiling_is_within_its_budget():
    compiled()  # the runtime, which is compiled once
    best = best_seconds(lambda: compile_msl(SOURCE, cache=False), COMPILE_BUDGET)
    assert best <= COMPILE_BUDGET * NOISE


@pytest.mark.full
def test_gemm_of_256_cubed_is_within_its_budget():
    assert best_seconds(lambda: gemm(256, 256, 256), GEMM_BUDGET) <= GEMM_BUDGET * NOISE
