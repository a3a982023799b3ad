"""Functions and vectors of floats that no program of the catalogue has."""

from __future__ import annotations

import re

import torch
from tvm import ir
from tvm.ir import assert_structural_equal
from tvm.target import Target

import tvmtile
import tvmtile.language as T
from tvmtile import PassConfigKey
from tvmtile.passes import LegalizeOperations

FAST = {PassConfigKey.TL_ENABLE_FAST_MATH: True}
HOPPER = {"kind": "cuda", "arch": "sm_90a"}


def applying(function, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((64,), dtype), C: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                C[i] = function(A[i])

    return main


def test_double_precision_and_powers_stay_exact():
    double = applying(T.log, "float64")
    source = tvmtile.compile(double, target=HOPPER, pass_configs=FAST).get_kernel_source()
    assert re.search(r"(?<!_)log\(", source)
    power = applying(lambda x: T.pow(x, x))  # of a base that may be below zero
    source = tvmtile.compile(power, target=HOPPER, pass_configs=FAST).get_kernel_source()
    assert "__powf" not in source


def test_one_kernel_of_two_asks_for_approximations():
    """Each compilation is kept under its own options."""
    program = applying(T.exp)
    sources = [
        tvmtile.compile(program, target=HOPPER, pass_configs=options).get_kernel_source()
        for options in (FAST, None, FAST)
    ]
    assert ["__expf(" in source for source in sources] == [True, False, True]


def test_quotients_and_roots_are_approximations_on_request():
    """The machine code of exact ones has a branch for what is not normal: it is longer."""
    program = applying(lambda x: T.sqrt(x) / (1 + x))
    fast, exact = (
        len(tvmtile.compile(program, target=HOPPER, pass_configs=options).cubin)
        for options in (FAST, None)
    )
    assert fast < exact


def test_vectors_of_bfloat16_in_private_arrays_and_views_of_them():
    @T.prim_func
    def main(A: T.Tensor((8,), "bfloat16"), B: T.Tensor((8,), "bfloat16")):
        with T.Kernel(1, threads=1):
            pairs = T.alloc_local((4,), "bfloat16x2")
            elements = T.view(pairs, (8,), "bfloat16")
            for i in T.serial(4):
                pairs[i] = T.abs2(T.bfloat16x2(A[2 * i], A[2 * i + 1]))
            for i in T.serial(8):
                B[i] = elements[i]

    a, b = torch.linspace(-2, 2, 8).bfloat16(), torch.zeros(8).bfloat16()
    tvmtile.compile(main)(a, b)
    assert torch.equal(b, a.abs())


def test_addresses_are_no_integers_to_cast():
    @T.prim_func
    def main(table: T.Tensor((4,), "int64"), B: T.Tensor((4, 32), "float16")):
        with T.Kernel(4, threads=32) as bx:
            row = T.make_tensor(table[bx], (32,), "int32")
            for i in T.Parallel(32):
                B[bx, i] = row[i]

    mod = ir.IRModule({"main": main.with_attr("target", Target(HOPPER))})
    assert_structural_equal(LegalizeOperations(mod), mod)
