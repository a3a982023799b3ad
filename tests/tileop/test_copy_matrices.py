"""Accumulators in simdgroup matrices are stored a matrix at a time, at the edges element by element."""

import pytest
import torch

import tvmtile
import tvmtile.language as T


def product(m, n, accum="float32", out="float32", through_shared=False):
    @T.prim_func
    def main(
        A: T.Tensor((m, 32), "float16"), B: T.Tensor((32, n), "float16"), C: T.Tensor((m, n), out)
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=128) as (bx, by):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), accum)
            T.copy(A[by * 32, 0], a)
            T.copy(B[0, bx * 32], b)
            T.clear(c)
            T.gemm(a, b, c)
            if through_shared:
                staged = T.alloc_shared((32, 32), accum)
                T.copy(c, staged)
                T.copy(staged, C[by * 32, bx * 32])
            else:
                T.copy(c, C[by * 32, bx * 32])

    return main


@pytest.mark.parametrize(
    ("options", "extents", "stores"),
    [
        ({}, (64, 64), 4),  # 16 matrices over 4 simdgroups
        ({"accum": "float16", "out": "float16"}, (64, 64), 4),
        ({"out": "float16"}, (64, 64), 0),
        ({}, (40, 72), 4),
        ({"through_shared": True}, (40, 72), 4),
    ],
)
def test_an_accumulator_is_stored_in_matrices_where_nothing_is_converted(options, extents, stores):
    m, n = extents
    kernel = tvmtile.compile(product(m, n, **options), target="metal", execution_backend="emulator")
    assert kernel.get_kernel_source().count("simdgroup_store") == stores
    out = getattr(torch, options.get("out", "float32"))
    A, B, C = torch.randn(m, 32).half(), torch.randn(32, n).half(), torch.empty(m, n, dtype=out)
    kernel(A, B, C)
    precise = options.get("out") != "float16"
    tolerance = 1e-4 if precise else 5e-2
    torch.testing.assert_close(C.double(), A.double() @ B.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("threads", [64, 128])
def test_one_of_the_simdgroups_that_hold_a_matrix_stores_it(threads):
    """An operand has fewer matrices than there are simdgroups: several hold each of them."""

    @T.prim_func
    def main(
        A: T.Tensor((16, 16), "bfloat16"),
        B: T.Tensor((16, 16), "bfloat16"),
        C: T.Tensor((16, 16), "float32"),
        D: T.Tensor((16, 16), "bfloat16"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_fragment((16, 16), "bfloat16")
            b = T.alloc_shared((16, 16), "bfloat16")
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)
            T.copy(a, D)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    a, b = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16()
    c, d = torch.empty(16, 16), torch.empty(16, 16).bfloat16()
    kernel(a, b, c, d)
    assert torch.equal(d, a)
    torch.testing.assert_close(c, a.float() @ b.float())


@pytest.mark.parametrize("columns", [8, 24, 32])
def test_matrices_that_several_simdgroups_hold_are_staged_without_a_race(columns):
    """All threads go through the stores, which one simdgroup does: a barrier can follow each."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 16), "float16"),
        B: T.Tensor((16, columns), "float16"),
        C: T.Tensor((64, columns), "float32"),
        D: T.Tensor((columns, 16), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 16), "float16")
            b = T.alloc_fragment((16, columns), "float16")
            c = T.alloc_fragment((64, columns), "float32")
            staged = T.alloc_shared((16, columns), "float16")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(b, staged)
            for i, j in T.Parallel(columns, 16):
                D[i, j] = staged[j, i]
            T.copy(c, C)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    source = kernel.get_kernel_source()
    assert source.count("barrier(") == 1
    a, b = torch.randn(64, 16).half(), torch.randn(16, columns).half()
    c, d = torch.empty(64, columns), torch.empty(columns, 16).half()
    kernel(a, b, c, d)
    assert torch.equal(d, b.T)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-4, atol=1e-4)
