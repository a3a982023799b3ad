"""A kernel's values in helpers that nothing rewrites: their dtypes, and bitwise operators."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tvm import relax, tirx

import tvmtile
import tvmtile.language as T
from tvmtile.frontend.expressions import expressions_of_kernels
from tvmtile.frontend.large import Sizes


def test_buffers_keep_theirs_and_what_is_no_value_has_none():
    buffer = tirx.decl_buffer((4,), "int8")
    for _ in range(2):
        with expressions_of_kernels(Sizes()), expressions_of_kernels(Sizes()):
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
    with expressions_of_kernels(Sizes()), ThreadPoolExecutor(1) as other:
        assert other.submit(of_tvm).result() == before
        assert of_tvm() != before
        with expressions_of_kernels(Sizes()):
            pass
        assert (x + 1).dtype == "int64"
    assert of_tvm() == before


def test_operators_are_tvms_again_behind_a_kernel():
    x = tirx.Var("x", "int64")
    before = str(x & 0x1_0000_0000)
    with expressions_of_kernels(Sizes()):
        assert str(x & 0x1_0000_0000) == "x & T.int64(4294967296)"
        assert str(0x1_0000_0000 & x) == "T.int64(4294967296) & x"
    assert str(x & 0x1_0000_0000) == before


def _grown(x, steps):
    """What nothing rewrites: no step gets a name."""
    for _ in range(steps):
        x = x * x + x
    return x


def test_large_expressions_are_cut_into_named_parts():
    """A thousand terms end the process otherwise; a part stays where it is evaluated at all."""

    @T.prim_func
    def main(A: T.Tensor((1000,), "int32"), C: T.Tensor((6,), "int32")):
        with T.Kernel(1, threads=32):
            C[0] = sum(A[i] for i in range(1000))
            if sum(A[i] for i in range(300)) > 0:
                T.atomic_add(C[1], sum(A[i] * 2 for i in range(300)))
            C[2] = A[sum(A[i] for i in range(300)) % 1000]
            C[3] = T.if_then_else(A[0] > 0, _grown(A[1], 4), sum(A[i] for i in range(100)))
            C[4] = _grown(A[3], 10)

    @T.prim_func
    def by_functions(A: T.Tensor((1000,), "int32"), C: T.Tensor((6,), "int32")):
        with T.Kernel(1, threads=32):
            C[5] = functools.reduce(T.max, [A[i] * 2 for i in range(500)])

    given = np.ones(1000, np.int32)
    given[3] = -1
    result = np.zeros(6, np.int32)
    for program in (main, by_functions):
        tvmtile.compile(program, target="llvm")(given, result)
    assert result.tolist() == [998, 596, 1, 1806, 0, 2]
