"""Split-K on Metal: blocks add their parts of a product atomically."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, operands


def splitk(M, N, K, splits, whole_tile):
    """Products of parts of K; added element by element, or as a tile."""
    block_K = 16
    part = -(-K // (splits * block_K)) * block_K

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), splits, threads=128) as (bx, by, bz):
            A_shared = T.alloc_shared((32, block_K), "float16")
            B_shared = T.alloc_shared((block_K, 32), "float16")
            C_local = T.alloc_fragment((32, 32), "float32")
            C_shared = T.alloc_shared((32, 32), "float32")
            T.clear(C_local)
            for k in T.Pipelined(part // block_K, num_stages=2):
                T.copy(A[by * 32, bz * part + k * block_K], A_shared)
                T.copy(B[bz * part + k * block_K, bx * 32], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            if whole_tile:
                T.copy(C_local, C_shared)
                T.atomic_add(C[by * 32, bx * 32], C_shared)
            else:
                for i, j in T.Parallel(32, 32):
                    T.atomic_add(C[by * 32 + i, bx * 32 + j], C_local[i, j])

    return main


@pytest.mark.parametrize("whole_tile", [False, True])
@pytest.mark.parametrize(
    ("M", "N", "K", "splits"), [(32, 32, 128, 4), (50, 37, 100, 3), (8, 8, 64, 1)]
)
def test_parts_are_added(compiled, M, N, K, splits, whole_tile):
    a, b, product = operands(M, N, K)
    c = torch.ones(M, N)
    compiled(splitk(M, N, K, splits, whole_tile))(a, b, c)
    assert_close(c, product + 1)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32"])
def test_a_histogram(compiled, dtype):
    @T.prim_func
    def main(keys: T.Tensor((300,), "int32"), counts: T.Tensor((7,), dtype)):
        with T.Kernel(3, threads=32) as bx:
            for i in T.Parallel(100):
                T.atomic_add(counts[keys[bx * 100 + i]], T.cast(1, dtype))

    keys = torch.randint(0, 7, (300,), dtype=torch.int32)
    counts = torch.zeros(7, dtype=getattr(torch, dtype))
    compiled(main)(keys, counts)
    assert torch.equal(counts.long(), torch.bincount(keys, minlength=7))
