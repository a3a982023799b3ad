"""Variables whose names are keywords of the languages that kernels are printed in."""

from __future__ import annotations

import shutil

import pytest
import torch

import tvmtile
import tvmtile.language as T


@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
def test_names_that_are_keywords_of_metal():
    @T.prim_func
    def kernel(
        device: T.Tensor((40,), "float32"), constant: T.Tensor((40,), "float32"), operator: T.int32
    ):
        with T.Kernel(1, threads=32) as thread:
            new = T.alloc_fragment((40,), "float32")
            threadgroup = T.alloc_shared((40,), "float32")
            T.copy(device, threadgroup)
            for half in T.Parallel(40):
                this = threadgroup[39 - half] * 2
                new[half] = this + T.cast(operator, "float32")
            T.copy(new, constant)

    run = tvmtile.compile(kernel, target="metal", execution_backend="emulator")
    source, result = torch.randn(40), torch.empty(40)
    run(source, result, 3)
    torch.testing.assert_close(result, source.flip(0) * 2 + 3)
