"""Arrays that every thread has for itself, in T.Parallel."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand


def store():
    @T.prim_func
    def kernel(A: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            own = T.alloc_local((32,), "float32")
            for i in T.Parallel(32):
                own[i] = A[i]

    return kernel


def load_by_a_name():
    @T.prim_func
    def kernel(A: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            own = T.alloc_local((32,), "float32")
            for i in T.serial(32):
                own[i] = 1
            for i, j in T.Parallel(8, 4):
                here = i * 4 + j
                A[here] = own[here]

    return kernel


@pytest.mark.parametrize("program", [store, load_by_a_name])
def test_an_element_chosen_by_a_parallel_loop(program):
    with pytest.raises(InvalidOperand, match=r"'i' of T.Parallel indexes own\[32\] float32"):
        tvmtile.compile(program())


def test_elements_chosen_otherwise():
    @T.prim_func
    def kernel(A: T.Tensor((32,), "float32"), n: T.int32):
        with T.Kernel(1, threads=32):
            own = T.alloc_local((4,), "float32")
            scale = T.alloc_var("float32", init=3)
            for k in T.serial(4):
                own[k] = k
            for i in T.Parallel(32):
                A[i] = own[n] * scale

    a = torch.zeros(32)
    tvmtile.compile(kernel)(a, 2)
    assert a.eq(6).all()
