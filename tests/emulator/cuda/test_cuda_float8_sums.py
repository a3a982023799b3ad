"""Sums of products of float8, of which Hopper keeps few bits, as an H200 computed them on 2026-11-22.

`float8_sums.npz` has the operands of a product of 64 x 64 x 64, of values over many powers of two, and
every eighth row of its result.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.running import gemm, runnable

MEASURED = np.load(Path(__file__).with_name("float8_sums.npz"))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_short_sums_are_those_of_a_gpu(dtype):
    types, turned = (dtype, "float32", "float32"), (False, True)
    program = gemm(64, 64, 64, block=(64, 64, 64), dtypes=types, transposes=turned)
    kernel = runnable(program, {"kind": "cuda", "arch": "sm_90a"})
    operands = [
        torch.from_numpy(MEASURED[f"{dtype}_{name}"]).view(getattr(torch, dtype)) for name in "ab"
    ]
    expected = torch.from_numpy(MEASURED[f"{dtype}_c"])
    results = {}
    for short in (False, True):
        kernel.adapter.short_sums = short
        results[short] = torch.zeros(64, 64)
        kernel(*operands, results[short])
    assert torch.equal(results[True][::8], expected)
    assert not torch.equal(results[False][::8], expected)
