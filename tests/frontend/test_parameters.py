"""Declaring the parameters of a kernel."""

from __future__ import annotations

import torch
import tvm

import tvmtile
import tvmtile.language as T


def test_declarations_in_the_body_are_those_of_the_signature():
    @T.prim_func
    def copy(A: T.Tensor((8, 4), "float32"), n: T.int32, B: T.Tensor((8, 4), "float16")):
        with T.Kernel(8) as row:
            for j in T.Parallel(4):
                B[row, j] = A[row, j] + n

    inside = copy

    @T.prim_func
    def copy(A, n, B):
        B: T.Tensor((8, 4), T.float16)
        A: T.Tensor[[8, 4], "float32"]
        n: T.int32
        with T.Kernel(8) as row:
            for j in T.Parallel(4):
                B[row, j] = A[row, j] + n

    tvm.ir.assert_structural_equal(copy, inside)


def test_outputs_stand_after_parameters_declared_later():
    @T.prim_func
    def double(A):
        B = T.empty((4,), T.float32)
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1):
            for i in range(4):
                B[i] = A[i] * 2
        return B

    assert [param.name for param in double.params] == ["A", "B"]
    a = torch.randn(4)
    torch.testing.assert_close(tvmtile.compile(double)(a), a * 2)


def test_a_default_is_a_constant():
    @T.prim_func
    def fill(A: T.Tensor((4,), "int32"), value=7):
        with T.Kernel(1):
            for i in range(4):
                A[i] = value

    a = torch.zeros(4, dtype=torch.int32)
    tvmtile.compile(fill)(a)
    assert a.tolist() == [7] * 4


def test_python_types_are_scalars():
    @T.prim_func
    def f(i: int, x: float, flag: bool):
        with T.Kernel(1):
            T.evaluate(0)

    assert [str(param.ty.dtype) for param in f.params] == ["int32", "float32", "bool"]


def test_a_macro_declares_no_parameter_of_its_caller():
    @T.macro
    def one():
        A: T.int32 = 3
        return A

    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            A[0] = one()

    a = torch.zeros(4, dtype=torch.int32)
    tvmtile.compile(f)(a)
    assert a.tolist() == [3, 0, 0, 0]
