"""LowerCudaFunctions: CUDA's functions elsewhere, and functions that are nowhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.running import runnable
from tvmtile.errors import NoLowering

X = torch.cat([torch.randn(60) * 3, torch.tensor([0.0, -0.0, 65519.0, 1e-8])])


def called(name):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[i] = T.call_extern("float32", name, A[i])

    return main


def towards_zero(x):
    """float16 with the bits of a float32 that do not fit cut off."""
    nearest = x.half()
    down = torch.from_numpy(np.nextafter(nearest.numpy(), np.float16(0)))
    return torch.where(nearest.float().abs() > x.abs(), down, nearest)


@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_functions_of_cuda_are_those_of_other_targets(target):
    @T.prim_func
    def main(
        A: T.Tensor((64,), "float32"),
        H: T.Tensor((2, 64), "float16"),
        C: T.Tensor((4, 64), "float32"),
    ):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                H[0, i] = T.call_extern("float16", "__float2half_rz", A[i])
                H[1, i] = T.call_extern("float16", "__float2half_rn", A[i])
                C[0, i] = T.call_extern("float32", "__fdividef", A[i], T.float32(3))
                C[1, i] = T.call_extern("float32", "__fmul_rn", A[i], T.float32(1.1))
                C[2, i] = T.call_extern("float32", "__fmaf_rn", A[i], T.float32(2), T.float32(1))
                C[3, i] = T.call_extern("float32", "__cosf", A[i])

    halves, floats = torch.empty(2, 64).half(), torch.empty(4, 64)
    runnable(main, target)(X, halves, floats)
    assert torch.equal(halves, torch.stack([towards_zero(X), X.half()]))
    expected = torch.stack([X / 3, X * np.float32(1.1), X * 2 + 1, torch.cos(X)])
    torch.testing.assert_close(floats, expected)


def test_a_function_of_the_process_is_called():
    out = torch.empty(64)
    tvmtile.compile(called("cosf"), target="llvm")(X, out)
    torch.testing.assert_close(out, torch.cos(X))


def test_a_function_that_is_nowhere_is_an_error_at_its_line():
    with pytest.raises(NoLowering, match="no function 'a_function_of_nobody'") as caught:
        tvmtile.compile(called("a_function_of_nobody"))
    assert 'T.call_extern("float32", name, A[i]' in str(caught.value)
    assert "T.macro" in str(caught.value)


def test_for_another_machine_functions_may_be_elsewhere():
    aarch64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    assert tvmtile.compile(called("a_function_of_nobody"), target=aarch64)
