"""PackFloats: floats of 4 bits in memory, stored by one thread a byte."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.gpu.machine import by_way_of_gpu

FLOAT4 = "float4_e2m1fn"
SM80 = {"kind": "cuda", "arch": "sm_80"}

every_target = pytest.mark.parametrize(
    "compiled",
    [
        tvmtile.compile,
        partial(tvmtile.compile, target="metal", execution_backend="emulator"),
        partial(tvmtile.compile, target=SM80, execution_backend="emulator"),
        pytest.param(by_way_of_gpu, marks=pytest.mark.gpu),
    ],
    ids=["llvm", "metal", "cuda", "gpu"],
)


def packed(values):
    """The bytes of the pairs along the last axis that values round to."""
    codes = values.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)


def unpacked(pairs):
    """The values of the elements that bytes hold."""
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).astype(np.uint8)
    values = codes.reshape(*pairs.shape[:-1], -1).view(ml_dtypes.float4_e2m1fn)
    return torch.from_numpy(values.astype(np.float32))


def random_pairs(*shape):
    return torch.randint(256, shape, dtype=torch.uint8)


@every_target
def test_tiles_are_copied_as_bytes_and_by_elements(compiled):
    """Whole bytes, a column, a region that begins in the middle of a byte, and ragged edges."""

    @T.prim_func
    def main(
        A: T.Tensor((37, 50), FLOAT4),
        B: T.Tensor((37, 50), FLOAT4),
        column: T.Tensor((37,), "float32"),
        odd: T.Tensor((37, 8), FLOAT4),
    ):
        with T.Kernel(T.ceildiv(50, 32), T.ceildiv(37, 16), threads=64) as (bx, by):
            tile = T.alloc_shared((16, 32), FLOAT4)
            T.copy(A[by * 16, bx * 32], tile)
            T.copy(tile, B[by * 16, bx * 32])
            if bx == 0:
                T.copy(tile[0:16, 5:6], column[by * 16 : by * 16 + 16])
                T.copy(tile[0:16, 3:11], odd[by * 16, 0])

    a, b, odd = random_pairs(37, 25), random_pairs(37, 25), random_pairs(37, 4)
    column = torch.zeros(37)
    compiled(main)(a, b, column, odd)
    assert torch.equal(b, a)
    assert torch.equal(column, unpacked(a)[:, 5])
    assert torch.equal(odd, packed(unpacked(a)[:, 3:11]))


@every_target
def test_elementwise_code_with_names_and_several_stores(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((20, 64), FLOAT4),
        S: T.Tensor((20,), "float32"),
        B: T.Tensor((20, 64), FLOAT4),
        C: T.Tensor((20, 64), "bfloat16"),
        D: T.Tensor((20, 64), FLOAT4),
    ):
        with T.Kernel(2, threads=64) as bx:
            for i, j in T.Parallel(20, 32):
                x = T.cast(A[i, bx * 32 + j], "float32")
                B[i, bx * 32 + j] = x * S[i]
                y = x + S[i]
                C[i, bx * 32 + j] = y
                D[i, bx * 32 + j] = T.if_then_else(y > 1, A[i, bx * 32 + j], T.cast(y, FLOAT4))

    a, s = random_pairs(20, 32), torch.rand(20) * 3
    b, c, d = torch.zeros_like(a), torch.zeros(20, 64).bfloat16(), torch.zeros_like(a)
    compiled(main)(a, s, b, c, d)
    x = unpacked(a)
    y = x + s[:, None]
    assert torch.equal(b, packed(x * s[:, None]))
    assert torch.equal(c, y.bfloat16())
    assert torch.equal(d, packed(torch.where(y > 1, x, y)))


@every_target
def test_halves_that_are_stored_apart_keep_each_other(compiled):
    """Under a condition, by one iteration for each half, in a serial loop, and an odd number."""

    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), B: T.Tensor((4, 32), FLOAT4)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((4, 32), FLOAT4)
            T.fill(tile, 1.5)
            for j in T.Parallel(32):
                if X[j] > 0:
                    tile[0, j] = X[j]
            for j in T.Parallel(16):
                tile[1, 2 * j] = X[j]
                tile[1, 2 * j + 1] = -X[j]
            for i in T.Parallel(2):
                for j in T.serial(31):
                    tile[2 + i, j] = X[j + i]
            for j in T.Parallel(5):
                tile[3, 2 + j] = 6
            T.copy(tile, B)

    x = torch.randn(32) * 3
    b = random_pairs(4, 16)
    compiled(main)(x, b)
    expected = torch.full((4, 32), 1.5)
    expected[0] = torch.where(x > 0, x, 1.5)
    expected[1] = torch.stack([x[:16], -x[:16]], dim=1).flatten()
    expected[2, :31], expected[3, :31] = x[:31], x[1:32]
    expected[3, 2:7] = 6
    assert torch.equal(b, packed(expected))


@every_target
def test_registers_views_and_bits(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((16, 32), FLOAT4),
        codes: T.Tensor((16, 32), "uint8"),
        B: T.Tensor((16, 16), "uint8"),
        C: T.Tensor((16, 32), FLOAT4),
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((16, 32), FLOAT4)
            held = T.alloc_fragment((16, 32), FLOAT4)
            T.copy(A, tile)
            T.copy(tile, held)
            for i, j in T.Parallel(16, 32):
                codes[i, j] = T.reinterpret(held[i, j], "uint8")
                C[i, j] = T.reinterpret(codes[i, j] ^ T.uint8(0xF8), FLOAT4)
            pairs = T.view(tile, (16, 16), "uint8")
            T.copy(pairs, B)

    a, b, c = random_pairs(16, 16), random_pairs(16, 16), random_pairs(16, 16)
    codes = torch.zeros(16, 32, dtype=torch.uint8)
    compiled(main)(a, codes, b, c)
    assert torch.equal(codes, torch.stack([a & 15, a >> 4], dim=-1).flatten(1))
    assert torch.equal(b, a)
    assert torch.equal(c, a ^ 0x88)


@every_target
def test_rows_are_gathered_in_a_pipeline(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((40, 64), FLOAT4),
        rows: T.Tensor((16,), "int32"),
        B: T.Tensor((16, 64), "float32"),
    ):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((16, 32), FLOAT4)
            for k in T.Pipelined(2, num_stages=2):
                T.gather_rows(A, tile, rows, k * 32)
                T.copy(tile, B[0, k * 32])

    a, rows = random_pairs(40, 32), torch.randint(-2, 42, (16,), dtype=torch.int32)
    b = torch.zeros(16, 64)
    compiled(main)(a, rows, b)
    inside = ((rows >= 0) & (rows < 40))[:, None]
    assert torch.equal(b, torch.where(inside, unpacked(a)[rows.clamp(0, 39).long()], 0))
