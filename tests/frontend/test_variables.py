"""Variables of a kernel: `T.alloc_var`, `T.let`, names, references."""

from __future__ import annotations

import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T


def run(kernel, n=4, dtype=torch.int32):
    """What a kernel with one parameter writes."""
    a = torch.zeros(n, dtype=dtype)
    tvmtile.compile(kernel)(a)
    return a.tolist()


def test_a_name_keeps_the_value_it_was_given():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            A[0] = 7
            x = A[0]
            A[0] = 1
            A[1] = x
            x = x + 1
            A[2] = x
            x += 10
            A[3] = x

    assert run(f) == [1, 7, 8, 18]


def test_a_variable_is_read_where_it_is_used():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            v = T.alloc_var("int32", 3)
            before = v
            w = T.alloc_var(T.int32, init=v)
            v = 10
            v *= 2
            A[0] = before
            A[1] = v
            A[2] = w
            A[3] = v[0] + 1

    assert run(f) == [3, 20, 3, 21]


def test_variables_in_loops_and_branches():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            total = T.alloc_var("int32")
            largest = T.alloc_var("int32", init=-1)
            for i in range(5):
                total += i
                if i % 2 == 0:
                    largest = i
            A[0] = total
            A[1] = largest

    assert run(f) == [10, 4, 0, 0]


def test_swaps():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            a = T.alloc_var("int32", 1)
            b = T.alloc_var("int32", 2)
            a, b = b, a
            A[0], A[1] = a, b
            x, y = 5, 6
            x, y = y, x
            A[2], A[3] = x, y

    assert run(f) == [2, 1, 6, 5]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", 1, 1.0),
        ("int32", 2.9, 2),
        ("bool", 3, True),
        ("float64", 1e300, 1e300),
        ("int8", -1, -1),
    ],
)
def test_a_value_becomes_the_variables_dtype(dtype, value, expected):
    @T.prim_func
    def f(A: T.Tensor((1,), dtype)):
        with T.Kernel(1):
            v = T.alloc_var(dtype, init=value)
            A[0] = v

    assert run(f, 1, getattr(torch, dtype)) == [expected]


def test_an_annotation_is_a_conversion():
    @T.prim_func
    def f(A: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            x: T.int32 = A[0] + 2.7
            A[1] = x
            y: T.float32 = 3
            y = y / 2
            A[2] = y

    assert run(f, 4, torch.float32) == [0, 2, 1.5, 0]


def test_let_binds_a_variable_made_before():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            for i in range(4):
                twice = T.int32()
                T.let(twice, i * 2)
                A[i] = twice + 1

    assert run(f) == [1, 3, 5, 7]
    tvm.ir.assert_structural_equal(tvm.script.from_source(f.script()), f)


def test_a_macro_stores_through_a_reference():
    @T.macro
    def add(target: T.Ref, amount):
        target += amount
        target = target * 2

    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            v = T.alloc_var("int32", 1)
            add(v, 4)
            A[0] = v
            i = T.alloc_var("int32", 1)
            add(A[i], 3)
            for j in range(2, 4):
                add(A[j], j)

    assert run(f) == [10, 6, 4, 6]


def test_functions_take_a_reference():
    @T.macro
    def softplus(x: T.Ref):
        return T.if_then_else(x > 20, x, T.log1p(T.exp(x)))

    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                C[i] = softplus(A[i])

    a, c = torch.linspace(-30, 40, 8), torch.empty(8)
    tvmtile.compile(main)(a, c)
    torch.testing.assert_close(c, torch.nn.functional.softplus(a))
