"""A kernel's values in helpers that nothing rewrites: their dtypes, and bitwise operators."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tvm import relax, tirx

import tvmtile.language as T
from tvmtile.frontend.expressions import expressions_of_kernels


def test_buffers_keep_theirs_and_what_is_no_value_has_none():
    buffer = tirx.decl_buffer((4,), "int8")
    for _ in range(2):
        with expressions_of_kernels(), expressions_of_kernels():
            assert buffer.dtype == "int8"
            assert buffer[0].dtype == T.int8
            assert (tirx.Var("n", "int64") + 1).dtype == T.int64
            assert not hasattr(relax.Tuple([]), "dtype")
        assert buffer.dtype == "int8"
        assert not hasattr(buffer[0], "dtype")


def test_other_threads_have_tvms_expressions_while_a_kernel_is_traced():
    x, n = tirx.Var("x", "int64"), tirx.Var("n", "int64")

    def of_tvm():
        plain = str(x & 0x1_0000_0000), str(0x1_0000_0000 | x), hasattr(x + 1, "dtype")
        try:
            return plain, n.dtype
        except AttributeError as error:
            return plain, str(error)

    before = of_tvm()
    with expressions_of_kernels(), ThreadPoolExecutor(1) as other:
        assert other.submit(of_tvm).result() == before
        assert of_tvm() != before
        with expressions_of_kernels():
            pass
        assert (x + 1).dtype == "int64"
    assert of_tvm() == before


def test_operators_are_tvms_again_behind_a_kernel():
    x = tirx.Var("x", "int64")
    before = str(x & 0x1_0000_0000)
    with expressions_of_kernels():
        assert str(x & 0x1_0000_0000) == "x & T.int64(4294967296)"
        assert str(0x1_0000_0000 & x) == "T.int64(4294967296) & x"
    assert str(x & 0x1_0000_0000) == before
