"""The model orders what everybody knows the order of."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tvmtile import carver
from tvmtile.carver.model import Work, blocks_per_core, seconds

H200 = carver.CUDA({"kind": "cuda", "arch": "sm_90a"})
# A block of 128 x 128 of a product, in steps of 32.
WORK = Work(
    blocks=132, threads=128, registers=168, shared=3 * 16384, steps=128, stages=3,
    matrix=2.0 * 128 * 128 * 32, moved=16384 + 32768, loaded=16384, stored=32768,
)  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "work"),
    [
        (3, WORK),  # registers
        (4, replace(WORK, registers=64)),  # 228 KB of shared memory
        (3, replace(WORK, shared=0)),  # 65536 registers
        (16, replace(WORK, shared=0, registers=32)),  # 2048 threads
        (32, replace(WORK, shared=0, registers=16, threads=32)),  # blocks
        (0, replace(WORK, registers=256)),
        (0, replace(WORK, shared=228 * 1024)),
    ],
)
def test_what_limits_the_blocks_of_a_core(limit, work):
    assert blocks_per_core(work, H200) == limit
    assert (seconds(work, H200) == math.inf) == (limit == 0)


def test_another_wave_takes_as_long_again():
    fits = 132 * blocks_per_core(WORK, H200)
    one, next_one, two = (
        seconds(replace(WORK, blocks=n), H200) for n in (fits, fits + 1, 2 * fits)
    )
    assert one < next_one <= two
    assert two == pytest.approx(2 * one, rel=0.05)


@pytest.mark.parametrize("name", ["matrix", "scalar", "moved", "loaded", "stored", "steps", "tail"])
def test_more_of_anything_is_never_quicker(name):
    more = replace(WORK, **{name: 100 * getattr(WORK, name) + 1000000})
    assert seconds(more, H200) > seconds(WORK, H200)


def test_stages_hide_the_waiting():
    times = [seconds(replace(WORK, stages=stages, shared=16384 * 4), H200) for stages in (1, 2, 3)]
    assert times[0] > times[1] >= times[2]


def test_no_grid_is_quicker_than_the_memory():
    work = replace(WORK, unique=48e9)
    assert seconds(work, H200) == pytest.approx(48e9 / (H200.memory * 1e9), rel=0.01)


def test_a_cpu_is_quicker_while_a_tile_fits_its_cache():
    cpu = carver.CPU()
    work = Work(64, 1, 0, shared=cpu.smem_cap, steps=8, matrix=1e4, moved=1e6)
    times = [
        seconds(replace(work, shared=size), cpu) for size in (cpu.smem_cap, cpu.max_smem_usage)
    ]
    assert times[0] < times[1]
