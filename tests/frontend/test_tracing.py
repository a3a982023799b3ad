"""What the statements of a kernel mean, by the numbers that it computes."""

from __future__ import annotations

import linecache
import math
from dataclasses import dataclass

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import (
    SyntaxNotSupported,
)

GLOBAL_STEP = 3


def run(kernel, *inputs, n=4):
    """What a kernel writes into its last parameter, `n` integers."""
    out = torch.full((n,), -1, dtype=torch.int32)
    tvmtile.compile(kernel)(*inputs, out)
    return out.tolist()


def integers(*values):
    return torch.tensor(values, dtype=torch.int32)


# Branches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [True, False, None, "text", 0, [1]])
def test_a_branch_that_is_taken_while_tracing(flag):
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            if flag:
                value = 1
            else:
                value = 2
            A[0] = value

    assert run(f)[0] == (1 if flag else 2)


def test_names_of_a_branch_taken_while_tracing_live_on():
    @T.prim_func
    def f(n: T.int32, A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            if GLOBAL_STEP == 3:
                x = n * 2
            A[0] = x

    assert run(f, 5)[0] == 10


def test_what_is_not_taken_is_not_traced():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            if GLOBAL_STEP != 3:
                A[0] = not_defined_anywhere
            A[1] = 1 if GLOBAL_STEP == 3 else nor_this

    assert run(f) == [-1, 1, -1, -1]


def test_expressions_with_branches():
    @T.prim_func
    def f(n: T.int32, A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            A[0] = 10 if n > 2 else 20
            A[1] = n if 0 < n < 4 else -n
            A[2] = (n if GLOBAL_STEP > 2 else 0) + 1
            flag = n > 2 and n < 9
            A[3] = T.if_then_else(flag, 1, 0)

    assert run(f, 3) == [10, 3, 4, 1]
    assert run(f, 9) == [10, -9, 10, 0]
    assert run(f, -2) == [20, 2, -1, 0]


# Loops ---------------------------------------------------------------------------------------


def test_loops_over_python_values_are_unrolled():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i, value in enumerate([5, 6]):
                A[i] = value
            for i, (a, b) in zip([2, 3], [(1, 2), (3, 4)], strict=True):
                A[i] = a * 10 + b
            for name in {"x": 4, "yy": 5}:
                A[3 + len(name)] = len(name)

    assert run(f, n=8) == [5, 6, 12, 34, 1, 2, -1, -1]


def test_break_of_a_loop_over_python_values():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            for i in [0, 1, 2, 3]:
                if i == 1:
                    continue
                if i == 3:
                    break
                A[i] = i

    assert run(f) == [0, -1, 2, -1]


# Python in a kernel --------------------------------------------------------------------------


def test_python_of_all_kinds():
    table = {"scale": 3}

    def square(x, power=2):
        result = x
        for _ in [1] * (power - 1):
            result = result * x
        return result

    @T.prim_func
    def f(n: T.int32, A: T.Tensor((10,), "int32")):
        with T.Kernel(1):
            A[0] = square(n)
            A[1] = square(n, power=3)
            A[2] = sum([n * k for k in range(3)])
            A[3] = table["scale"] * int(math.log2(8))
            A[4] = (lambda x: x + 1)(n)
            if (half := n // 2) > 1:
                A[5] = half
            first, *rest = [n, 1, 2]
            A[6] = len(rest)
            A[7] = len(f"{GLOBAL_STEP}{'x' * 2}")
            tiles = [T.alloc_local((1,), "int32") for _ in range(2)]
            for k, tile in enumerate(tiles):
                tile[0] = k + 8
            A[8], A[9] = tiles[0][0], tiles[1][0]

    assert run(f, 5, n=10) == [25, 125, 15, 9, 6, 2, 2, 3, 8, 9]


def test_a_helper_inside_the_kernel_is_traced():
    @T.prim_func
    def f(n: T.int32, A: T.Tensor((4,), "int32")):
        with T.Kernel(1):

            def put(index, value=7):
                if value > 100:
                    A[index] = 100
                else:
                    A[index] = value

            put(0)
            put(1, n)
            put(2, value=n * 100)

    assert run(f, 5) == [7, 5, 100, -1]


def test_a_closure_sees_the_value_a_name_has_when_the_kernel_is_defined():
    kernels = []
    for factor in (2, 3):

        @T.prim_func
        def f(n: T.int32, A: T.Tensor((4,), "int32")):
            with T.Kernel(1):
                A[0] = n * factor

        kernels.append(f)
    assert [run(kernel, 5)[0] for kernel in kernels] == [10, 15]


def test_objects_with_attributes():
    @dataclass
    class Config:
        block: int
        dtype: str

    config = Config(4, "int32")

    @T.prim_func
    def f(A: T.Tensor((config.block,), config.dtype)):
        with T.Kernel(1):
            for i in T.Parallel(config.block):
                A[i] = i + A.shape[0]

    assert run(f) == [4, 5, 6, 7]


def test_assert():
    @T.prim_func
    def f(n: T.int32, A: T.Tensor((4,), "int32")):
        assert n > 0, "n is not positive"
        assert GLOBAL_STEP == 3
        with T.Kernel(1):
            A[0] = n

    assert run(f, 2)[0] == 2
    with pytest.raises(Exception, match="n is not positive"):
        run(f, 0)
    with pytest.raises(AssertionError, match="three"):

        @T.prim_func
        def g(A: T.Tensor((4,), "int32")):
            assert GLOBAL_STEP == 4, "three"


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", {"kind": "cuda", "arch": "sm_80"}])
def test_a_left_shift_keeps_the_bits_that_its_result_has(target):
    @T.prim_func
    def f(A: T.Tensor((2,), "uint16"), S: T.Tensor((2,), "int8"), B: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            word = T.alloc_var("uint32", init=1)
            B[0] = T.cast(A[0] << 20, "uint32")
            B[1] = A[0] << 8
            B[2] = T.cast(A[0] << 12, "uint32") | (A[1] << 4)
            word = word | (A[1] << 8)
            B[3] = word
            B[4] = T.cast(T.cast(A[0] << 8, "uint16"), "int32")
            B[5] = T.cast(S[0] << 4, "int64") >> 4
            A[1] = A[0] << 8

    a = torch.tensor([0xABC, 0x1234], dtype=torch.int32).to(torch.uint16)
    out = torch.full((8,), -1, dtype=torch.int32)
    kernel = runnable(f, target)
    kernel(a, torch.tensor([-100, 0], dtype=torch.int8), out)
    word = 0x123401
    wanted = [0xABC00000, 0xABC00, 0xABC000 | 0x12340, word, 0xBC00, -100, -1, -1]
    assert [n % 2**32 for n in out.tolist()] == [n % 2**32 for n in wanted]
    assert a.tolist() == [0xABC, 0xBC00]


# Macros --------------------------------------------------------------------------------------


def test_macros_return_python_values_expressions_and_tuples():
    @T.macro
    def constant():
        return 3

    @T.macro
    def parts(x):
        y = x * 2
        return y, x + 1

    @T.macro
    def variable(x):
        return T.alloc_var("int32", init=x)

    @T.macro
    def apply(function, *values, offset=0):
        return function(*values) + offset

    @T.prim_func
    def f(n: T.int32, A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            double, next_one = parts(n)
            A[0] = double * 100 + next_one
            A[1] = variable(n) + constant()
            A[2] = apply(lambda a, b: a * b, n, 7, offset=1)
            A[3] = apply(parts.__call__, n)[0] if False else 0

    assert run(f, 5) == [1006, 8, 36, 0]


def test_a_macro_sees_its_own_names():
    @T.macro
    def shadow(x, A):
        n = x + 1
        i = 2
        A[i] = n

    @T.prim_func
    def f(n: T.int32, A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            i = 0
            shadow(n, A)
            A[i] = n

    assert run(f, 5) == [5, -1, 6, -1]


def test_arguments_of_a_macro_are_evaluated_once():
    @T.macro
    def twice(x, A):
        A[1] = x
        A[0] = 100
        A[2] = x

    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            A[0] = 5
            twice(A[0] + 1, A)

    assert run(f) == [100, 6, 6, -1]


def test_methods_can_be_macros():
    class Writer:
        def __init__(self, start):
            self.start = start

        @T.macro
        def write(self, A, value):
            A[self.start] = value

    writer = Writer(2)

    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            writer.write(A, 9)

    assert run(f) == [-1, -1, 9, -1]


def test_macros_close_over_buffers_of_the_kernel():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            tile = T.alloc_local((4,), "int32")

            @T.macro
            def put(i, value):
                tile[i] = value

            for i in range(4):
                put(i, i * i)
            for i in range(4):
                A[i] = tile[i]

    assert run(f) == [0, 1, 4, 9]


def test_a_macro_may_be_defined_after_the_macro_that_calls_it():
    @T.macro
    def outer(A):
        inner(A, 1)

    @T.macro
    def inner(A, i):
        A[i] = 4

    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            outer(A)

    assert run(f) == [-1, 4, -1, -1]


@T.macro
def factorial(n):
    return n * factorial(n - 1) if n > 1 else 1


def test_macro_of_a_module_calls_itself():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            A[0] = factorial(4)

    assert run(f) == [24, -1, -1, -1]


# What would be wrong in silence --------------------------------------------------------------


def test_a_name_may_be_bound_again_after_the_loop():
    @T.prim_func
    def f(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            for i in range(4):
                x = i
                A[i] = x
            x = 9
            A[0] = x

    assert run(f) == [9, 1, 2, 3]


@pytest.mark.parametrize("other", [None, "import sys\n", "def g():\n    pass\n", "f(\n"])
def test_a_kernel_whose_source_can_not_be_found(monkeypatch, other):
    """Python may have another text under the name of the file, as 3.13 has for `python -c`."""
    if other is not None:
        lines = other.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, "<string>", (len(other), None, lines, "<string>"))
    names = {"T": T}
    with pytest.raises(SyntaxNotSupported, match="the source of f is not available"):
        exec("@T.prim_func\ndef f(A: T.Tensor((4,), 'int32')):\n    pass\n", names)
