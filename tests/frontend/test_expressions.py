"""A kernel's values in helpers that nothing rewrites: their dtypes, and bitwise operators."""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tvm import relax, tirx

import tvmtile
import tvmtile.language as T
from tvmtile.frontend.expressions import expressions_of_kernels


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


def low(value):
    return value & 0x7FFF_FFFF_FFFF_FFFF, 0x1_0000_0000 | value, value ^ 0x8000_0000


def wide(value):
    return value << 12


def test_bitwise_operators_of_a_helper_keep_all_bits_of_a_number():
    @T.prim_func
    def main(
        A: T.Tensor((8,), "int64"),
        B: T.Tensor((3, 8), "int64"),
        C: T.Tensor((8,), "uint8"),
        D: T.Tensor((8,), "int32"),
    ):
        with T.Kernel(1) as _:
            for i in T.Parallel(8):
                B[0, i], B[1, i], B[2, i] = low(A[i])
                D[i] = wide(C[i])

    a = torch.tensor([-1, 5, -7, 1 << 40, 0, 1, 2, -(2**62)])
    c = torch.arange(8, dtype=torch.uint8) * 36
    b, d = tvmtile.compile(main, out_idx=[1, 3], target="llvm")(a, c)
    expected = a & 0x7FFF_FFFF_FFFF_FFFF, a | 0x1_0000_0000, a ^ 0x8000_0000
    assert torch.equal(b, torch.stack(expected))
    assert torch.equal(d, c.int() << 12)


def test_operators_are_tvms_again_behind_a_kernel():
    x = tirx.Var("x", "int64")
    before = str(x & 0x1_0000_0000)
    with expressions_of_kernels():
        assert str(x & 0x1_0000_0000) == "x & T.int64(4294967296)"
        assert str(0x1_0000_0000 & x) == "T.int64(4294967296) & x"
    assert str(x & 0x1_0000_0000) == before


TARGETS = [
    {"target": "llvm"},
    {"target": "metal", "execution_backend": "emulator"},
    {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
]


@pytest.mark.full
@pytest.mark.parametrize("options", TARGETS, ids=["llvm", "metal", "cuda"])
def test_truth_values_are_counted_and_compared_on_every_target(options):
    compared = ["eq", "ne", "lt", "le", "gt", "ge"]
    functions = [getattr(operator, name) for name in [*compared, "add", "sub", "mul", "xor"]]
    functions += [T.max, T.min, lambda a, b: -(a == b), lambda a, b: (a == b) + (a != b) + True]
    n = len(functions)

    @T.prim_func
    def main(
        A: T.Tensor((8,), "bool"),
        X: T.Tensor((8,), "int32"),
        Y: T.Tensor((n, 8), "int32"),
        Z: T.Tensor((8,), "int32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                a, b = A[i], X[i] > 0
                for row, function in enumerate(functions):
                    Y[row, i] = function(a, b)
                if a == b:
                    count = (X[i] > 1) + (X[i] > 2)  # named, so that it has a dtype of its own
                    Z[i] = count
                else:
                    Z[i] = -1

    a, x = torch.arange(8) % 2 == 0, torch.tensor([0, 1, 2, 3, 3, 2, 1, 0], dtype=torch.int32)
    y, z = tvmtile.compile(main, out_idx=[2, 3], **options)(a, x)
    ints = list(zip(a.int().tolist(), (x > 0).int().tolist(), strict=True))
    references = [getattr(operator, name) for name in [*compared, "add", "sub", "mul", "xor"]]
    references += [max, min, lambda a, b: -(a == b), lambda a, b: (a == b) + (a != b) + 1]
    assert y.tolist() == [[int(f(p, q)) for p, q in ints] for f in references]
    counts = [(v > 1) + (v > 2) for v in x.tolist()]
    assert z.tolist() == [n if p == q else -1 for n, (p, q) in zip(counts, ints, strict=True)]
