"""PlanUnrolling: loops that say how many iterations to unroll."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand


def program(count, factor):
    @T.prim_func
    def main(n: T.int32, A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.unroll(n if count is None else count, unroll_factor=factor):
                A[i] = A[i] * 3 + i
            for i in T.unroll(3, 40, 4, unroll_factor=factor):
                A[i] = A[i] + i

    return main


@pytest.mark.parametrize("factor", [1, 4, 64])
@pytest.mark.parametrize("count", [7, 32, None])
def test_all_iterations_run_once_and_in_order(count, factor):
    a = torch.arange(64, dtype=torch.int32)
    expected = a.clone()
    for i in range(count or 29):
        expected[i] = expected[i] * 3 + i
    for i in range(3, 40, 4):
        expected[i] += i
    tvmtile.compile(program(count, factor), target="llvm")(29, a)
    assert torch.equal(a, expected)


@pytest.mark.full
def test_a_loop_that_is_left_is_not_unrolled():
    @T.prim_func
    def main(n: T.int32, A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.unroll(64, unroll_factor=4):
                if i == n:
                    break
                A[i] = A[i] + 1

    for options in ({"target": "llvm"}, {"target": "metal", "execution_backend": "emulator"}):
        a = torch.zeros(64, dtype=torch.int32)
        tvmtile.compile(main, **options)(13, a)
        assert a.tolist() == [1] * 13 + [0] * 51


def test_the_body_stands_in_the_source_as_often_as_asked():
    source = tvmtile.compile(
        program(32, 8), target={"kind": "cuda", "arch": "sm_80"}
    ).get_kernel_source()
    assert source.count("* 3)") == 8


def test_the_factor_is_a_positive_integer():
    with pytest.raises(InvalidOperand, match="T.unroll: unroll_factor=0"):
        program(32, 0)
