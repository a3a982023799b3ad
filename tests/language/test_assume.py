"""`T.assume`: what the compiler makes of it, and what the host checks of it at each call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import tvmtile
import tvmtile.language as T
from tests.metal.programs import gemm, runnable
from tests.pipelines import numbers, product
from tvmtile.errors import ArgumentError, NestingError, TileError

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
AMPERE = {"kind": "cuda", "arch": "sm_80"}
everywhere = pytest.mark.parametrize("target", ["llvm", "metal", AMPERE, HOPPER], ids=str)
K = 64


def multiply(m=None, n=None, multiple=None, tile=64, persistent=False):
    """A product; extents that are not given are dynamic, n is assumed to be a multiple."""
    m = m or T.dynamic("m")
    n = n or T.dynamic("n")

    def prologue():
        if persistent:
            T.annotate_persistent()
        if multiple is not None:
            T.assume(n % multiple == 0)

    dtypes, block = ("float16", "float32", "float16"), (tile, tile, 32)
    return gemm(m, n, K, block=block, dtypes=dtypes, threads=2 * tile, stages=2, prologue=prologue)


def chosen(program, target):
    """What implements each operator."""
    choices = tvmtile.compile(program, target=target).choices
    return [(each.operator, each.operand, each.chosen) for each in choices]


@pytest.mark.full
@everywhere
def test_a_product_of_several_sizes(target):
    kernel = runnable(multiply(multiple=8), target)
    for m, n in ((64, 64), (77, 136), (1, 8), (130, 72)):
        a, b, c = numbers(m, K), numbers(K, n), torch.full((m, n), 77.0).half()
        kernel(a, b, c)
        assert torch.equal(c, product(a, b).half())


@pytest.mark.full(but=2)
@everywhere
def test_what_does_not_hold_is_an_error_that_says_so(target):
    kernel = runnable(multiply(multiple=8), target)
    c = torch.full((64, 100), 77.0).half()
    with pytest.raises(ArgumentError) as caught:
        kernel(numbers(64, K), numbers(K, 100), c)
    message = str(caught.value)
    assert message.startswith("main assumes that n % 8 == 0: n is 100\n  --> ")
    assert "test_assume.py:" in message
    assert "T.assume(n % multiple == 0)" in message
    assert (c == 77).all()  # nothing has run


@pytest.mark.full
def test_copies_are_those_of_the_static_kernel_on_hopper():
    static = chosen(multiply(256, 256), HOPPER)
    assumed = chosen(multiply(multiple=8), HOPPER)
    assert assumed == static
    assert ("tma_copy", "B_shared", "tma") in assumed
    assert ("copy", "C", "tma_store") in assumed
    assert chosen(multiply(), HOPPER) != static


@pytest.mark.full
def test_blocks_that_stay_know_it_too():
    kernel = runnable(multiply(multiple=8, tile=128, persistent=True), HOPPER)
    assert "two roles, persistent blocks" in str(kernel.choices)
    a, b, c = numbers(200, K), numbers(K, 136), torch.full((200, 136), 77.0).half()
    kernel(a, b, c)
    assert torch.equal(c, product(a, b).half())


@pytest.mark.full
@pytest.mark.parametrize("target", [AMPERE, "metal"], ids=str)
def test_copies_are_wide(target):
    def by_elements(**options):
        source = runnable(multiply(**options), target).get_kernel_source()
        return source.count("] = B_ptr[")

    assert by_elements(multiple=8) == 0
    assert by_elements() > 0


@pytest.mark.full
def test_guards_of_whole_tiles_are_left_out():
    def guards(multiple):
        m = T.dynamic("m")

        @T.prim_func
        def program(A: T.Tensor((m, 64), "float32"), C: T.Tensor((m, 64), "float32")):
            with T.Kernel(T.ceildiv(m, 32), threads=64) as bx:
                T.assume(m % multiple == 0)
                for i, j in T.Parallel(32, 64):
                    C[bx * 32 + i, j] = A[bx * 32 + i, j] + 1

        kernel = tvmtile.compile(program, target=HOPPER)
        return kernel.get_kernel_source().count("  if (")

    assert guards(64) == 0
    assert guards(32) == 0
    assert guards(16) > 0


def test_the_reason_says_what_to_assume():
    choices = str(tvmtile.compile(multiply(), target=HOPPER).choices)
    assert (
        "rows of B[64, n] float16 may not begin at multiples of 16 bytes; "
        "T.assume(n % 8 == 0) says that they do" in choices
    )


def test_the_reason_names_what_is_missing_of_a_product():
    n, h = T.dynamic("n, h")

    @T.prim_func
    def program(A: T.Tensor((64, n, h), "float8_e4m3fn"), C: T.Tensor((64, n, 2 * h), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float8_e4m3fn")
            T.tma_copy(A[0:64, 0, 0:64], tile, barrier=T.alloc_barrier(1))

    with pytest.raises(TileError, match=r"T.assume\(h % 16 == 0\) says that they do"):
        tvmtile.compile(program, target=HOPPER)


def copied(assumed):
    """A kernel that copies n numbers, and assumes what a function of (n, m, limit) says."""
    assumes = T.macro(assumed)
    n, m = T.dynamic("n, m")

    @T.prim_func
    def copies(A: T.Tensor((n,), "float32"), C: T.Tensor((m,), "float32"), limit: T.int32):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            assumes(n, m, limit)
            for i in T.Parallel(32):
                C[bx * 32 + i] = A[bx * 32 + i]

    return tvmtile.compile(copies, target="llvm")


def check(kernel, n, m, limit=0):
    """C has what A has, and no element behind the end of A is read, none behind that of C written."""
    a, c = (np.arange(size + 64, dtype="float32") for size in (n, m))
    c[:m] = 0
    expected = c.copy()
    expected[: min(n, m)] = a[: min(n, m)]
    kernel(a[:n], c[:m], limit)
    np.testing.assert_array_equal(c, expected)


def refused(kernel, *sizes):
    with pytest.raises(ArgumentError) as caught:
        check(kernel, *sizes)
    return caught.value.message


def test_several_assumptions():
    @copied
    def kernel(n, m, limit):
        T.assume(n % 8 == 0)
        T.assume(n >= 16 and n <= m)
        T.assume(limit < 5)

    check(kernel, 40, 48)
    assert refused(kernel, 20, 48) == "copies assumes that n % 8 == 0: n is 20"
    assert refused(kernel, 8, 48) == "copies assumes that n >= 16: n is 8"
    assert refused(kernel, 48, 40) == "copies assumes that n <= m: n is 48, m is 40"
    assert refused(kernel, 40, 48, 7) == "copies assumes that limit < 5: limit is 7"


def test_an_equation():
    @copied
    def kernel(n, m, limit):
        T.assume(m == 2 * n)

    check(kernel, 33, 66)
    assert refused(kernel, 33, 65) == "copies assumes that m == 2 * n: m is 65, n is 33"


def test_an_assumption_under_a_condition_holds_there_only():
    @copied
    def kernel(n, m, limit):
        if n > 100:
            T.assume(n % 32 == 0)
        else:
            T.assume(n % 4 == 0)

    check(kernel, 128, 128)
    check(kernel, 12, 12)
    assert refused(kernel, 132, 132) == "copies assumes that n % 32 == 0: n is 132"
    assert refused(kernel, 13, 13) == "copies assumes that n % 4 == 0: n is 13"


def test_what_a_branch_assumes_is_not_known_behind_it():
    @copied
    def kernel(n, m, limit):
        if limit > 100:
            T.assume(n % 32 == 0)
            T.assume(n == m)

    check(kernel, 33, 20)
    check(kernel, 20, 33)
    check(kernel, 64, 64, 101)


def test_what_a_loop_assumes_is_checked_where_the_loop_runs():
    @copied
    def kernel(n, m, limit):
        for _ in T.serial(limit):
            T.assume(n % 8 == 0)

    check(kernel, 33, 33, 0)
    check(kernel, 40, 40, 1)
    assert refused(kernel, 33, 33, 1) == "copies assumes that n % 8 == 0: n is 33"


@pytest.mark.parametrize("leaves", [True, False])
def test_what_stands_behind_a_break_is_not_checked(leaves):
    @copied
    def kernel(n, m, limit):
        for i in T.serial(4):
            if leaves and i >= limit:
                break
            T.assume(n % 8 == 0)

    check(kernel, 40, 40, 1)
    if leaves:
        check(kernel, 33, 33, 0)
    else:
        assert refused(kernel, 33, 33, 0) == "copies assumes that n % 8 == 0: n is 33"


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
    @copied
    def kernel(n, m, limit):
        if n % 8 != 0:
            T.thread_return()
        T.assume(n % 8 == 0)

    check(kernel, 40, 40)
    a, c = np.ones(33, "float32"), np.zeros(33, "float32")
    kernel(a, c, 0)
    assert not c.any()


@pytest.mark.full
@everywhere
def test_what_only_the_kernel_knows_is_promised(target):
    n = T.dynamic("n")

    @T.prim_func
    def gathers(
        rows: T.Tensor((4,), "int32"),
        A: T.Tensor((n, 64), "float32"),
        C: T.Tensor((4, 64), "float32"),
    ):
        with T.Kernel(4, threads=32) as bx:
            row = rows[bx]
            T.assume(row >= 0 and row < n)
            T.assume(rows[bx] < n)
            for i in T.serial(2):
                T.assume(i < 2)
                for j in T.Parallel(32):
                    C[bx, i * 32 + j] = A[row, i * 32 + j]

    a, c = torch.randn(9, 64), torch.zeros(4, 64)
    rows = torch.tensor([8, 0, 3, 3], dtype=torch.int32)
    runnable(gathers, target)(rows, a, c)
    assert torch.equal(c, a[rows.long()])


@pytest.mark.full
@everywhere
def test_in_a_pipelined_loop_and_in_parallel(target):
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((64, n), "float16"), C: T.Tensor((64, n), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float16")
            for k in T.Pipelined(T.ceildiv(n, 64), num_stages=2):
                T.assume(n % 8 == 0)
                T.copy(A[0, k * 64], tile)
                for i, j in T.Parallel(64, 64):
                    T.assume(i < 64)
                    if k * 64 + j < n:
                        C[i, k * 64 + j] = tile[i, j] * 2

    kernel = runnable(program, target)
    for size in (64, 72, 200):
        a, c = numbers(64, size), torch.zeros(64, size).half()
        kernel(a, c)
        assert torch.equal(c, a * 2)
    with pytest.raises(ArgumentError, match="program assumes that n % 8 == 0: n is 65"):
        kernel(numbers(64, 65), torch.zeros(64, 65).half())


def test_in_front_of_the_kernels():
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n, 64), "float16"), C: T.Tensor((n, 64), "float16")):
        T.assume(n % 32 == 0)
        with T.Kernel(n // 32, threads=32) as bx:
            for i, j in T.Parallel(32, 64):
                C[bx * 32 + i, j] = A[bx * 32 + i, j] + 1
        with T.Kernel(n // 32, threads=32) as bx:
            for i, j in T.Parallel(32, 64):
                C[bx * 32 + i, j] += A[bx * 32 + i, j]

    kernel = tvmtile.compile(program, target="llvm")
    a, c = numbers(96, 64), torch.zeros(96, 64).half()
    kernel(a, c)
    assert torch.equal(c, 2 * a + 1)
    with pytest.raises(ArgumentError, match="program assumes that n % 32 == 0: n is 97"):
        kernel(numbers(97, 64), torch.zeros(97, 64).half())


def test_in_a_loop_around_kernels():
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n,), "float32")):
        for i in T.serial(3):
            T.assume(i < n)
            with T.Kernel(1, threads=32):
                X[i] = 1
        with T.Kernel(1, threads=32):
            X[0] = 2

    kernel = tvmtile.compile(main, target="llvm")
    x = torch.zeros(4)
    kernel(x)
    assert x.tolist() == [2, 1, 1, 0]
    with pytest.raises(ValueError, match="i < n"):
        kernel(torch.zeros(2))


@pytest.mark.full
@everywhere
def test_strides(target):
    m, n, s = T.dynamic("m, n, s")

    @T.prim_func
    def program(A: T.StridedTensor((m, n), (s, 1), "float16"), C: T.Tensor((m, 64), "float16")):
        with T.Kernel(T.ceildiv(m, 64), threads=128) as bx:
            T.assume(s % 8 == 0)
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A[bx * 64, 0], tile)
            T.copy(tile, C[bx * 64, 0])

    kernel = runnable(program, target)
    whole = numbers(70, 80)
    for width in (64, 50):
        c = torch.full((70, 64), 77.0).half()
        kernel(whole[:, :width], c)
        expected = torch.zeros(70, 64).half()
        expected[:, :width] = whole[:, :width]
        assert torch.equal(c, expected)
    with pytest.raises(ArgumentError, match="program assumes that s % 8 == 0: s is 76"):
        kernel(numbers(70, 76)[:, :64], torch.zeros(70, 64).half())


@pytest.mark.full(but=1)
@everywhere
def test_a_view_of_a_tensor_of_assumed_size(target):
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((64, n), "float16"), C: T.Tensor((64 * n,), "float16")):
        with T.Kernel(T.ceildiv(n, 64), threads=128) as bx:
            T.assume(n % 64 == 0)
            out = T.view(C, (64, n))
            tile = T.alloc_shared((64, 64), "float16")
            T.copy(A[0, bx * 64], tile)
            T.copy(tile, out[0, bx * 64])

    a, c = numbers(64, 192), torch.zeros(64 * 192).half()
    runnable(program, target)(a, c)
    assert torch.equal(c.view(64, 192), a)


def test_extents_that_stand_in_expressions_only():
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n * 2,), "float32"), C: T.Tensor((n * 2,), "float32")):
        with T.Kernel(T.ceildiv(n * 2, 32), threads=32) as bx:
            T.assume(n % 16 == 0)
            for i in T.Parallel(32):
                C[bx * 32 + i] = A[bx * 32 + i]

    kernel = tvmtile.compile(program, target="llvm")
    a = torch.randn(96)
    c = torch.zeros(96)
    kernel(a, c)
    assert torch.equal(a, c)
    with pytest.raises(ArgumentError, match="program assumes that n % 16 == 0"):
        kernel(torch.zeros(40), torch.zeros(40))


def test_outside_of_a_program():
    with pytest.raises(NestingError, match="T.assume stands outside T.Kernel"):
        T.assume(True)


def test_a_program_parses_back():
    program = multiply(multiple=8)
    again = tvm.script.from_source(program.script())
    tvm.ir.assert_structural_equal(again, program)


@pytest.mark.full
def test_results_of_a_call_and_torch_operators():
    kernel = tvmtile.compile(multiply(multiple=8), target="llvm", out_idx=[2])
    a, b = numbers(40, K), numbers(K, 24)
    assert torch.equal(kernel(a, b), product(a, b).half())
    with pytest.raises(ArgumentError, match="main assumes that n % 8 == 0: n is 23"):
        kernel(a, numbers(K, 23))
    operator = kernel.as_torch_op("assume::product")
    assert torch.equal(operator(a, b), product(a, b).half())
    with pytest.raises(ArgumentError, match="main assumes that n % 8 == 0: n is 23"):
        operator(a, numbers(K, 23))


@pytest.mark.full
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
