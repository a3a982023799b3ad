"""CheckSupport: what Metal lacks is named."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.errors import NoLowering, UnsupportedDtype


def test_float64_tensor():
    @T.prim_func
    def main(A: T.Tensor((8, 4), "float64"), B: T.Tensor((8, 4), "float32")):
        with T.Kernel(1, threads=32):
            T.copy(A, B)

    with pytest.raises(UnsupportedDtype, match=r"A\[8, 4\] float64: Metal has no float64"):
        tvmtile.compile(main, target="metal", execution_backend="emulator")


def test_float64_tile():
    @T.prim_func
    def main(A: T.Tensor((8, 4), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8, 4), "float64")
            T.copy(A, tile)

    with pytest.raises(UnsupportedDtype, match=r"tile\[8, 4\] float64: Metal has no float64"):
        tvmtile.compile(main, target="metal", execution_backend="emulator")


def test_assertions_of_a_kernel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1, threads=32):
            T.device_assert(n > 0, "n is positive")
            A[0] = n

    with pytest.raises(NoLowering, match="a kernel on Metal can't stop with an error"):
        tvmtile.compile(main, target="metal", execution_backend="emulator")
    tvmtile.compile(main)
