"""Each wait, arrival, fence and barrier of kernels with bulk copies is missed."""

from __future__ import annotations

import re

import pytest
import torch

from tests.fuzz.run import loaded
from tests.programs import catalogue
from tests.tileop.tma.test_tma_copy import emulated
from tvmtile.errors import CudaEmulationError

NEEDED = re.compile(
    r"^ *(__syncthreads\(\)|tvm_builtin_(cuda_mbarrier_wait"
    r"|ptx_(mbarrier_(expect_tx|arrive)|fence_proxy|cp_async_bulk_(commit|wait)_group))\w*\(.*\));$",
    re.MULTILINE,
)


def product():
    a, b = torch.randn(100, 160).half(), torch.randn(160, 88).half()
    args = (a, b, torch.ones(5, dtype=torch.int32), torch.zeros(100, 88))
    return "bulk_loads_of_a_product", args, (a.double() @ b.double()).float()


def store():
    a = torch.randn(150, 80).half()
    return "bulk_stores", (a, torch.zeros_like(a)), a * 2


@pytest.mark.full
@pytest.mark.parametrize(("make", "steps", "count"), [(product, {}, 9), (store, {"steps": 3}, 5)])
def test_every_step_is_missed(make, steps, count, tmp_path):
    name, args, expected = make()
    kernel = emulated(loaded(catalogue()[name].case(**steps), tmp_path).main)
    for seed in range(20):  # right as it is
        check(kernel, seed, args, expected)
    ((symbol, source),) = kernel.adapter.sources.items()
    head, kernel_mark, body = source.rpartition("__global__")
    needed = list(NEEDED.finditer(body))
    assert len(needed) == count
    for step in needed:
        broken = body[: step.start()] + body[step.end() :]
        kernel.adapter.sources[symbol] = f"{head}{kernel_mark}{broken}"
        kernel.adapter.seconds = 5.0
        assert is_wrong(kernel, args, expected), f"nothing misses {step[0].strip()}"


def is_wrong(kernel, args, expected):
    """Tell whether the emulator objects, or the result is wrong, for some order of the copies."""
    for seed in range(8):
        try:
            check(kernel, seed, args, expected)
        except (CudaEmulationError, AssertionError):
            return True
    return False


def check(kernel, seed, args, expected):
    kernel.adapter.seed = seed
    args[-1].zero_()
    kernel(*args)
    torch.testing.assert_close(args[-1], expected, rtol=1e-3, atol=5e-2)
