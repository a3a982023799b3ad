"""SplitReducers: what may be stored into a reducer before it is finalized."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand


def test_another_store_than_a_contribution_is_refused():
    @T.prim_func
    def main(A: T.Tensor((8, 16), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer((8,), "float32")
            T.clear(total)
            for i, j in T.Parallel(8, 16):
                total[i] = total[i] * A[i, j]
            T.finalize_reducer(total, C)

    with pytest.raises(InvalidOperand, match=r"total\[8\] float32 is stored something else"):
        tvmtile.compile(main, target="metal", execution_backend="emulator")
