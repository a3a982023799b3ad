"""`x.dtype` of a kernel's values."""

from __future__ import annotations

import torch
from tvm import relax, tirx

import tvmtile
import tvmtile.language as T
from tvmtile.frontend.expression_dtypes import dtype_of_expressions


def halved(value):
    assert value.dtype in (T.int32, T.float16)
    return value // 2 if value.dtype == T.int32 else value * T.float16(0.5)


def test_helpers_may_ask_for_the_dtype_of_a_value():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "float16")):
        with T.Kernel(1) as _:
            for i in T.Parallel(8):
                x = A[i] + 2
                A[i] = halved(x)
                B[i] = halved(B[i])

    a, b = torch.arange(8, dtype=torch.int32), torch.arange(8).half()
    tvmtile.compile(main)(a, b)
    assert torch.equal(a, (torch.arange(8) + 2).int() // 2)
    assert torch.equal(b, torch.arange(8).half() / 2)


def test_buffers_keep_theirs_and_what_is_no_value_has_none():
    buffer = tirx.decl_buffer((4,), "int8")
    for _ in range(2):
        with dtype_of_expressions(), dtype_of_expressions():
            assert buffer.dtype == "int8"
            assert buffer[0].dtype == T.int8
            assert (tirx.Var("n", "int64") + 1).dtype == T.int64
            assert not hasattr(relax.Tuple([]), "dtype")
        assert buffer.dtype == "int8"
        assert not hasattr(buffer[0], "dtype")
