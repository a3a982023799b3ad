"""UnswitchConditions: which conditions are decided before a nest, and what that is for."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm import ir
from tvm.script import tirx as TS

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.passes import UnswitchConditions

n = T.dynamic("n")


def unswitched(func):
    module = ir.IRModule({"main": func.with_attr("global_symbol", "main")})
    return UnswitchConditions(module)["main"]


def assert_unchanged(func):
    tvm.ir.assert_structural_equal(unswitched(func), func.with_attr("global_symbol", "main"))


def test_a_condition_that_always_holds_is_dropped():
    @TS.prim_func(private=True)
    def before(A: TS.Buffer((128,), "float32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in TS.parallel(32):
                if bx * 32 + i < 128 and bx * 32 + i >= 0:
                    A[bx * 32 + i] = TS.float32(1)

    @TS.prim_func(private=True)
    def after(A: TS.Buffer((128,), "float32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in TS.parallel(32):
                A[bx * 32 + i] = TS.float32(1)

    tvm.ir.assert_structural_equal(unswitched(before), after.with_attr("global_symbol", "main"))


def test_what_is_never_reached_is_dropped():
    @TS.prim_func(private=True)
    def before(A: TS.Buffer((128,), "float32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            if bx >= 4:
                A[bx * 32] = TS.float32(1)
            for i in TS.parallel(32):
                A[bx * 32 + i] = TS.if_then_else(i >= 40, A[bx * 32 + i + 100], TS.float32(2))
                if i < 32:
                    A[bx * 32 + i] = TS.float32(3)
                else:
                    A[bx * 32 + i + 100] = TS.float32(4)

    @TS.prim_func(private=True)
    def after(A: TS.Buffer((128,), "float32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            TS.evaluate(0)
            for i in TS.parallel(32):
                A[bx * 32 + i] = TS.float32(2)
                A[bx * 32 + i] = TS.float32(3)

    tvm.ir.assert_structural_equal(unswitched(before), after.with_attr("global_symbol", "main"))


def test_a_condition_with_an_effect_stays():
    @TS.prim_func(private=True)
    def main(A: TS.Buffer((8,), "int32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            if TS.tile.atomic(A[0], bx) >= -2147483648:
                A[1] = 1

    assert_unchanged(main)


def test_branches_that_no_block_takes_are_lowered():
    """A guard is dropped under a condition that can't hold, and later nothing shows that it can't."""

    @T.prim_func
    def main(A: T.Tensor((23, 24), "float32"), B: T.Tensor((n, 24), "float32")):
        with T.Kernel(T.ceildiv(n, 8), T.ceildiv(24, 24), threads=32) as (by, bx):
            s = T.alloc_shared((8, 24), "float32")
            T.clear(s)
            if bx >= 2:
                T.copy(A[0, bx * 24], s)
            T.copy(s, B[by * 8, bx * 24])

    b = torch.ones(11, 24)
    tvmtile.compile(main, target="llvm")(torch.randn(23, 24), b)
    assert not b.any()


def test_a_choice_of_values_is_decided_too_and_its_name_is_true():
    @TS.prim_func(private=True)
    def before(A: TS.Buffer((100,), "float32"), B: TS.Buffer((128,), "float32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in TS.parallel(32):
                inside: TS.let[TS.bool] = bx * 32 + i < 100
                B[bx * 32 + i] = TS.if_then_else(inside, A[bx * 32 + i], TS.float32(0))

    @TS.prim_func(private=True)
    def after(A: TS.Buffer((100,), "float32"), B: TS.Buffer((128,), "float32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            if bx < 3:
                for i in TS.parallel(32):
                    inside: TS.let[TS.bool] = TS.bool(True)
                    B[bx * 32 + i] = A[bx * 32 + i]
            else:
                for i in TS.parallel(32):
                    inside: TS.let[TS.bool] = bx * 32 + i < 100
                    B[bx * 32 + i] = TS.if_then_else(inside, A[bx * 32 + i], TS.float32(0))

    tvm.ir.assert_structural_equal(
        unswitched(before), after.with_attr("global_symbol", "main"), map_free_vars=True
    )


def test_conditions_on_elements_stay():
    @TS.prim_func(private=True)
    def main(A: TS.Buffer((128,), "int32"), n: TS.Buffer((1,), "int32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in TS.parallel(32):
                if A[bx * 32 + i] < 100:
                    A[bx * 32 + i] = i
                if bx * 32 + i < n[0]:
                    A[bx * 32 + i] = 1

    assert_unchanged(main)


def test_conditions_that_never_hold_for_a_whole_nest_stay():
    @TS.prim_func(private=True)
    def main(A: TS.Buffer((128,), "int32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in TS.parallel(32):
                if i < 20:
                    A[bx * 32 + i] = i

    assert_unchanged(main)


def test_an_else_is_left_where_the_condition_holds():
    @TS.prim_func(private=True)
    def before(A: TS.Buffer((128,), "int32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in TS.parallel(32):
                if bx * 32 + i < 96:
                    A[bx * 32 + i] = 1
                else:
                    A[bx * 32 + i] = 2

    @TS.prim_func(private=True)
    def after(A: TS.Buffer((128,), "int32")):
        for bx in TS.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            if bx < 3:
                for i in TS.parallel(32):
                    A[bx * 32 + i] = 1
            else:
                for i in TS.parallel(32):
                    if bx * 32 + i < 96:
                        A[bx * 32 + i] = 1
                    else:
                        A[bx * 32 + i] = 2

    got = unswitched(before)
    expected = after.with_attr("global_symbol", "main")
    tvm.ir.assert_structural_equal(got, expected, map_free_vars=True)


def scaled(M, N, block_M=32, block_N=64, threads=64):
    """A factor in a fragment of one element, and a bounds check of the user's own."""

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float16"), s: T.Tensor((1,), "float16"), B: T.Tensor((M, N), "float16")
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            factor = T.alloc_fragment((1,), "float16")
            factor[0] = s[0]
            for i, j in T.Parallel(block_M, block_N):
                y = by * block_M + i
                x = bx * block_N + j
                if (y < M) and (x < N):
                    B[y, x] = A[y, x] * factor[0]

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize("shape", [(64, 128), (50, 128), (64, 100), (33, 65)])
@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_bounds_checks_of_the_users_own(shape, target):
    a, s = torch.randn(shape, dtype=torch.float16), torch.randn(1, dtype=torch.float16)
    b = torch.zeros_like(a)
    runnable(scaled(*shape), target)(a, s, b)
    torch.testing.assert_close(b, a * s)


@pytest.mark.parametrize("shape", [(64, 128), (50, 128)])
def test_full_tiles_move_as_vectors(shape):
    source = tvmtile.compile(
        scaled(*shape), target={"kind": "cuda", "arch": "sm_80"}
    ).get_kernel_source()
    assert "*(uint4*)(((uint*)B_ptr)" in source
    assert "*(uint4*)(((uint*)A_vector_ptr)" in source
