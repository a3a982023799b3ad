"""Elementary functions written out for a CPU."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T


@pytest.mark.parametrize(("name", "outer"), [("exp", "exp2"), ("exp2", "exp"), ("exp2", "exp2")])
def test_functions_of_functions(name, outer):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1) as _:
            for i in T.Parallel(64):
                B[i] = getattr(T, outer)(getattr(T, name)(A[i]))

    a = torch.linspace(-3, 3, 64)
    result = tvmtile.compile(main, out_idx=1)(a)
    expected = getattr(torch, outer)(getattr(torch, name)(a.double()))
    torch.testing.assert_close(result.double(), expected, rtol=5e-6, atol=0)


def test_a_function_of_a_name_may_be_used_often():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1) as _:
            x = A[5]
            y = T.exp(x)
            for i in T.Parallel(64):
                z = T.exp2(y - A[i])
                B[i] = T.if_then_else(z > 1, z * y, T.exp(z) + y)

    a = torch.linspace(-3, 3, 64)
    result = tvmtile.compile(main, out_idx=1)(a)
    wide = a.double()
    y = wide[5].exp()
    z = (y - wide).exp2()
    expected = torch.where(z > 1, z * y, z.exp() + y)
    torch.testing.assert_close(result.double(), expected, rtol=5e-6, atol=0)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("kind", ["Parallel", "vectorized"])
@pytest.mark.parametrize("dtype", ["int32", "int8"])
def test_a_function_rounded_to_an_integer(dtype, kind):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), dtype), C: T.Tensor((8,), dtype)):
        with T.Kernel(1) as _:
            for i in getattr(T, kind)(8):
                B[i] = T.cast(T.exp(A[i]), dtype)
                C[i] = T.cast(T.cast(A[i], "float8_e4m3fn", round="rz"), dtype)

    a = torch.linspace(-2, 3, 8)
    b, c = (torch.zeros(8, dtype=getattr(torch, dtype)) for _ in "bc")
    tvmtile.compile(main)(a, b, c)
    assert torch.equal(b, a.exp().to(b.dtype))
    assert torch.equal(c, a.to(b.dtype))


@pytest.mark.parametrize("kind", ["Parallel", "serial"])
def test_tanh_is_right_for_arguments_of_any_size(kind):
    @T.prim_func
    def main(A: T.Tensor((4096,), "float32"), B: T.Tensor((4096,), "float32")):
        with T.Kernel(1) as _:
            for i in getattr(T, kind)(4096):
                B[i] = T.tanh(A[i])

    special = torch.tensor(
        [0.0, -0.0, 0.625, -0.625, 60.0, -1e30, torch.inf, -torch.inf, 1e-42, torch.nan]
    )
    sizes = torch.logspace(-38, 2, 2043)
    a = torch.cat([special, sizes, -sizes])
    result = tvmtile.compile(main, out_idx=1)(a)
    torch.testing.assert_close(
        result.double(), a.double().tanh(), rtol=3e-7, atol=0, equal_nan=True
    )
    assert torch.signbit(result[1])
