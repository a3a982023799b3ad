"""Operators that are declared by index functions agree with numpy: the interpreter uses these, too."""

from __future__ import annotations

import numpy as np
import pytest

import tvmtile
import tvmtile.language as T


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
def test_an_operator_agrees_with_numpy(name):
    function, options, shape, expected = CASES[name]
    a = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    wanted = expected(a)

    @T.prim_func
    def moved(A: T.Tensor(shape, "float32"), C: T.Tensor(wanted.shape, "float32")):
        with T.Kernel(1, threads=32):
            function(A, C, *options)

    np.testing.assert_array_equal(tvmtile.compile(moved, out_idx=1, target="llvm")(a), wanted)
