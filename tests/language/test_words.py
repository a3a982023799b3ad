"""Neighbouring elements that are read and written as words."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

N = 64
CUDA = {"kind": "cuda", "arch": "sm_90a"}
METAL = {"target": "metal", "execution_backend": "emulator"}


def program(bits, dtype):
    """A copy through a shared tile; the first words are not read, the third are not written."""
    lanes = bits // T.dtype(dtype).bits
    load, store, load_tile, store_tile = (
        getattr(T, f"{kind}{bits}") for kind in ("ldg", "stg", "lds", "sts")
    )

    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((N,), dtype)
            for i in T.Parallel(N // lanes):
                words = load(A[i * lanes : (i + 1) * lanes], pred=i > 0)
                store_tile(tile[i * lanes], words)
            for i in T.Parallel(N // lanes):
                store(B[i * lanes], load_tile(tile[i * lanes]), pred=i != 2)

    return main


def targets_for(bits, dtype):
    """Metal has vectors of four, and none of bfloat16."""
    on_metal = (
        bits // T.dtype(dtype).bits <= 4 and bits <= 128 and dtype not in ("bfloat16", "float64")
    )
    return [{"target": "llvm"}, *([METAL] if on_metal else [])]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("bits", [32, 64, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float64"])
def test_words(bits, dtype):
    width = T.dtype(dtype).bits
    if bits < width:
        return
    lanes = bits // width
    kind = getattr(torch, dtype)
    a = torch.arange(N).to(kind) - 7
    expected = a.clone()
    expected[:lanes] = 0
    expected[2 * lanes : 3 * lanes] = 1
    for options in targets_for(bits, dtype):
        b = torch.ones(N, dtype=kind)
        tvmtile.compile(program(bits, dtype), **options)(a, b)
        assert torch.equal(b, expected)
    if lanes <= 8 and (bits < 256 or width >= 32):
        assert tvmtile.compile(program(bits, dtype), target=CUDA).cubin


def test_an_element_that_is_only_read():
    @T.prim_func
    def main(A: T.Tensor((N,), "float16"), B: T.Tensor((N,), "float16")):
        with T.Kernel(N, threads=1) as i:
            B[i] = T.__ldg(A[i]) + T.__ldg(A, i)

    a, b = torch.randn(N).half(), torch.empty(N).half()
    tvmtile.compile(main)(a, b)
    assert torch.equal(b, a + a)
