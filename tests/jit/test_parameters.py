"""What a kernel says about its parameters."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


def test_parameters_are_described_in_python_terms():
    n = T.dynamic("n")

    @T.prim_func
    def kernel(
        A: T.Tensor((n, 8), "float16"), C: T.Tensor((4,), T.uint8), scale: T.float32, p: T.ptr
    ):
        with T.Kernel(1):
            for i in T.Parallel(4):
                C[i] = T.cast(T.cast(A[i, 0], "float32") * scale, T.uint8)

    rows, results, scale, pointer = tvmtile.compile(kernel).params

    assert rows.name == "A"
    assert str(rows.shape[0]) == "n"
    assert type(rows.shape[1]) is int
    assert rows.shape[1] == 8
    assert rows.dtype == T.float16
    assert not rows.is_scalar()

    assert results.shape == [4]
    assert results.torch_dtype() == torch.uint8

    assert scale.is_scalar()
    assert scale.dtype == "float32"
    assert pointer.dtype == "handle"
