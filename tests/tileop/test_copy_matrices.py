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
