"""NormalizeBinds, PreventLetInlining: costly values are computed once, and programs don't grow."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import tirx
from tvm.ir.instrument import pass_instrument

import tvmtile
import tvmtile.language as T
from tvmtile.ir.divisions import is_division, named_divisions

M, N = T.dynamic("M, N")
CUDA = {"kind": "cuda", "arch": "sm_90a"}


def variables(names):
    return [tirx.Var(name, "int32") for name in names]


def test_what_counts_as_a_division():
    a, n = variables("an")
    assert is_division(a // n)
    assert is_division(a % n)
    assert not is_division(a // 8)
    assert not is_division(a // n + 1)


def test_equal_divisions_have_one_name():
    a, n = variables("an")
    names, values = named_divisions([a // n * 4, a // n + a % n], "q")
    assert [str(bind.value) for bind in names] == ["a // n", "a % n"]
    quotient, rest = (bind.var for bind in names)
    tvm.ir.assert_structural_equal(values[0], quotient * 4)
    tvm.ir.assert_structural_equal(values[1], quotient + rest)


def test_a_division_in_a_division():
    a, n = variables("an")
    names, (value,) = named_divisions([a // n % (n + 1)], "q")
    assert [str(bind.value) for bind in names] == ["a // n"]
    assert str(value) == "q % (n + 1)"


def gemm(rows, columns, order):
    """A tile a block, in the order of the grid, of T.use_swizzle, of T.Persistent or by hand."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, 64), "float16"),
        B: T.Tensor((64, columns), "float16"),
        C: T.Tensor((rows, columns), "float16"),
    ):
        grid = [T.ceildiv(rows, 32), T.ceildiv(columns, 32)]
        count = {"persistent": 3, "by hand": grid[0] * grid[1]}.get(order)

        def tile(by, bx):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[by * 32, k * 32], a)
                T.copy(B[k * 32, bx * 32], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 32, bx * 32])

        if order == "persistent":
            with T.Kernel(count, threads=64) as pid:
                for by, bx in T.Persistent(grid, count, pid):
                    tile(by, bx)
        elif order == "by hand":
            with T.Kernel(count, threads=64) as pid:
                y = pid // grid[1]
                x = pid % grid[1]
                tile(y, x)
        else:
            with T.Kernel(grid[1], grid[0], threads=64) as (x, y):
                T.use_swizzle(2, enable=order == "swizzle")
                tile(y, x)

    return main


ORDERS = ["swizzle", "persistent", "by hand"]


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS)
def test_divisions_are_done_once(order):
    source = tvmtile.compile(gemm(M, N, order), target=CUDA).get_kernel_source()
    body = source[source.rindex("__global__") :]
    assert body.count(" / ") <= 8
    assert body.count(" % (") + body.count(" % min(") <= 8


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("target", "one", "both"),
    [
        (CUDA, 2, 3),
        ("llvm", 3, 3),  # there twice: one block of a dynamic grid runs without the pool
    ],
    ids=["cuda", "llvm"],
)
def test_code_grows_with_the_text_of_a_kernel(target, one, both, order):
    def size(rows, columns):
        return len(tvmtile.compile(gemm(rows, columns, order), target=target).get_kernel_source())

    static = size(256, 256)
    assert size(M, 256) < one * static
    assert size(M, N) < both * static


@pytest.mark.full(but=1)
@pytest.mark.parametrize("order", ORDERS)
def test_conditions_are_simplified_without_the_divisions_of_their_names(order):
    """LowerIntrin simplifies each with all that it knows, which took most of a GEMM's time."""
    hidden = []

    @pass_instrument
    class Watch:
        def run_after_pass(self, mod, info):
            if info.name == "tirx.LowerIntrin":
                hidden.append(mod.script().count("T.tvmtile.opaque("))

    with tvm.transform.PassContext(instruments=[Watch()]):
        source = tvmtile.compile(gemm(M, N, order), target=CUDA).get_kernel_source()
    assert max(hidden) >= 2
    assert "once" not in source


def test_the_rest_of_a_value_stays_known():
    """A multiple of four is one whatever the division gives, so that vectors are moved."""

    @T.prim_func
    def main(A: T.Tensor((M, 256), "float32"), B: T.Tensor((4, 256), "float32")):
        with T.Kernel(M, threads=64) as pid:
            start = pid // (M + 1) * 128
            s = T.alloc_shared((4, 128), "float32")
            T.copy(A[0:4, start : start + 128], s)
            T.copy(s, B[0:4, start : start + 128])

    source = tvmtile.compile(main, target=CUDA).get_kernel_source()
    assert "*(float4*)(B_ptr" in source


def chosen(rows, columns):
    """Elements that are chosen by names of choices between other names."""

    @T.prim_func
    def main(C: T.Tensor((4 * rows, columns), "int32")):
        with T.Kernel(4, threads=32) as bx:
            x = T.alloc_fragment((rows, columns), "int32")
            last = T.if_then_else(bx < 2, bx, bx - 2)
            is_last = T.if_then_else(last == 1, 1, 0)
            for i, j in T.Parallel(rows, columns):
                allowed = T.if_then_else(is_last == 1, T.if_then_else(i // 2 == j // 2, 3, 4), last)
                x[i, j] = T.if_then_else(allowed > 2, allowed * 2, allowed - 1)
            T.copy(x, C[bx * rows, 0])

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["metal", CUDA], ids=["metal", "cuda"])
def test_choices_are_made_once(target):
    program = chosen(8, 8)  # two elements a thread
    kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
    source = kernel.get_kernel_source()
    assert len(re.findall(r"blockIdx(?:\.x)?\) - 2\)", source)) == 1
