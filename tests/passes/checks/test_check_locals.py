"""Arrays that every thread has for itself, in T.Parallel."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


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
