"""LowerCudaFunctions: CUDA's functions elsewhere, and functions that are nowhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import NoLowering

X = torch.cat([torch.randn(60) * 3, torch.tensor([0.0, -0.0, 65519.0, 1e-8])])


def called(name, *constants, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = T.call_extern(dtype, name, A[i], *[T.float32(c) for c in constants])

    return main


def run(program, target, dtype="float32"):
    out = torch.empty(64, dtype=getattr(torch, dtype))
    runnable(program, target)(X, out)
    return out


def towards_zero(x):
    """float16 with the bits of a float32 that do not fit cut off."""
    nearest = x.half()
    beyond = nearest.float().abs() > x.abs()
    down = torch.from_numpy(np.nextafter(nearest.numpy(), np.float16(0)))
    return torch.where(beyond, down, nearest)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_conversions_with_a_rounding(target):
    assert torch.equal(
        run(called("__float2half_rz", dtype="float16"), target, "float16"), towards_zero(X)
    )
    assert torch.equal(run(called("__float2half_rn", dtype="float16"), target, "float16"), X.half())


@pytest.mark.full(but=2)
@pytest.mark.parametrize("target", ["llvm", "metal"])
@pytest.mark.parametrize(
    ("name", "constants", "reference"),
    [
        ("__fdividef", (3.0,), lambda x: x / 3),
        ("__fmul_rn", (1.1,), lambda x: x * np.float32(1.1)),
        ("__fmaf_rn", (2.0, 1.0), lambda x: x * 2 + 1),
        ("__cosf", (), torch.cos),
    ],
)
def test_functions_of_float32(name, constants, reference, target):
    torch.testing.assert_close(run(called(name, *constants), target), reference(X))


def test_a_function_of_the_process_is_called():
    torch.testing.assert_close(run(called("cosf"), "llvm"), torch.cos(X))


def test_a_function_that_is_nowhere_is_an_error_at_its_line():
    with pytest.raises(NoLowering, match="no function 'a_function_of_nobody'") as caught:
        tvmtile.compile(called("a_function_of_nobody"))
    assert "T.call_extern(dtype, name, A[i]" in str(caught.value)
    assert "T.macro" in str(caught.value)


def test_for_another_machine_functions_may_be_elsewhere():
    aarch64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    assert tvmtile.compile(called("a_function_of_nobody"), target=aarch64)
