"""Arithmetic on Python's numbers, fast functions, and what the programs in numbers.py do not show."""

from __future__ import annotations

import math

import pytest
import torch
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidValue, UnsupportedDtype

FAST = [
    (T.__exp, torch.exp),
    (T.__exp10, lambda x: 10**x),
    (T.__log, torch.log),
    (T.__log2, torch.log2),
    (T.__log10, torch.log10),
    (T.__sin, torch.sin),
    (T.__cos, torch.cos),
    (T.__tan, torch.tan),
    (T.__tanh, torch.tanh),
]


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2e-6), ("bfloat16", 1e-2)])
def test_fast_functions_are_exact_on_a_cpu(dtype, rounding):
    @T.prim_func
    def kernel(A: T.Tensor((37,), dtype), C: T.Tensor((len(FAST), 37), dtype)):
        with T.Kernel(1):
            for row, (function, _) in enumerate(FAST):
                for i in T.Parallel(37):
                    C[row, i] = function(A[i])

    a = torch.linspace(0.1, 3, 37).to(getattr(torch, dtype))
    c = torch.empty(len(FAST), 37, dtype=a.dtype)
    tvmtile.compile(kernel, target="llvm")(a, c)
    for row, (_, reference) in zip(c, FAST, strict=True):
        torch.testing.assert_close(row.double(), reference(a.double()), rtol=rounding, atol=1e-6)


def test_a_fast_tanh_is_one_instruction():
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.__tanh(A[i])

    hopper = {"kind": "cuda", "arch": "sm_90a"}
    emulated = tvmtile.compile(kernel, target=hopper, execution_backend="emulator")
    assert '"tanh.approx.f32' in emulated.get_kernel_source()
    a, b = torch.linspace(-9, 9, 64), torch.empty(64)
    emulated(a, b)
    torch.testing.assert_close(b, a.tanh(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("function", [T.__exp, T.__log2, T.__cos])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64"])
def test_fast_functions_take_floats(function, dtype):
    with pytest.raises(UnsupportedDtype, match="only supports floating-point inputs") as caught:
        function(tirx.Var("x", dtype))
    assert f"T.{function.__name__}" in str(caught.value)
    assert f"but got {dtype}" in str(caught.value)
    assert "help: convert it" in str(caught.value)


def test_python_numbers_are_computed_with():
    for x in range(-50, 50):
        for multiple in (1, 7, 32):
            exact = math.ceil(x / multiple)
            assert T.ceildiv(x, multiple) == exact
            assert T.align_up(x, multiple) == exact * multiple
    assert T.clamp(7, 0, 5) == 5
    assert (T.max(3, 4), T.min(2.5, 3), T.abs(-3)) == (4, 2.5, 3)
    assert T.index_to_coordinates(23, (2, 3, 4)) == [1, 2, 3]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e8m0fnu"])
def test_a_float_without_infinity(name):
    with pytest.raises(InvalidValue, match=f"{name} has no infinity"):
        T.infinity(name)


def test_a_magnitude_does_not_repeat_its_value_three_times():
    value = tirx.Var("value", "int32")
    assert str(T.abs(T.abs(value))).count("value") == 4


FLOATS = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.5)
INTEGERS = (7, -7, 1, -1, 2, -3, 0, 2**30)


@pytest.mark.full(but=2)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "float16", "bfloat16", "int64"])
def test_constants_give_what_values_of_run_time_do(dtype):
    """Constants that TVM folds, when a node is made or simplified, are what machines compute."""
    is_float = "float" in dtype
    constants = FLOATS if is_float else INTEGERS
    count, rows = len(constants), 7 if is_float else 8

    @T.prim_func
    def main(
        X: T.Tensor((count,), dtype),
        Z: T.Tensor((count,), dtype),
        C: T.Tensor((2, rows, count, count), dtype),
        R: T.Tensor((2, rows, count, count), dtype),
    ):
        def compute(to, side, n, i, a, b, divides):
            to[side, 0, n, i] = a + b
            to[side, 1, n, i] = a - b
            to[side, 2, n, i] = a * b
            to[side, 3, n, i] = T.max(a, b)
            to[side, 4, n, i] = T.min(a, b)
            if is_float:
                to[side, 5, n, i] = a / b
            elif divides:
                to[side, 5, n, i] = a // b
                to[side, 6, n, i] = a % b
                to[side, 7, n, i] = T.ceildiv(a, b)

        with T.Kernel(1, threads=32):
            for n, constant in tuple(enumerate(constants)):
                for i in T.Parallel(count):
                    divides = constant != 0
                    compute(C, 0, n, i, X[i], T.cast(constant, dtype), divides)
                    compute(C, 1, n, i, T.cast(constant, dtype), X[i], True)
                    compute(R, 0, n, i, X[i], Z[n], divides)
                    compute(R, 1, n, i, Z[n], X[i], True)

    kind = getattr(torch, dtype)
    x = torch.tensor(constants, dtype=kind)
    folded, computed = torch.zeros(2, 2, rows, count, count, dtype=kind)
    tvmtile.compile(main, target="llvm")(x, x.clone(), folded, computed)
    torch.testing.assert_close(folded, computed, rtol=0, atol=0, equal_nan=True)
    ordered = [0, 1, 2, 5]  # of two zeros either is the larger
    if is_float:
        signs = (x[:, ordered].nan_to_num().signbit() for x in (folded, computed))
        assert torch.equal(*signs)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32"])
def test_division_by_a_zero_of_run_time_does_not_end_the_process(dtype):
    @T.prim_func
    def main(A: T.Tensor((2,), dtype), n: T.int32, C: T.Tensor((4, 2), dtype)):
        with T.Kernel(1):
            for i in T.Parallel(2):
                by = T.cast(n, dtype)
                C[0, i] = A[i] // by
                C[1, i] = A[i] % by
                C[2, i] = T.truncdiv(A[i], by)
                C[3, i] = T.truncmod(A[i], by)

    kind = getattr(torch, dtype)
    least = torch.iinfo(kind).min
    a, c = torch.tensor([least, 7], dtype=kind), torch.zeros(4, 2, dtype=kind)
    kernel = tvmtile.compile(main, target="llvm")
    kernel(a, 0, c)
    assert c.tolist() == [[least, 7], [0, 0], [least, 7], [0, 0]]
    if least:
        kernel(a, -1, c)
        assert c.tolist() == [[least, -7], [0, 0], [least, -7], [0, 0]]
