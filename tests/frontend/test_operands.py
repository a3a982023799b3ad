"""Operands of tile operators: regions without elements are refused, by the operator's name."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand

EMPTY = {
    "copy": lambda A, s, f, g: T.copy(A[0:64, 64:], s[:, 64:]),
    "copy into": lambda A, s, f, g: T.copy(A, s[40:20, :]),
    "async_copy": lambda A, s, f, g: T.async_copy(A[0:0, 0:64], s[0:0, :]),
    "tma_copy": lambda A, s, f, g: T.tma_copy(A[0:0, 0:64], s[0:0, :]),
    "gemm": lambda A, s, f, g: T.gemm(s[:, 64:], s[64:, :], f),
    "wgmma_gemm": lambda A, s, f, g: T.wgmma_gemm(s[:, 64:], s[:, 64:], f, transpose_B=True),
    "reduce_sum": lambda A, s, f, g: T.reduce_sum(f[:, 64:], g, dim=1),
    "reduce_max": lambda A, s, f, g: T.reduce_max(f, g[0:0], dim=1),
    "fill": lambda A, s, f, g: T.fill(s[64:, :], 1),
    "clear": lambda A, s, f, g: T.clear(s[0:0, :]),
    "cumsum": lambda A, s, f, g: T.cumsum(s[:, 64:], dim=1),
    "transpose": lambda A, s, f, g: T.transpose(s[64:, :], s[:, 64:]),
    "gather_rows": lambda A, s, f, g: T.gather_rows(A, T.alloc_shared((4,), "int32"), s[64:, :]),
    "scatter_rows": lambda A, s, f, g: T.scatter_rows(s[64:, :], T.alloc_shared((4,), "int32"), A),
    "atomic_add": lambda A, s, f, g: T.atomic_add(A[0:0, 0:64], s[0:0, :]),
    "any_of": lambda A, s, f, g: T.any_of(s[64:, :]),
}
NAMES = {"copy into": "copy", "async_copy": "copy", "wgmma_gemm": "gemm", "clear": "fill"}


@pytest.mark.parametrize("written", EMPTY)
def test_a_region_without_elements(written):
    with pytest.raises(InvalidOperand) as caught:

        @T.prim_func
        def program(A: T.Tensor((64, 64), "float16")):
            with T.Kernel(1, threads=128):
                s = T.alloc_shared((64, 64), "float16")
                f = T.alloc_fragment((64, 64), "float32")
                g = T.alloc_fragment((64,), "float32")
                EMPTY[written](A, s, f, g)

    text = str(caught.value)
    assert text.startswith(f"{NAMES.get(written, written)}: "), text
    assert "has no elements along axis" in text
    assert "help: the axis has 64 elements, and the slice ends before its first one" in text
    assert caught.value.location.line == EMPTY[written].__code__.co_firstlineno


@pytest.mark.parametrize("rows", [0, 3])
def test_regions_of_tensors_that_may_have_no_rows(rows):
    @tvmtile.jit
    def copied(X):
        N = T.const("N")
        X: T.Tensor((N, 8), "float32")
        Y = T.empty((N, 8), "float32")
        with T.Kernel(1):
            T.copy(X[0:N, :], Y[0:N, :])
        return Y

    x = torch.randn(rows, 8)
    assert torch.equal(copied(x), x)


def test_regions_in_a_kernel_without_blocks():
    @tvmtile.jit
    def copied(X, block: int = 4):
        N = T.const("N")
        X: T.Tensor((N, 8), "float32")
        Y = T.empty((N, 8), "float32")
        with T.Kernel(T.ceildiv(N, block)) as bx:
            tile = T.alloc_shared((block, 8), "float32")
            T.copy(X[bx * block : (bx + 1) * block, :], tile)
            T.copy(tile[0 : min(N, block), :], Y[bx * block : bx * block + min(N, block), :])
        return Y

    assert copied(torch.zeros(0, 8)).shape == (0, 8)
    x = torch.randn(8, 8)
    assert torch.equal(copied(x), x)
