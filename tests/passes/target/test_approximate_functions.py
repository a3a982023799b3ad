"""ApproximateFunctionsOnCuda: what `tl.enable_fast_math` means."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile import PassConfigKey

FAST = {PassConfigKey.TL_ENABLE_FAST_MATH: True}
HOPPER = {"kind": "cuda", "arch": "sm_90a"}
FUNCTIONS = {
    "cos": (T.cos, torch.cos),
    "exp": (T.exp, torch.exp),
    "exp10": (T.exp10, lambda x: 10**x),
    "log": (T.log, torch.log),
    "log10": (T.log10, torch.log10),
    "log2": (T.log2, torch.log2),
    "sin": (T.sin, torch.sin),
    "tan": (T.tan, torch.tan),
    "tanh": (T.tanh, torch.tanh),
}


def applying(function, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((64,), dtype), C: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                C[i] = function(A[i])

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_approximations_where_a_kernel_asks_for_it(name, dtype):
    function, reference = FUNCTIONS[name]
    program = applying(function, dtype)
    fast = "tvmtile_fast_tanh" if name == "tanh" else f"__{name}f"
    exact = tvmtile.compile(program, target=HOPPER).get_kernel_source()
    assert f"{fast}(" not in exact
    kernel = tvmtile.compile(program, target=HOPPER, pass_configs=FAST)
    assert f"{fast}(" in kernel.get_kernel_source()
    statements = kernel.get_kernel_source().rpartition("main_kernel(")[2]
    assert not re.search(rf"(?<!_){name}f\(", statements)
    assert kernel.cubin
    emulated = tvmtile.compile(
        program, target=HOPPER, execution_backend="emulator", pass_configs=FAST
    )
    a = torch.linspace(0.1, 3, 64).to(getattr(torch, dtype))
    c = torch.zeros_like(a)
    emulated(a, c)
    torch.testing.assert_close(c, reference(a.double()).to(c.dtype), rtol=1e-2, atol=1e-2)


def test_double_precision_and_powers_stay_exact():
    double = applying(T.log, "float64")
    source = tvmtile.compile(double, target=HOPPER, pass_configs=FAST).get_kernel_source()
    assert re.search(r"(?<!_)log\(", source)
    power = applying(lambda x: T.pow(x, x))  # of a base that may be below zero
    source = tvmtile.compile(power, target=HOPPER, pass_configs=FAST).get_kernel_source()
    assert "__powf" not in source


def test_vectors_are_approximated_lane_by_lane():
    @T.prim_func
    def main(A: T.Tensor((16, 4), "float32"), C: T.Tensor((16, 4), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                for k in T.vectorized(4):
                    C[i, k] = T.exp(A[i, k]) + T.tanh(A[i, k])

    kernel = tvmtile.compile(main, target=HOPPER, execution_backend="emulator", pass_configs=FAST)
    assert "__expf(" in kernel.get_kernel_source()
    a = torch.linspace(-2, 2, 64).view(16, 4)
    c = torch.zeros_like(a)
    kernel(a, c)
    torch.testing.assert_close(c, a.exp() + a.tanh(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_other_targets_are_exact(target):
    program = applying(T.log)
    with_option = runnable(program, target, pass_configs=FAST)
    a, c = torch.linspace(0.1, 3, 64), torch.zeros(64)
    with_option(a, c)
    torch.testing.assert_close(c, a.log(), rtol=2e-7, atol=2e-7)


def test_one_kernel_of_two_asks_for_it():
    """Each compilation is kept under its own options."""
    program = applying(T.exp)
    sources = [
        tvmtile.compile(program, target=HOPPER, pass_configs=options).get_kernel_source()
        for options in (FAST, None, FAST)
    ]
    assert ["__expf(" in source for source in sources] == [True, False, True]
