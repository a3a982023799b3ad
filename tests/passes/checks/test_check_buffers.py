"""Kernels against the number of buffers that a GPU binds."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T

TWO = T.Tensor((2, 32), "float32")


def program(scalars):
    """A kernel of 31 tensors, and a number of scalars."""

    @T.prim_func
    def sums(
        a0: TWO, a1: TWO, a2: TWO, a3: TWO, a4: TWO, a5: TWO, a6: TWO, a7: TWO, a8: TWO, a9: TWO,
        b0: TWO, b1: TWO, b2: TWO, b3: TWO, b4: TWO, b5: TWO, b6: TWO, b7: TWO, b8: TWO, b9: TWO,
        c0: TWO, c1: TWO, c2: TWO, c3: TWO, c4: TWO, c5: TWO, c6: TWO, c7: TWO, c8: TWO, c9: TWO,
        out: TWO, scale: T.float32,
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                total = a0[0, i]
                for tensor in (
                    a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9,
                    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9,
                ):  # fmt: skip
                    total = total + tensor[0, i] + tensor[1, i]
                out[0, i] = total * scale if scalars else total

    return sums


@pytest.mark.full
def test_as_many_buffers_as_metal_binds():
    kernel = tvmtile.compile(program(0), target="metal", execution_backend="emulator")
    assert "[[ buffer(30) ]]" in kernel.get_kernel_source()


@pytest.mark.full
def test_other_targets_have_no_such_limit():
    tvmtile.compile(program(1), target={"kind": "cuda", "arch": "sm_80"}).get_kernel_source()
    tvmtile.compile(program(1), target="llvm")
