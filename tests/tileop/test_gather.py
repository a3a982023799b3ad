"""Gathers and scatters of rows: indices twice the same, out of range and -1, ragged columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tvm.ir import assert_structural_equal
from tvm.script import from_source

import tvmtile
import tvmtile.language as T
from tvmtile.tileop.gather import gather_reference, scatter_reference

M, K, N = 20, 72, 32
DTYPES = ("float32", "float16", "bfloat16", "int8", "float8_e4m3fn")
ROWS = torch.tensor([3, 3, -1, 19, 20, 0, 7, 1 << 30], dtype=torch.int32)


def gather(dtype, four, index="int32"):
    """Gather eight rows, in parts of 32 columns of 72."""

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), R: T.Tensor((8,), index), C: T.Tensor((8, 96), dtype)):
        with T.Kernel(3, 2, threads=32) as (bx, by):
            tile = T.alloc_shared((4, N), dtype)
            if four:
                T.gather4(A, tile, bx * N, [R[by * 4 + i] for i in range(4)])
            else:
                T.gather_rows(A, tile, R[by * 4 : by * 4 + 4], bx * N)
            T.copy(tile, C[by * 4, bx * N])

    return main


def scatter(dtype, four):
    @T.prim_func
    def main(C: T.Tensor((8, 96), dtype), R: T.Tensor((8,), "int32"), A: T.Tensor((M, K), dtype)):
        with T.Kernel(3, threads=32) as bx:
            tile = T.alloc_shared((8, N), dtype)
            T.copy(C[0, bx * N], tile)
            if four:
                T.scatter4(tile[0:4, :], A, bx * N, [R[i] for i in range(4)])
                T.scatter4(tile[4:8, :], A, bx * N, [R[4 + i] for i in range(4)])
            else:
                T.scatter_rows(tile, A, R, bx * N)

    return main


def tensors(dtype):
    torch.manual_seed(0)
    big, small = torch.randn(M, K) * 9, torch.randn(8, 96) * 9
    return big.to(getattr(torch, dtype)), small.to(getattr(torch, dtype))


def bits(tensor):
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.itemsize]).numpy()


@pytest.mark.parametrize("four", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gather(compiled, dtype, four):
    source, result = tensors(dtype)
    compiled(gather(dtype, four))(source, ROWS, result)
    np.testing.assert_array_equal(bits(result), gather_reference(bits(source), ROWS.numpy(), 0, 96))


@pytest.mark.parametrize("four", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter(compiled, dtype, four):
    result, source = tensors(dtype)
    before = result.clone()
    compiled(scatter(dtype, four))(source, ROWS, result)
    expected = scatter_reference(bits(source), bits(before), ROWS.numpy(), 0)
    np.testing.assert_array_equal(bits(result), expected)


def test_indices_of_64_bits(compiled):
    source, result = tensors("float32")
    rows = ROWS.long()
    rows[7] = 1 << 40
    for four in (True, False):
        compiled(gather("float32", four, "int64"))(source, rows, result)
        expected = gather_reference(source.numpy(), rows.numpy(), 0, 96)
        np.testing.assert_array_equal(result.numpy(), expected)


def experts(dtype="float16", rows=64, K=256):
    """A product of rows that indices name, as of tokens that an expert gets."""

    @T.prim_func
    def main(
        A: T.Tensor((100, K), dtype),
        R: T.Tensor((rows,), "int32"),
        W: T.Tensor((K, 64), dtype),
        C: T.Tensor((rows, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 32), threads=64) as bx:
            left, right = T.alloc_shared((32, 32), dtype), T.alloc_shared((32, 64), dtype)
            sums = T.alloc_fragment((32, 64), "float32")
            T.clear(sums)
            for k in T.Pipelined(K // 32, num_stages=3):
                T.gather_rows(A, left, R[bx * 32 : bx * 32 + 32], k * 32)
                T.copy(W[k * 32, 0], right)
                T.gemm(left, right, sums)
            T.copy(sums, C[bx * 32, 0])

    return main


def test_a_pipelined_product_of_gathered_rows(compiled):
    torch.manual_seed(0)
    a, w = torch.randn(100, 256).half(), torch.randn(256, 64).half()
    rows = torch.randint(-1, 100, (64,), dtype=torch.int32)
    c = torch.zeros(64, 64)
    compiled(experts())(a, rows, w, c)
    chosen = torch.where(rows[:, None] >= 0, a.double()[rows.long()], 0)
    torch.testing.assert_close(c.double(), chosen @ w.double(), rtol=1e-4, atol=1e-3)


def test_it_is_copied_asynchronously_on_nvidias_gpus():
    kernel = tvmtile.compile(experts(), target={"kind": "cuda", "arch": "sm_80"})
    body = kernel.get_kernel_source().partition("__global__")[2]
    copies = [line for line in body.splitlines() if "cp_async" in line and "A_ptr" in line]
    assert copies
    assert all("shared_global_16" in line for line in copies)
    assert kernel.cubin


def test_programs_parse_back():
    for func in (gather("float32", True), scatter("float32", False)):
        assert_structural_equal(from_source(func.script()), func)
