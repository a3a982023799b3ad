"""Mistakes found when a kernel runs: assertions that do not hold, and stores that race."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tvmtile.language as T
from tests.running import runnable
from tvmtile.errors import CudaEmulationError, MetalEmulationError

AMPERE = {"kind": "cuda", "arch": "sm_80"}


@T.prim_func
def asserting(A: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            T.device_assert(A[bx * 32 + i] > 0, "positive")  # here


@pytest.mark.parametrize("target", ["llvm", AMPERE], ids=["llvm", "cuda"])
def test_an_assertion_that_does_not_hold_names_its_line(target):
    kernel = runnable(asserting, target)
    kernel(torch.ones(64))
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("# here"))
    with pytest.raises((RuntimeError, CudaEmulationError), match="positive") as caught:
        kernel(torch.zeros(64))
    assert f"{Path(__file__).name}:{line}" in str(caught.value)


def test_an_assertion_stops_a_kernel_that_one_thread_runs():
    """TVM's pool of one thread loses the errors of its loops."""
    code = (
        "import torch, tvmtile\n"
        "from tests.language.test_statements import asserting\n"
        "tvmtile.compile(asserting, target='llvm')(torch.zeros(64))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TVM_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "positive" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("target", ["metal", AMPERE], ids=["metal", "cuda"])
def test_stores_of_different_values_are_a_race(target):
    """The emulators find values that are known only when the kernel runs."""

    @T.prim_func
    def last_ones(A: T.Tensor((64,), "int32"), B: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                if A[i] > 0:
                    B[0] = A[i]  # which one?

    kernel, result = runnable(last_ones, target), torch.zeros(1, dtype=torch.int32)
    kernel(torch.full((64,), 3, dtype=torch.int32), result)
    assert result.item() == 3
    with pytest.raises((MetalEmulationError, CudaEmulationError), match=r"race: .* B_ptr\[0\]"):
        kernel(torch.arange(64, dtype=torch.int32), result)
