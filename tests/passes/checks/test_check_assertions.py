"""CheckAssertions: Metal can't stop a kernel."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.errors import NoLowering


def test_assertions_are_refused_for_metal():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1, threads=32):
            T.device_assert(n > 0, "n is positive")
            A[0] = n

    with pytest.raises(NoLowering, match="a kernel on Metal can't stop with an error"):
        tvmtile.compile(main, target="metal", execution_backend="emulator")
    tvmtile.compile(main)
