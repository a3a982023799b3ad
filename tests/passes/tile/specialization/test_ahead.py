"""Loops that wait for the tiles of the next iteration behind their last product: mistakes are found."""

from __future__ import annotations

import re

import pytest

import tvmtile
from tests.passes.tile.specialization.ahead_kernels import AHEAD
from tests.passes.tile.specialization.test_kernels import HOPPER
from tvmtile.errors import CudaEmulationError

WAIT = re.compile(
    r"^ +tvm_builtin_(cuda_mbarrier_wait|ptx_wgmma_wait_group\w+)\(.*\);$", re.MULTILINE
)


@pytest.mark.nightly
@pytest.mark.parametrize("name", AHEAD)
def test_every_wait_is_missed(name):
    run = AHEAD[name]()
    kernel = tvmtile.compile(run.program, **HOPPER)
    ((symbol, source),) = kernel.adapter.sources.items()
    waits = list(WAIT.finditer(source))
    assert len(waits) >= 6
    for wait in waits:
        kernel.adapter.sources[symbol] = source[: wait.start()] + source[wait.end() :]
        with pytest.raises((CudaEmulationError, AssertionError)):
            _check(run, kernel)


def _check(run, kernel):
    for seed in range(4):
        kernel.adapter.seed = seed
        run.check(kernel)
