"""Emulated kernels whose products and sums are fused, as compilers of GPUs fuse them."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.running import runnable
from tvmtile.emulator.machine.compiler import fma_flags
from tvmtile.ops import programs

SM_90A = {"kind": "cuda", "arch": "sm_90a"}
ON_GPUS = pytest.mark.parametrize("target", ["metal", SM_90A], ids=["metal", "cuda"])


@pytest.fixture(autouse=True)
def contracted(monkeypatch):
    if not fma_flags():
        pytest.skip("this processor fuses nothing")
    monkeypatch.setenv("TVMTILE_EMULATOR_CONTRACT", "1")


@pytest.mark.full(but=1)
@ON_GPUS
def test_products_less_what_they_are_rounded_to(target, monkeypatch):
    """Their error, if they are part of a sum; nothing, if they are rounded by themselves."""

    @T.prim_func
    def errors(
        A: T.Tensor((32,), "float32"),
        P: T.Tensor((32,), "float32"),
        B: T.Tensor((2, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                B[0, i] = A[i] * A[i] - P[i]
                B[1, i] = T.ieee_mul(A[i], A[i], "rn") - P[i]

    a = torch.linspace(1, 2, 32)
    product, left = a * a, torch.empty(2, 32)
    runnable(errors, target)(a, product, left)
    assert torch.equal(left[0].double(), a.double() ** 2 - product.double())
    assert left[0].any()
    assert not left[1].any()
    monkeypatch.delenv("TVMTILE_EMULATOR_CONTRACT")
    runnable(errors, target)(a, product, left)
    assert not left.any()


@pytest.mark.full(but=1)
@ON_GPUS
def test_the_best_key_of_large_scores_weighs_one(target):
    """The power of 2 of an error of 128 would be infinite: scores are of 1e12."""
    q, k, v = (torch.randn(1, 2, n, 16).bfloat16() for n in (16, 48, 48))
    q, k, out = q * 1e6, k * 1e6, torch.empty_like(q)
    program = programs.attention(1, 2, 16, 16, "bfloat16", target=target, keys=48)
    runnable(program, target)(q, k, v, out)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-2)


@pytest.mark.full(but=1)
@ON_GPUS
def test_softmax_of_large_numbers(target):
    x = torch.randn(8, 100) * 1e12
    y = torch.empty_like(x)
    runnable(programs.softmax(8, 100, "float32", target=target), target)(x, y)
    torch.testing.assert_close(y, x.softmax(-1))
