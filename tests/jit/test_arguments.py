"""Arguments of compiled kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError


@pytest.fixture(scope="module")
def add():
    m, n = T.dynamic("m, n")

    @T.prim_func
    def add(A: T.Tensor((m, n), "float32"), B: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, 4), T.ceildiv(n, 4)) as (bx, by):
            for i, j in T.Parallel(4, 4):
                B[bx * 4 + i, by * 4 + j] = A[bx * 4 + i, by * 4 + j] + 1

    return tvmtile.compile(add, out_idx=-1)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (1, 4), (8, 1), (0, 4), (4, 0), (0, 0)])
def test_shapes_with_one_and_with_nothing(add, shape):
    a = torch.randn(shape)
    torch.testing.assert_close(add(a), a + 1)


def test_a_tensor_that_requires_a_gradient(add):
    a = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(add(a), a.detach() + 1)


def test_numpy_in_numpy_out(add):
    a = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)
    result = add(a)
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, a + 1)


def test_results_given_by_the_caller_are_written(add):
    a, b = torch.randn(3, 4), torch.zeros(3, 4)
    add(a, b)
    torch.testing.assert_close(b, a + 1)


def test_a_conversion_does_not_hide_what_is_wrong(add):
    a = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(
        ArgumentError, match=r"B is a tensor .* axis 1 is n, which is 4 by axis 1 of A"
    ):
        add(a, torch.zeros(3, 5))


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        (torch.zeros(3, 4, dtype=torch.float64), "it got float64"),
        (torch.zeros(3), "it got 1 dimensions"),
        (torch.zeros(4, 6)[:, ::2], "must be contiguous"),
        (3.0, "it got a float"),
    ],
)
def test_what_does_not_fit(add, argument, problem):
    with pytest.raises(ArgumentError, match=problem):
        add(argument, torch.zeros(3, 4))


def test_too_many_arguments(add):
    with pytest.raises(ArgumentError, match=r"add takes 1 arguments \(A\), not 3"):
        add(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1))
