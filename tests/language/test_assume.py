"""`T.assume`: what the host checks of it at each call, and what messages say of it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import called, compiled
from tests.pipelines import numbers, product
from tests.programs import catalogue
from tests.programs.text import Name
from tests.running import gemm
from tvmtile.errors import ArgumentError

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
K = 64


def multiply(m=None, n=None, multiple=None):
    """A product; extents that are not given are dynamic, n is assumed to be a multiple."""
    begin = () if multiple is None else (Name(f"T.assume(n % {multiple} == 0)"),)
    given = {"dtypes": ("float16", "float32", "float16"), "stages": 2, "begin": begin}
    return gemm(m or Name("m"), n or Name("n"), K, name="gemm_of_assumed_extents", **given)


def test_what_does_not_hold_is_an_error_that_says_so():
    kernel = tvmtile.compile(multiply(multiple=8), target="llvm")
    c = torch.full((64, 100), 77.0).half()
    with pytest.raises(ArgumentError) as caught:
        kernel(numbers(64, K), numbers(K, 100), c)
    message = str(caught.value)
    assert message.startswith("main assumes that n % 8 == 0: n is 100\n  --> ")
    assert "program_" in message
    assert "T.assume(n % 8 == 0)" in message
    assert (c == 77).all()  # nothing has run


def several(n, m, limit):
    T.assume(n % 8 == 0)
    T.assume(n >= 16 and n <= m)
    T.assume(limit < 5)


def an_equation(n, m, limit):
    T.assume(m == 2 * n)


def in_either_branch(n, m, limit):
    if n > 100:
        T.assume(n % 32 == 0)
    else:
        T.assume(n % 4 == 0)


def in_a_branch_only(n, m, limit):
    if limit > 100:
        T.assume(n % 32 == 0)
        T.assume(n == m)


def in_a_loop(n, m, limit):
    for _ in T.serial(limit):
        T.assume(n % 8 == 0)


def behind_a_break(n, m, limit):
    for i in T.serial(4):
        if i >= limit:
            break
        T.assume(n % 8 == 0)


def without_a_break(n, m, limit):
    for _ in T.serial(4):
        T.assume(n % 8 == 0)


@pytest.mark.parametrize(
    ("assumed", "right", "wrong"),
    [
        (
            several,
            [(40, 48)],
            {
                (20, 48): "n % 8 == 0: n is 20",
                (8, 48): "n >= 16: n is 8",
                (48, 40): "n <= m: n is 48, m is 40",
                (40, 48, 7): "limit < 5: limit is 7",
            },
        ),
        (an_equation, [(33, 66)], {(33, 65): "m == 2 * n: m is 65, n is 33"}),
        (
            in_either_branch,
            [(128, 128), (12, 12)],
            {(132, 132): "n % 32 == 0: n is 132", (13, 13): "n % 4 == 0: n is 13"},
        ),
        (in_a_branch_only, [(33, 20), (20, 33), (64, 64, 101)], {}),
        (in_a_loop, [(33, 33, 0), (40, 40, 1)], {(33, 33, 1): "n % 8 == 0: n is 33"}),
        (behind_a_break, [(40, 40, 1), (33, 33, 0)], {}),
        (without_a_break, [(40, 40, 1)], {(33, 33, 0): "n % 8 == 0: n is 33"}),
    ],
)
def test_assumption_is_checked_where_it_stands(assumed, right, wrong):
    """No element behind the end of A is read, none behind that of C written."""
    assumes = T.macro(assumed)
    n, m = T.dynamic("n, m")

    @T.prim_func
    def copies(A: T.Tensor((n,), "float32"), C: T.Tensor((m,), "float32"), limit: T.int32):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            assumes(n, m, limit)
            for i in T.Parallel(32):
                C[bx * 32 + i] = A[bx * 32 + i]

    kernel = tvmtile.compile(copies, target="llvm")
    for size, room, *limit in [*right, *wrong]:
        a, c = (np.arange(count + 64, dtype="float32") for count in (size, room))
        c[:room] = 0
        expected = c.copy()
        expected[: min(size, room)] = a[: min(size, room)]
        arguments = (a[:size], c[:room], *(limit or [0]))
        if message := wrong.get((size, room, *limit)):
            with pytest.raises(ArgumentError) as caught:
                kernel(*arguments)
            assert caught.value.message == f"copies assumes that {message}"
        else:
            kernel(*arguments)
            np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("dtype", ["uint32", "float32"])
def test_numbers_that_are_no_signed_integers(dtype):
    number = getattr(T, dtype)

    @T.prim_func
    def program(C: T.Tensor((8,), "int32"), a: number, b: number):
        with T.Kernel(1, threads=8):
            T.assume(a < b)
            for i in T.Parallel(8):
                C[i] = T.if_then_else(a + i < b, 1, 2)

    kernel = tvmtile.compile(program, target="llvm")
    c = np.zeros(8, "int32")
    kernel(c, 3, 7)
    np.testing.assert_array_equal(c, [1, 1, 1, 1, 2, 2, 2, 2])
    with pytest.raises(ArgumentError, match="program assumes that a < b: a is 7, b is 3"):
        kernel(c, 7, 3)


def test_an_assumption_behind_a_return_is_not_checked_for_what_returns():
    n = T.dynamic("n")

    @T.prim_func
    def program(C: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            if n % 8 != 0:
                T.thread_return()
            T.assume(n % 8 == 0)
            T.fill(C, 1)

    kernel = tvmtile.compile(program, target="llvm")
    for size in (40, 33):
        c = torch.zeros(size)
        kernel(c)
        assert (c == (size == 40)).all()


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("columns_assumed_in_a_loop", {"n": 65}, "n % 8 == 0: n is 65"),
        ("assumed_strides", {"m": 70, "n": 64, "s": 76}, "s % 8 == 0: s is 76"),
        ("assumptions_before_kernels", {"n": 97}, "n % 32 == 0: n is 97"),
        ("assumptions_around_kernels", {"n": 2}, "i < n: n is 2"),
        ("extents_in_expressions_only", {"n": 20}, "n % 16 == 0"),
    ],
)
def test_assumption_of_a_program_of_the_catalogue_is_checked(name, sizes, message, tmp_path):
    case = catalogue()[name].case()
    kernel = compiled(case, "llvm", tmp_path)
    broken = replace(case, source=case.source.replace("SIZES = [", f"SIZES = [{sizes}, "))
    with pytest.raises(ArgumentError, match=re.escape(f"main assumes that {message}")):
        called(kernel, broken, 0, "cpu")


def test_results_of_a_call_and_torch_operators():
    kernel = tvmtile.compile(multiply(multiple=8), target="llvm", out_idx=[2])
    a, b = numbers(40, K), numbers(K, 24)
    for function in (kernel, kernel.as_torch_op("assume::product")):
        assert torch.equal(function(a, b), product(a, b).half())
        with pytest.raises(ArgumentError, match="main assumes that n % 8 == 0: n is 23"):
            function(a, numbers(K, 23))


def test_in_a_module_of_relax():
    builder = relax.BlockBuilder()
    program = multiply(multiple=8).with_attr("global_symbol", "product")
    m, n = (tvm.tirx.Var(name, "int64") for name in "mn")
    a = relax.Var("a", relax.TensorType((m, K), "float16"))
    b = relax.Var("b", relax.TensorType((K, n), "float16"))
    function = builder.add_func(program, "product")
    with builder.function("main", [a, b]):
        out = relax.TensorType((m, n), "float16")
        builder.emit_func_output(builder.emit(relax.call_tir(function, [a, b], out)))
    built = tvm.compile(builder.get(), target="llvm", tir_pipeline="tvmtile")
    machine = relax.VirtualMachine(built, tvm.cpu())
    left, right = numbers(40, K), numbers(K, 24)
    given = [tvm.runtime.tensor(each.numpy()) for each in (left, right)]
    result = machine["main"](*given).numpy()
    np.testing.assert_array_equal(result, product(left, right).half().numpy())
    with pytest.raises(Exception, match="T.assume: n % 8 == 0 does not hold"):
        machine["main"](given[0], tvm.runtime.tensor(numbers(K, 23).numpy()))
