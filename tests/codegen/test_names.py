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


@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
def test_names_that_types_and_functions_of_metal_have():
    """What the generated code says with them would mean the variables."""

    @T.prim_func
    def kernel(uint2: T.Tensor((64,), "int8"), select: T.Tensor((64,), "int8"), exp: T.float32):
        with T.Kernel(1, threads=32) as max:
            uint4 = T.alloc_shared((64,), "int8")
            float2 = T.alloc_fragment((64,), "int8")
            T.copy(uint2, uint4)
            for as_type in T.Parallel(64):
                min = T.alloc_var("int32")
                min = T.cast(uint4[as_type], "int32") + max
                float2[as_type] = T.cast(
                    T.min(min, 100) // T.cast(T.exp(exp), "int32"), "int8"
                ) // T.int8(3)
            T.copy(float2, select)

    run = tvmtile.compile(kernel, target="metal", execution_backend="emulator")
    source = torch.arange(64, dtype=torch.int8)
    result = torch.empty_like(source)
    run(source, result, 0.0)
    assert torch.equal(result, source // 3)
