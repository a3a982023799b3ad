"""Constants as a generator prints them."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_kernel_with_no_more_of_a_dtype_than_constants_compiles_for_cuda(dtype):
    number = getattr(T, dtype)

    @T.prim_func
    def main(B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.cast(number(2) / T.abs(number(3)), "float32")

    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_80"})
    assert kernel.cubin
