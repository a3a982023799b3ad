"""A kernel's values in helpers that nothing rewrites: their dtypes, and bitwise operators."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir.expr import ExprOperand, ExprWithOp
from tvm.script import tirx as tvm_script
from tvm.tirx.expr import EqualOp, ExprOp, NotEqualOp

import tvmtile
import tvmtile.language as T
from tvmtile._tvm import traced

TVMS_CLASSES = (ir.Expr, ir.Var, ExprOperand, ExprWithOp, ExprOp, EqualOp, NotEqualOp)


def _of_tvm():
    """The attributes of TVM's classes, and a program that TVMScript's parser makes with them."""
    x = tirx.Var("x", "int64")

    @tvm_script.prim_func
    def program(A: tvm_script.Buffer((8,), "float32"), B: tvm_script.Buffer((8,), "uint8")):
        for i in range(8):
            A[i] = A[i] * 0.0 + A[i] / A[i]
            B[i] = B[i] - B[i] * tvm_script.uint8(0)

    plain = str(x & 0x1_0000_0000), str(0x1_0000_0000 | x), hasattr(x + 1, "dtype"), {x: 1}[x]
    return [dict(vars(kind)) for kind in TVMS_CLASSES], program.script(), plain


def test_tvms_classes_stay_as_they_are_while_kernels_are_traced():
    """In the thread that traces, and in one that builds TVMScript meanwhile."""
    seen = []

    def build(other):
        seen.extend([_of_tvm(), other.submit(_of_tvm).result()])

    before = _of_tvm()
    with ThreadPoolExecutor(1) as other:

        @T.prim_func
        def main(A: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=32):
                build(other)
                A[0] = A[1] * 0.0

    assert seen == [before, before]
    assert "* T.float32(0.0)" not in main.script()


def test_values_of_a_kernel_are_tvms_nodes_with_operators_of_ours():
    x, n = tirx.Var("x", "int64"), tirx.decl_buffer((4,), "int8")
    ours = traced(x)
    assert isinstance(ours, ir.Var)
    assert ours.same_as(x)
    assert not isinstance(x, type(ours))
    assert str(ours & 0x1_0000_0000) == "x & T.int64(4294967296)"
    assert str(0x1_0000_0000 & ours) == "T.int64(4294967296) & x"
    assert (ours + 1).dtype == T.int64
    assert not hasattr(x + 1, "dtype")
    assert traced(n).dtype == "int8"
    assert traced(n)[0].dtype == T.int8
    assert {ours: 1}[x] == 1, "outside of a kernel"
    assert not hasattr(traced(relax.Tuple([])), "dtype")


def _grown(x, steps):
    """An expression that nothing rewrites: no step gets a name."""
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
