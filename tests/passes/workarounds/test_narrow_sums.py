"""NarrowSums: what fits is summed in 32 bits, and the sum is converted."""

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T

M, N = T.dynamic("M, N")
CUDA = {"kind": "cuda", "arch": "sm_90a"}


@T.prim_func
def scaled(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 8), threads=128) as (bx, by):
        for i, j in T.Parallel(8, 64):
            B[by * 8 + i, bx * 64 + j] = A[by * 8 + i, bx * 64 + j] * 2


@pytest.mark.parametrize(
    ("target", "options", "wide"),
    [(CUDA, {}, "(int64_t)"), ("metal", {"execution_backend": "emulator"}, "(long)")],
    ids=["cuda", "metal"],
)
def test_the_row_the_column_and_the_width_are_converted(target, options, wide):
    source = tvmtile.compile(scaled, target=target, **options).get_kernel_source()
    accesses = re.findall(r"B_ptr\[(.*)\] = ", source)
    assert accesses
    for index in accesses:
        variables = re.sub(r"\((int64_t|long)\)\d+", "", index)  # numbers are written in 64 bits
        assert variables.count(wide) == 3


def test_elements_are_where_they_were():
    kernel = tvmtile.compile(scaled, target="metal", execution_backend="emulator")
    a = torch.randn(37, 131)
    b = torch.zeros_like(a)
    kernel(a, b)
    assert torch.equal(b, a * 2)
