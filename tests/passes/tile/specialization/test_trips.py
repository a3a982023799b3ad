"""Iterations that a condition leaves out: where both roles skip them, and where they stay branches."""

from __future__ import annotations

import re

import pytest
import torch
from tvm import ir
from tvm.script import from_source

import tvmtile
import tvmtile.language as T
from tests.passes.tile.specialization.masked_kernels import MASKED
from tests.passes.tile.test_warp_specialize import check, specialised
from tests.pipelines import numbers
from tvmtile.errors import CudaEmulationError
from tvmtile.passes import WarpSpecialize

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
N = 64

BEFORE = """
@T.prim_func
def main(
    A: T.Buffer((128, 512), "float16"),
    B: T.Buffer((512, 128), "float16"),
    mask: T.Buffer((8,), "int32"),
    C: T.Buffer((128, 128), "float32"),
):
    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            a = T.alloc_buffer((128, 64), "float16", scope="shared.dyn")
            b = T.alloc_buffer((64, 128), "float16", scope="shared.dyn")
            acc = T.alloc_buffer((128, 128), "float32", scope="local.fragment")
            T.tile.fill(acc[0:128, 0:128], T.float32(0))
            for k in T.serial(8, annotations={"tvmtile.num_stages": 3}):
                if mask[k] > 0:
                    T.tile.copy(A[0:128, k * 64 : k * 64 + 64], a[0:128, 0:64], impl="elements")
                    T.tile.copy(B[k * 64 : k * 64 + 64, 0:128], b[0:64, 0:128], impl="elements")
                    T.tile.gemm(a[0:128, 0:64], b[0:64, 0:128], acc[0:128, 0:128], impl="wgmma")
            T.tile.copy(acc[0:128, 0:128], C[0:128, 0:128], impl="elements")
"""

AFTER = """
@T.prim_func
def main(
    A: T.Buffer((128, 512), "float16"),
    B: T.Buffer((512, 128), "float16"),
    mask: T.Buffer((8,), "int32"),
    C: T.Buffer((128, 128), "float32"),
):
    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            a = T.alloc_buffer((3, 128, 64), "float16", scope="shared.dyn")
            b = T.alloc_buffer((3, 64, 128), "float16", scope="shared.dyn")
            acc = T.alloc_buffer((128, 128), "float32", scope="local.fragment")
            full = T.alloc_buffer((3,), "uint64", scope="shared.barrier")
            T.tile.init_mbarriers(full, counts=[1, 1, 1])
            empty = T.alloc_buffer((3,), "uint64", scope="shared.barrier")
            T.tile.init_mbarriers(empty, counts=[4, 4, 4])
            T.tvm_storage_sync("shared")
            if tx < 128:
                with T.attr(0, "tvmtile.group", 128):
                    k_done = T.alloc_buffer((1,), "int32", scope="local")
                    k_done[0] = 0
                    T.tile.fill(acc[0:128, 0:128], T.float32(0))
                    k_next = T.alloc_buffer((1,), "int32", scope="local")
                    k_next[0] = 0
                    while k_next[0] < 8 and not mask[k_next[0]] > 0:
                        k_next[0] = k_next[0] + 1
                    k_begin: T.let[T.int32] = k_next[0]
                    if k_begin < 8:
                        while k_next[0] < 8:
                            k: T.let[T.int32] = T.max(T.min(k_next[0], 7), 0)
                            k_number: T.let[T.int32] = k_done[0]
                            T.tile.mbarrier(
                                full[k_number % 3],
                                T.Cast("int32", k_number // 3 % 2),
                                action="wait",
                            )
                            with T.attr(T.int32(0), "tvmtile.asynchronous", "wgmma/k2"):
                                T.tile.gemm(
                                    a[k_number % 3, 0:128, 0:64],
                                    b[k_number % 3, 0:64, 0:128],
                                    acc[0:128, 0:128],
                                    impl="wgmma",
                                )
                            T.tile.async_signal("wgmma/k2")
                            T.tile.async_wait("wgmma/k2", 1)
                            T.tvm_storage_sync("warp")
                            if k > k_begin and tx % 32 == 0:
                                T.tile.mbarrier(empty[(k_number - 1) % 3], 1)
                            k_done[0] = k_done[0] + 1
                            k_next[0] = k_next[0] + 1
                            while k_next[0] < 8 and not mask[k_next[0]] > 0:
                                k_next[0] = k_next[0] + 1
                        T.tile.async_wait("wgmma/k2", 0)
                        T.tvm_storage_sync("warp")
                        if tx % 32 == 0:
                            T.tile.mbarrier(empty[(k_done[0] - 1) % 3], 1)
                    T.tile.copy(acc[0:128, 0:128], C[0:128, 0:128], impl="elements")
            else:
                with T.attr(128, "tvmtile.group", 128):
                    if tx >= 128 and tx < 160:
                        with T.attr(128, "tvmtile.group", 32):
                            k_done = T.alloc_buffer((1,), "int32", scope="local")
                            k_done[0] = 0
                            k_next = T.alloc_buffer((1,), "int32", scope="local")
                            k_next[0] = 0
                            while k_next[0] < 8 and not mask[k_next[0]] > 0:
                                k_next[0] = k_next[0] + 1
                            while k_next[0] < 8:
                                k: T.let[T.int32] = T.max(T.min(k_next[0], 7), 0)
                                k_number: T.let[T.int32] = k_done[0]
                                T.tile.mbarrier(
                                    empty[k_number % 3],
                                    1 - T.Cast("int32", k_number // 3 % 2),
                                    action="wait",
                                )
                                T.tile.tma_copy(
                                    A[0:128, k * 64 : k * 64 + 64],
                                    a[k_number % 3, 0:128, 0:64],
                                    full[k_number % 3],
                                )
                                T.tile.tma_copy(
                                    B[k * 64 : k * 64 + 64, 0:128],
                                    b[k_number % 3, 0:64, 0:128],
                                    full[k_number % 3],
                                )
                                if tx - 128 == 0:
                                    T.tile.mbarrier(full[k_number % 3], 1)
                                k_done[0] = k_done[0] + 1
                                k_next[0] = k_next[0] + 1
                                while k_next[0] < 8 and not mask[k_next[0]] > 0:
                                    k_next[0] = k_next[0] + 1
"""


def parsed(text):
    return ir.IRModule({"main": from_source(text)})


def test_both_roles_go_from_one_iteration_that_is_done_to_the_next():
    """By a counter of those that were done; the product of one is in flight under the next."""
    ir.assert_structural_equal(WarpSpecialize(parsed(BEFORE)), parsed(AFTER))


def chosen_of(program):
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    return [choice for choice in kernel.choices if choice.operator == "Pipelined"]


@pytest.mark.parametrize("name", MASKED)
def test_the_choices_say_that_iterations_are_skipped(name):
    loop, *others = chosen_of(MASKED[name]().program)
    assert "skipped iterations" in loop.chosen.split(", ")
    assert not any("skipped" in other.chosen for other in others)


_COUNTED = re.compile(
    r"^ +(?P<counter>\w+_done_ptr\w*)\[0\] = \((?P=counter)\[0\] \+ 1\);$", re.MULTILINE
)
_LEFT_OUT = re.compile(r"\(condval\w* <= 0\)")


def test_roles_that_do_not_count_alike_are_found():
    run = MASKED["in_flight_over_what_is_left_out"]()
    kernel = tvmtile.compile(run.program, target=HOPPER, execution_backend="emulator")
    ((symbol, source),) = kernel.adapter.sources.items()
    counted = list(_COUNTED.finditer(source))
    decided = list(_LEFT_OUT.finditer(source))
    assert (len(counted), len(decided)) == (2, 4)
    wrong = [source[: at.start()] + source[at.end() :] for at in counted]
    wrong += [f"{source[: at.start()]}!({at[0]}){source[at.end() :]}" for at in decided]
    for text in wrong:
        kernel.adapter.sources[symbol] = text
        with pytest.raises((CudaEmulationError, AssertionError)):
            run.check(kernel)


def sums(step):
    """`step` writes what an iteration does."""

    @T.prim_func
    def main(
        A: T.Tensor((N, 5 * N), "float16"),
        B: T.Tensor((5 * N, N), "float16"),
        mask: T.Tensor((5,), "int32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(5, num_stages=2):
                step(A, B, mask, a, b, c, k)
            T.copy(c, C)

    return main


@T.macro
def multiplied(A, B, a, b, c, k):
    T.copy(A[0, k * N], a)
    T.copy(B[k * N, 0], b)
    T.gemm(a, b, c)


@T.macro
def something_beside(A, B, mask, a, b, c, k):
    if mask[k] > 0:
        multiplied(A, B, a, b, c, k)
    for i, j in T.Parallel(N, N):
        c[i, j] += 1


@T.macro
def two_branches(A, B, mask, a, b, c, k):
    if mask[k] > 0:
        multiplied(A, B, a, b, c, k)
    if mask[k] <= 0:
        for i, j in T.Parallel(N, N):
            c[i, j] += 1


@T.macro
def a_branch_in_a_branch(A, B, mask, a, b, c, k):
    if mask[k] > 0:
        last = mask[4] * 4
        if k < last:
            multiplied(A, B, a, b, c, k)


MASK = torch.tensor([0, 1, 1, 0, 1], dtype=torch.int32)


@pytest.mark.parametrize(("step", "added"), [(something_beside, 5), (two_branches, 2)])
def test_what_is_partly_under_a_condition_goes_through_all_iterations(step, added):
    a, b = numbers(N, 5 * N), numbers(5 * N, N)
    expected = (a * MASK.repeat_interleave(N)).double() @ b.double() + added
    program = sums(step)
    check(program, (a, b, MASK, torch.zeros(N, N)), expected)
    assert "while" not in specialised(program).script()
    assert [loop.chosen for loop in chosen_of(program)] == ["two roles"]


def test_a_branch_that_is_all_of_another_one_decides_too():
    a, b = numbers(N, 5 * N), numbers(5 * N, N)
    expected = (a * (MASK * (torch.arange(5) < 4)).repeat_interleave(N)).double() @ b.double()
    program = sums(a_branch_in_a_branch)
    check(program, (a, b, MASK, torch.zeros(N, N)), expected)
    assert [loop.chosen for loop in chosen_of(program)] == ["two roles, skipped iterations"]


def test_a_second_product_that_needs_the_iteration_is_not_skewed():
    """It would be that of the iteration that was done before, of which only the number is known."""

    @T.prim_func
    def program(
        Q: T.Tensor((N, N), "float16"),
        K: T.Tensor((3 * N, N), "float16"),
        V: T.Tensor((3, N, N), "float16"),
        mask: T.Tensor((3,), "int32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            q, k = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            v = T.alloc_shared((3, N, N), "float16")
            scores = T.alloc_fragment((N, N), "float32")
            weights = T.alloc_fragment((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.copy(Q, q)
            T.copy(V, v)
            T.clear(c)
            for i in T.Pipelined(3, num_stages=2):
                if mask[i] > 0:
                    T.copy(K[i * N, 0], k)
                    T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                    for r, s in T.Parallel(N, N):
                        scores[r, s] = T.max(T.min(scores[r, s], 2), -2)
                    T.copy(scores, weights)
                    T.gemm(weights, v[i, :, :], c)
            T.copy(c, C)

    q, k, v = numbers(N, N), numbers(3 * N, N), numbers(3, N, N)
    mask = torch.tensor([1, 0, 1], dtype=torch.int32)
    weights = (q.double() @ k.double().T).clamp(-2, 2)
    expected = sum(weights[:, i * N : i * N + N] @ v[i].double() for i in (0, 2))
    check(program, (q, k, v, mask, torch.zeros(N, N)), expected)
    (loop,) = chosen_of(program)
    assert loop.chosen == "two roles, skipped iterations"
    reason = "the second product would need i of the last iteration that was done"
    assert ("skewed", reason) in loop.declined
