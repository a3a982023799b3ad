"""Products with tiles of which half the elements are left out."""

from __future__ import annotations

import numpy as np
import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.tileop.gemm_sp import reference

M, N, K = 32, 32, 64
TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}


def sparse(kind, meta, rng, rows=M, depth=K):
    """Stored elements of [rows, depth], and the bits of their places."""
    bits = 4 if kind == "float32" else 2
    codes = []
    for _ in range(rows * depth // 4):
        if bits == 2:
            first, second = sorted(rng.choice(4, 2, replace=False))
            codes += [first, second]
        else:
            codes += [rng.choice([0b0100, 0b1110]) for _ in range(2)]
    words = np.array(codes, np.uint64).reshape(rows, -1, np.dtype(meta).itemsize * 8 // bits)
    shifts = np.arange(words.shape[-1], dtype=np.uint64) * np.uint64(bits)
    packed = (words << shifts).sum(-1).astype(f"uint{np.dtype(meta).itemsize * 8}").view(meta)
    return rng.integers(-4, 5, (rows, depth // 2)).astype(kind), np.ascontiguousarray(packed)


def program(kind, meta, accumulator, columns, transposed=(False, False, False), stages=1):
    trans_a, trans_e, trans_b = transposed
    shape_a = (K // 2, M) if trans_a else (M, K // 2)
    shape_e = (columns, M) if trans_e else (M, columns)
    shape_b = (N, K) if trans_b else (K, N)

    @T.prim_func
    def main(
        A: T.Tensor(shape_a, kind),
        E: T.Tensor(shape_e, meta),
        B: T.Tensor(shape_b, kind),
        C: T.Tensor((M, N), accumulator),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared(shape_a, kind), T.alloc_shared(shape_b, kind)
            e = T.alloc_shared(shape_e, meta)
            c = T.alloc_fragment((M, N), accumulator)
            T.clear(c)
            for _ in T.Pipelined(2, num_stages=stages):
                T.copy(A, a)
                T.copy(E, e)
                T.copy(B, b)
                T.gemm_sp(a, e, b, c, trans_a, trans_e, trans_b)
            T.copy(c, C)

    return main


def check(kind, meta, accumulator, target, transposed=(False, False, False)):
    rng = np.random.default_rng(0)
    a, e = sparse(kind, meta, rng)
    b = rng.integers(-4, 5, (K, N)).astype(kind)
    expected = 2 * reference(a, e, b, np.zeros((M, N)))
    c = np.empty((M, N), accumulator)
    given = [
        np.ascontiguousarray(x.T) if t else x for x, t in zip((a, e, b), transposed, strict=True)
    ]
    kernel = tvmtile.compile(
        program(kind, meta, accumulator, e.shape[1], transposed), **TARGETS[target]
    )
    kernel(*given, c)
    np.testing.assert_array_equal(c, expected)


SLOW = "ignore:gemm_sp. .* is computed element by element"


@pytest.mark.full(but=1)
@pytest.mark.filterwarnings(SLOW)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kind", "meta", "accumulator"),
    [
        ("float16", "int16", "float32"),
        ("float16", "uint8", "float16"),
        ("float32", "int16", "float32"),
        ("int8", "int32", "int32"),
    ],
)
def test_against_the_dense_product(target, kind, meta, accumulator):
    check(kind, meta, accumulator, target)


@pytest.mark.full(but=1)
@pytest.mark.filterwarnings(SLOW)
@pytest.mark.parametrize("target", TARGETS)
def test_operands_that_are_stored_transposed(target):
    check("float16", "int16", "float32", target, (True, True, True))
