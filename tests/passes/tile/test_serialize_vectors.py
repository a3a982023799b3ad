"""SerializeVectors: stores of vectors that no target has are loops."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as L

METAL = {"target": "metal", "execution_backend": "emulator"}
CUDA = {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"}


@pytest.mark.full(but=2)
@pytest.mark.parametrize("place", [{"target": "llvm"}, METAL, CUDA], ids=["llvm", "metal", "cuda"])
@pytest.mark.parametrize(("dtype", "n"), [("int8", 32), ("float16", 8), ("float32", 24)])
def test_stores_wider_than_a_vector_are_loops(place, dtype, n):
    @L.prim_func
    def kernel(A: L.Tensor((2 * n,), dtype), B: L.Tensor((n,), dtype), C: L.Tensor((n,), dtype)):
        with L.Kernel(1, threads=1):
            row = L.alloc_local((n,), dtype)
            row[0:n] = L.Broadcast(B[1], n)
            C[L.Ramp(0, 1, n)] = B[L.Ramp(0, 1, n)] + row[L.Ramp(0, 1, n)]
            A[0:n] = A[n : 2 * n]

    a, b, c = (torch.randint(0, 50, (m,)).to(getattr(torch, dtype)) for m in (2 * n, n, n))
    expected = torch.cat([a[n:], a[n:]])
    tvmtile.compile(kernel, **place)(a, b, c)
    assert torch.equal(c, b + b[1])
    assert torch.equal(a, expected)
