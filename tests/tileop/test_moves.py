"""Operators that are declared by index functions agree with numpy: the interpreter uses these, too."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tvmtile.language as T
from tests.running import runnable

AMPERE = {"kind": "cuda", "arch": "sm_80"}


def windows(image, size, stride, dilation, pad):
    """The windows of an image [N, H, W, C] as rows, [N * OH * OW, size * size * C]."""
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = dilation * (size - 1)
    taps = [
        padded[
            :,
            dilation * i : padded.shape[1] - reach + dilation * i : stride,
            dilation * j : padded.shape[2] - reach + dilation * j : stride,
        ]
        for i in range(size)
        for j in range(size)
    ]
    return np.concatenate(taps, axis=-1).reshape(-1, size * size * image.shape[-1])


CASES = {
    "transpose": (T.transpose, (), (5, 7), lambda x: x.T),
    "transpose batches": (T.transpose, (), (2, 5, 7), lambda x: np.swapaxes(x, 1, 2)),
    "roll": (T.roll, (2,), (5, 7), lambda x: np.roll(x, 2, -1)),
    "roll back": (T.roll, (-9, 0), (5, 7), lambda x: np.roll(x, -9, 0)),
    "im2col": (T.im2col, (0, 0, 3, 2, 1, 1), (2, 7, 6, 3), lambda x: windows(x, 3, 2, 1, 1)),
    "im2col wide": (T.im2col, (0, 0, 2, 1, 2, 0), (1, 5, 6, 2), lambda x: windows(x, 2, 1, 2, 0)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "target", ["llvm", *(pytest.param(t, marks=pytest.mark.full) for t in ("metal", AMPERE))]
)
def test_an_operator_agrees_with_numpy(name, target):
    function, options, shape, expected = CASES[name]
    a = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    wanted = expected(a)

    @T.prim_func
    def moved(A: T.Tensor(shape, "float32"), C: T.Tensor(wanted.shape, "float32")):
        with T.Kernel(1, threads=32):
            source = T.alloc_fragment(shape, "float32")
            result = T.alloc_fragment(wanted.shape, "float32")
            T.copy(A, source)
            function(source, result, *options)
            T.copy(result, C)

    np.testing.assert_array_equal(runnable(moved, target, out_idx=1)(a), wanted)


def test_what_users_call_returns_nothing():
    assert inspect.signature(T.roll).return_annotation is None
    assert [*inspect.signature(T.roll).parameters] == ["src", "dst", "shift", "dim"]
