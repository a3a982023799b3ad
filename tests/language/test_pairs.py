"""Arithmetic on vectors of two floats."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

N = 64
CUDA = {"kind": "cuda", "arch": "sm_90a"}
METAL = {"target": "metal", "execution_backend": "emulator"}
FUNCTIONS = {
    "add2": lambda a, b, c: a + b,
    "sub2": lambda a, b, c: a - b,
    "mul2": lambda a, b, c: a * b,
    "max2": lambda a, b, c: torch.maximum(a, b),
    "min2": lambda a, b, c: torch.minimum(a, b),
    "abs2": lambda a, b, c: a.abs(),
    "fma2": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
}
OPERANDS = {"abs2": 1, "fma2": 3}


def program(name, kind):
    function, count = getattr(T, name), OPERANDS.get(name, 2)

    @T.prim_func
    def main(
        A: T.Tensor((N,), kind),
        B: T.Tensor((N,), kind),
        C: T.Tensor((N,), kind),
        D: T.Tensor((N,), kind),
    ):
        with T.Kernel(1, threads=N // 2):
            i = T.Ramp(T.get_thread_binding() * 2, 1, 2)
            D[i] = function(*[A[i], B[i], C[i]][:count])

    return main


@pytest.mark.full
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pairs(name):
    for kind in ("float32", "float16", "bfloat16"):
        generator = torch.Generator().manual_seed(1)
        a, b, c = torch.randn(3, N, generator=generator).to(getattr(torch, kind))
        targets = [{"target": "llvm"}] if kind == "bfloat16" else [{"target": "llvm"}, METAL]
        for options in targets:
            d = torch.empty_like(a)
            tvmtile.compile(program(name, kind), **options)(a, b, c, d)
            assert torch.equal(d, FUNCTIONS[name](a, b, c)), (kind, options)
        assert tvmtile.compile(program(name, kind), target=CUDA).cubin


def test_pairs_of_a_slice_in_a_parallel_loop():
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N // 2):
                B[2 * i : 2 * i + 2] = T.abs2(A[2 * i : 2 * i + 2])

    a, b = torch.randn(N), torch.empty(N)
    tvmtile.compile(main)(a, b)
    assert torch.equal(b, a.abs())
