"""Tensors of several calls have in common an address, not a shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmtile
import tvmtile.language as T
from tests.gpu.machine import HAS_GPU


@T.prim_func
def product(
    A: T.Tensor((T.dynamic("m"), T.dynamic("k")), "float16"),
    B: T.Tensor((T.dynamic("k"), 64), "float16"),
    C: T.Tensor((T.dynamic("m"), 64), "float32"),
):
    T.assume(A.shape[1] % 8 == 0)  # so that tensor maps can describe it
    with T.Kernel(T.ceildiv(A.shape[0], 64), threads=128) as by:
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for step in T.Pipelined(T.ceildiv(A.shape[1], 32), num_stages=2):
            T.copy(A[by * 64, step * 32], a)
            T.copy(B[step * 32, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 64, 0])


CALLS = st.lists(
    st.tuples(st.integers(1, 70), st.sampled_from([8, 32, 40]), st.integers(0, 3)),
    min_size=3,
    max_size=5,
)
EMULATED = {"execution_backend": "emulator"}


@pytest.mark.parametrize(
    ("target", "options"),
    [
        pytest.param("llvm", {}, id="llvm"),
        pytest.param("metal", EMULATED, id="metal", marks=pytest.mark.full),
        pytest.param(
            {"kind": "cuda", "arch": "sm_90a"}, EMULATED, id="cuda", marks=pytest.mark.full
        ),
        pytest.param(
            "cuda", {}, id="gpu", marks=pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
        ),
    ],
)
def test_a_call_sees_its_own_tensors_at_addresses_of_earlier_ones(target, options):
    kernel = tvmtile.compile(product, target=target, **options)
    device = "cuda" if target == "cuda" else "cpu"
    storage = torch.empty(2 * 70 * 64 + 40 * 64, dtype=torch.float16, device=device)
    results = torch.empty(70 * 64 + 64, dtype=torch.float32, device=device)

    @settings(max_examples=5, deadline=None, derandomize=True, database=None)
    @given(CALLS)
    def check(calls):
        for number, (m, k, place) in enumerate(calls):
            storage.copy_(
                torch.randn(len(storage), generator=torch.Generator().manual_seed(number))
            )
            first = 64 * place  # of other calls' tensors this is the middle
            a = storage[first : first + m * k].view(m, k)
            b = storage[-k * 64 :].view(k, 64)
            c = results[16 * place : 16 * place + m * 64].view(m, 64)
            kernel(a, b, c)
            torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-3, atol=1e-3)
            fresh = a.clone()  # in memory that earlier calls' tensors had, and have freed
            kernel(fresh, b, c)
            torch.testing.assert_close(c, fresh.float() @ b.float(), rtol=1e-3, atol=1e-3)

    check()
