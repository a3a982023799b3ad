"""Programs on an NVIDIA GPU, against float64."""

import pytest
import torch

import tvmtile.language as T
from tests.gpu.machine import DEVICE, on_gpu, random
from tests.metal.programs import assert_close, flash_attention, gemm


@pytest.mark.parametrize("transposes", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize(
    ("dtype", "accum", "out", "precision"),
    [
        ("float16", "float32", "float32", "float32"),
        ("float16", "float16", "float16", "float16"),
        ("bfloat16", "float32", "bfloat16", "bfloat16"),
        ("float32", "float32", "float32", "float16"),  # tf32 has the mantissa of float16
        ("int8", "int32", "int32", ""),
        ("float64", "float64", "float64", "float32"),
    ],
)
@pytest.mark.parametrize("extents", [(128, 128, 128), (100, 72, 88)])
@pytest.mark.parametrize("stages", [0, 3])
def test_product(dtype, accum, out, precision, transposes, extents, stages):
    m, n, k = extents
    block = (32, 32, 32) if dtype == "float64" else (64, 64, 64)
    options = {"block": block, "dtypes": (dtype, accum, out), "transposes": transposes}
    kernel = on_gpu(gemm(m, n, k, stages=stages, **options))
    A = random(*((k, m) if transposes[0] else (m, k)), dtype=dtype)
    B = random(*((n, k) if transposes[1] else (k, n)), dtype=dtype)
    C = torch.empty(m, n, device=DEVICE, dtype=getattr(torch, out))
    kernel(A, B, C)
    left, right = (A.T if transposes[0] else A), (B.T if transposes[1] else B)
    assert_close(C.cpu(), (left.double() @ right.double()).cpu(), precision or "float32")


@pytest.mark.parametrize("policy", list(T.GemmWarpPolicy))
@pytest.mark.parametrize("threads", [32, 64, 128, 256])
def test_policies(policy, threads):
    program = gemm(128, 128, 64, block=(64, 128, 32), threads=threads, policy=policy)
    A, B = random(128, 64, dtype="float16"), random(64, 128, dtype="float16")
    C = torch.empty(128, 128, device=DEVICE)
    on_gpu(program)(A, B, C)
    assert_close(C.cpu(), (A.double() @ B.double()).cpu(), "float32")


@pytest.mark.parametrize("threads", [96, 128, 256])
@pytest.mark.parametrize("block", [(16, 16, 32), (16, 24, 32), (32, 8, 16)])
def test_more_warps_than_a_tile_has_work_for(block, threads):
    program = gemm(64, 48, 64, block=block, threads=threads, stages=2)
    A, B = random(64, 64, dtype="float16"), random(64, 48, dtype="float16")
    C = torch.empty(64, 48, device=DEVICE)
    on_gpu(program)(A, B, C)
    assert_close(C.cpu(), (A.double() @ B.double()).cpu(), "float32")


def test_rows_of_a_product_that_warps_repeat_are_summed_once():
    @T.prim_func
    def main(
        A: T.Tensor((16, 32), "float16"),
        B: T.Tensor((32, 16), "float16"),
        sums: T.Tensor((16,), "float32"),
        total: T.Tensor((1,), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((16, 32), "float16")
            b = T.alloc_shared((32, 16), "float16")
            acc = T.alloc_fragment((16, 16), "float32")
            rows = T.alloc_fragment((16,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, acc, clear_accum=True)
            T.reduce_sum(acc, rows, dim=1)
            T.copy(rows, sums)
            for i, j in T.Parallel(16, 16):
                T.atomic_add(total[0], acc[i, j])

    a, b = random(16, 32, dtype="float16"), random(32, 16, dtype="float16")
    sums, total = torch.empty(16, device=DEVICE), torch.zeros(1, device=DEVICE)
    on_gpu(main)(a, b, sums, total)
    expected = (a.double() @ b.double()).sum(1)
    assert_close(sums.cpu(), expected.cpu(), "float32")
    assert_close(total.cpu(), expected.sum().reshape(1).cpu(), "float32")


@pytest.mark.parametrize(("rows", "columns", "block"), [(64, 1024, 4), (33, 100, 8), (5, 4096, 1)])
def test_softmax(rows, columns, block):
    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float16"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            x = T.alloc_fragment((block, columns), "float32")
            largest = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.copy(X[bx * block, 0], x)
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(block, columns):
                x[i, j] = T.exp(x[i, j] - largest[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block, columns):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * block, 0])

    X = random(rows, columns, dtype="float16")
    Y = torch.empty_like(X)
    on_gpu(main)(X, Y)
    assert_close(Y.cpu(), torch.softmax(X.double(), 1).cpu(), "float16")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("stages", [1, 2])
def test_attention(causal, head, stages):
    shape = (2, 256, 2, head)
    program = flash_attention(
        2,
        2,
        256,
        head,
        causal,
        block_M=64,
        block_N=64,
        threads=128,
        stages=stages,
        policy=T.GemmWarpPolicy.FullRow,
        dtype="float16",
    )
    q, k, v = (random(*shape, dtype="float16") for _ in range(3))
    out = torch.empty_like(q)
    on_gpu(program)(q, k, v, out)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(1, 2) for x in (q, k, v)), is_causal=causal
    )
    assert_close(out.cpu(), expected.transpose(1, 2).cpu(), "float16")
