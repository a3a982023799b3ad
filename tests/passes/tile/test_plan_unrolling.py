"""PlanUnrolling: how often a body stands in the source, and factors that are refused."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand


def program(factor):
    @T.prim_func
    def main(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.unroll(32, unroll_factor=factor):
                A[i] = A[i] * 3 + i

    return main


def test_the_body_stands_in_the_source_as_often_as_asked():
    kernel = tvmtile.compile(program(8), target={"kind": "cuda", "arch": "sm_80"})
    assert kernel.get_kernel_source().count("* 3)") == 8


def test_the_factor_is_a_positive_integer():
    with pytest.raises(InvalidOperand, match="T.unroll: unroll_factor=0"):
        program(0)
