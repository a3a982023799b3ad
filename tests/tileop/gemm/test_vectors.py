"""T.gemm of few rows of floats of 8 bits on Metal: dot products by the lanes of a simdgroup."""

from __future__ import annotations

import re

import pytest

import tvmtile
import tvmtile.language as T

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def product(M, N, K, a=E4M3, b=E4M3, threads=64, clear=False, transpose_B=True, **options):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), a),
        B: T.Tensor((N, K) if transpose_B else (K, N), b),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            left = T.alloc_shared((M, K), a)
            right = T.alloc_shared((N, K) if transpose_B else (K, N), b)
            sums = T.alloc_fragment((M, N), "float32")
            T.copy(C, sums)
            T.copy(A, left)
            T.copy(B, right)
            T.gemm(left, right, sums, transpose_B=transpose_B, clear_accum=clear, **options)
            T.copy(sums, C)

    return main


def compiled(program):
    return tvmtile.compile(program, target="metal", execution_backend="emulator")


def test_words_of_four_elements_and_one_sum_a_row_and_column():
    """B is read in device memory, where it lies, and nothing is decoded twice."""
    source = compiled(product(2, 4, 256)).get_kernel_source()
    assert source.count("simd_sum") == 2 * 4 // 2
    assert len(re.findall(r"\(\(device uint\*\)B_bits_ptr\)\[", source)) == 4 // 2
    assert "simdgroup_multiply" not in source


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"M": 9}, "M = 9 is more than 8 rows"),
        ({"K": 30}, "rows of A and B are no words of 4 elements along K"),
        ({"transpose_B": False}, "rows of A and B are no words of 4 elements along K"),
        ({"a": "float16", "b": "float16"}, "has no elements of 8 bits"),
        ({"N": 9}, "N = 9 is not a multiple of the 2 simdgroups"),
        ({"threads": 48}, "48 threads are not whole simdgroups of 32"),
    ],
)
def test_what_it_declines(options, reason):
    sizes = {"M": 8, "N": 16, "K": 32, **options}
    with pytest.raises(tvmtile.errors.NoLowering, match=f"vectors: .*{reason}"):
        compiled(product(**sizes, impl="vectors"))
