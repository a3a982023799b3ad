"""Kernels written by hand in TIR run right in the emulator, which misses every step left out."""

from __future__ import annotations

from functools import cache

import pytest

from tests.emulator.cuda.hand_written import KERNELS
from tests.emulator.cuda.planted import survivors
from tvmtile.emulator.cuda import compile_cuda

ONE_IN = 10
SEEDS = [seed if seed < 2 else pytest.param(seed, marks=pytest.mark.nightly) for seed in range(20)]


@cache
def made(name):
    subject = KERNELS[name]()
    return subject, compile_cuda(subject.source, arch=subject.arch).kernel(subject.name)


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", KERNELS)
def test_it_is_right_whenever_its_work_is_done(name, seed):
    subject, kernel = made(name)
    assert subject.run(kernel, seed=seed).warpgroup_multiplies > 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", KERNELS)
def test_every_step_is_missed(name):
    assert [str(mistake) for mistake, _ in survivors(made(name)[0])] == []


def test_sums_of_float8_are_as_short_as_hopper_has_them():
    """Where they are asked for: off by more than float32 is, by less than 14 bits let through."""
    subject, kernel = made("block_scaled_product")
    subject.run(kernel)
    exact = subject.result.clone()
    kernel(*subject.arguments, **subject.launch, short_sums=True)
    error = float((subject.result - exact).abs().max() / exact.abs().max())
    assert 2**-20 < error < 2**-8


@pytest.mark.full
def test_some_steps_are_missed():
    assert not list(survivors(made("product")[0], every=ONE_IN))
