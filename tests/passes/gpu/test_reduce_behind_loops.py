"""Sums of which a loop only takes sums are exchanged behind it, all others where they were."""

import pytest
import torch
from tvm import ir

import tvmtile.language as T
from tests.metal.programs import assert_close, random, runnable
from tvmtile.passes import ReduceBehindLoops
from tvmtile.pipeline import lowering_passes
from tvmtile.target import parse

CUDA, METAL = {"kind": "cuda", "arch": "sm_80"}, "metal"
ROWS, COLUMNS, STEPS = 16, 32, 3


def summed(update, *, threads=64, dtype="float32", start=0):
    """A program that takes the sums of rows in a loop, and what `update` does with them.

    `update(k, x, part, total, scale, C)` is in the loop, behind the copies to `x` and `scale`.
    """

    @T.prim_func
    def main(
        A: T.Tensor((STEPS, ROWS, COLUMNS), dtype),
        S: T.Tensor((STEPS, ROWS), dtype),
        C: T.Tensor((2, ROWS), dtype),
    ):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((ROWS, COLUMNS), dtype)
            scale = T.alloc_fragment((ROWS,), dtype)
            part = T.alloc_fragment((ROWS,), dtype)
            total = T.alloc_fragment((ROWS,), dtype)
            T.fill(total, start)
            for k in T.serial(STEPS):
                T.copy(A[k, 0, 0], x)
                T.copy(S[k, 0], scale)
                update(k, x, part, total, scale, C)
            T.copy(total, C[0, 0])

    return main


def is_behind(program, target=CUDA):
    """Whether the pass does something to a program."""
    module = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for each in lowering_passes(parse(target)):
        if each is ReduceBehindLoops:
            break
        module = each(module)
    after = ReduceBehindLoops(module)["main"].script()
    assert ("partial_reduce" in after) != ReduceBehindLoops(module)["main"].same_as(module["main"])
    return "partial_reduce" in after


def check(program, expected, *, dtype="float32", target=CUDA):
    a, s = random(STEPS, ROWS, COLUMNS, dtype=dtype), random(STEPS, ROWS, dtype=dtype)
    wanted = expected(a.double(), s.double())
    for where in ("llvm", target):
        c = torch.zeros(2, ROWS, dtype=a.dtype)
        runnable(program, where)(a, s, c)
        assert_close(c[0], wanted.to(c.dtype) if dtype == "int32" else wanted)


def scaled(a, s, start=0):
    total = torch.full((ROWS,), start, dtype=torch.float64)
    for rows, scale in zip(a, s, strict=True):
        total = total * scale + rows.sum(dim=1)
    return total


# What is exchanged behind the loop ---------------------------------------------------------------


@T.macro
def online(_, x, part, total, scale, __):
    T.reduce_sum(x, part, dim=1)
    for i in T.Parallel(ROWS):
        total[i] = total[i] * scale[i] + part[i]


@pytest.mark.parametrize("target", [CUDA, METAL], ids=str)
@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize("start", [0, 5])
def test_a_scaled_total(target, threads, start):
    program = summed(online, threads=threads, start=start)
    assert is_behind(program, target)
    check(program, lambda a, s: scaled(a, s, start), target=target)


def test_a_sum_into_the_total():
    @T.macro
    def update(_, x, __, total, scale, ___):
        for i in T.Parallel(ROWS):
            total[i] *= scale[i]
        T.reduce_sum(x, total, dim=1, clear=False)

    assert is_behind(summed(update))
    check(summed(update), scaled)


def test_a_part_that_is_cleared_by_hand():
    @T.macro
    def update(_, x, part, total, scale, __):
        T.clear(part)
        T.reduce_sum(x, part, dim=1, clear=False)
        for i in T.Parallel(ROWS):
            total[i] = total[i] * scale[i] - 2 * part[i] / scale[i]

    def expected(a, s):
        total = torch.zeros(ROWS, dtype=torch.float64)
        for rows, scale in zip(a, s, strict=True):
            total = total * scale - 2 * rows.sum(dim=1) / scale
        return total

    assert is_behind(summed(update))
    check(summed(update), expected)


def test_sums_of_absolute_values():
    @T.macro
    def update(_, x, part, total, scale, __):
        T.reduce_abssum(x, part, dim=1)
        for i in T.Parallel(ROWS):
            total[i] = total[i] * scale[i] + part[i]

    assert is_behind(summed(update))
    check(summed(update), lambda a, s: scaled(a.abs(), s))


def test_integers():
    program = summed(online, dtype="int32", start=7)
    assert is_behind(program)
    check(program, lambda a, s: scaled(a, s, 7), dtype="int32")


def test_a_condition_around_the_sum():
    @T.macro
    def update(k, x, part, total, scale, __):
        if k < 2:
            T.reduce_sum(x, part, dim=1)
            for i in T.Parallel(ROWS):
                total[i] = total[i] * scale[i] + part[i]

    assert is_behind(summed(update))
    check(summed(update), lambda a, s: scaled(a[:2], s[:2]))


def test_loops_in_a_loop_that_reads_the_total():
    """The sums are put together once for each iteration of the outer loop."""

    @T.prim_func
    def main(
        A: T.Tensor((STEPS, ROWS, COLUMNS), "float32"),
        S: T.Tensor((STEPS, ROWS), "float32"),
        C: T.Tensor((2, ROWS), "float32"),
    ):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            part = T.alloc_fragment((ROWS,), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            T.clear(total)
            for k in T.serial(STEPS):
                for _ in T.serial(2):
                    T.copy(A[k, 0, 0], x)
                    T.reduce_sum(x, part, dim=1)
                    for i in T.Parallel(ROWS):
                        total[i] = total[i] * 0.5 + part[i]
                for i in T.Parallel(ROWS):
                    total[i] = T.max(total[i], S[k, i])
            T.copy(total, C[0, 0])

    def expected(a, s):
        total = torch.zeros(ROWS, dtype=torch.float64)
        for rows, least in zip(a, s, strict=True):
            for _ in range(2):
                total = total * 0.5 + rows.sum(dim=1)
            total = torch.maximum(total, least)
        return total

    assert is_behind(main)
    check(main, expected)


# What stays --------------------------------------------------------------------------------------


def stays(use):
    """`online`, with something between its sum and its addition."""

    @T.macro
    def update(k, x, part, total, scale, c):
        T.reduce_sum(x, part, dim=1)
        use(k, x, part, total, scale, c)
        for i in T.Parallel(ROWS):
            total[i] = total[i] * scale[i] + part[i]

    return update


@T.macro
def maximum(_, __, part, ___, ____, _____):
    for i in T.Parallel(ROWS):
        part[i] = T.max(part[i], 0)


@T.macro
def division(_, __, part, total, ___, ____):
    for i in T.Parallel(ROWS):
        total[i] = total[i] / T.max(T.abs(part[i]), 1)


@T.macro
def comparison(_, __, part, total, ___, ____):
    for i in T.Parallel(ROWS):
        total[i] = T.if_then_else(part[i] > 0, total[i], 0)


@T.macro
def constant(_, __, part, ___, ____, _____):
    for i in T.Parallel(ROWS):
        part[i] = part[i] + 1


@T.macro
def product_of_both(_, __, part, total, ___, ____):
    for i in T.Parallel(ROWS):
        total[i] = total[i] * part[i]


@T.macro
def written_out(k, _, part, __, ___, c):
    if k == 0:
        T.copy(part, c[1, 0])


@T.macro
def read_by_rows(_, x, part, __, ___, ____):
    for i, j in T.Parallel(ROWS, COLUMNS):
        x[i, j] = x[i, j] + part[i]


@T.macro
def read_total(k, _, __, total, ___, c):
    if k == 1:
        T.copy(total, c[1, 0])


def step(a, s, between):
    total = torch.zeros(ROWS, dtype=torch.float64)
    for rows, scale in zip(a, s, strict=True):
        total, part = between(total, rows.sum(dim=1))
        total = total * scale + part
    return total


@pytest.mark.parametrize(
    ("use", "between"),
    [
        (maximum, lambda t, p: (t, p.clamp(min=0))),
        (division, lambda t, p: (t / p.abs().clamp(min=1), p)),
        (comparison, lambda t, p: (torch.where(p > 0, t, 0), p)),
        (constant, lambda t, p: (t, p + 1)),
        (product_of_both, lambda t, p: (t * p, p)),
        (written_out, lambda t, p: (t, p)),
        (read_by_rows, lambda t, p: (t, p)),
        (read_total, lambda t, p: (t, p)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_no_sum_of_sums(use, between):
    program = summed(stays(use))
    assert not is_behind(program)
    check(program, lambda a, s: step(a, s, between))


def test_sums_of_no_iterations_leave_the_total():
    """What stands behind the loop, no sum of sums, changes it meanwhile."""

    @T.prim_func
    def main(
        A: T.Tensor((STEPS, ROWS, COLUMNS), "float32"),
        S: T.Tensor((STEPS, ROWS), "float32"),
        C: T.Tensor((2, ROWS), "float32"),
    ):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            for turn in T.serial(2):
                for k in T.serial((1 - turn) * T.cast(S[0, 0] == S[0, 0], "int32")):
                    T.copy(A[k, 0, 0], x)
                    T.reduce_sum(x, total, dim=1)
                for i in T.Parallel(ROWS):
                    total[i] = T.max(total[i], 1) + 1
            T.copy(total, C[0, 0])

    check(main, lambda a, _: a[0].sum(dim=1).clamp(min=1) + 2)


def test_a_while_loop_that_reads_the_total_of_the_iteration_before():
    @T.prim_func
    def main(
        A: T.Tensor((STEPS, ROWS, COLUMNS), "float32"),
        S: T.Tensor((STEPS, ROWS), "float32"),
        C: T.Tensor((2, ROWS), "float32"),
    ):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            turn = T.alloc_var("int32")
            T.clear(total)
            turn = 0
            while turn < 2:
                T.copy(total, C[1 - turn, 0])
                for k in T.serial(STEPS):
                    T.copy(A[k, 0, 0], x)
                    T.reduce_sum(x, total, dim=1, clear=False)
                turn += 1

    assert is_behind(main)
    check(main, lambda a, _: a.sum(dim=(0, 2)))


@pytest.mark.parametrize("target", [CUDA, METAL], ids=str)
@pytest.mark.parametrize("leave", ["break", "continue"])
def test_a_loop_around_that_is_left_between_sums(target, leave):
    @T.prim_func
    def main(
        A: T.Tensor((STEPS, ROWS, COLUMNS), "float32"),
        S: T.Tensor((STEPS, ROWS), "float32"),
        C: T.Tensor((2, ROWS), "float32"),
    ):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            T.clear(total)
            for step in T.serial(STEPS):
                for k in T.serial(STEPS):
                    T.copy(A[k, 0, 0], x)
                    T.reduce_sum(x, total, dim=1, clear=False)
                if S[step, 0] != S[0, 0]:
                    if leave == "break":
                        break
                    else:  # noqa: RET508 (a macro decides it)
                        continue
                T.reduce_sum(x, total, dim=1, clear=False)
                for i in T.Parallel(ROWS):
                    C[1, i] = total[i]
            T.copy(total, C[0, 0])

    def expected(a, _):
        turns = STEPS if leave == "continue" else 2
        return turns * a.sum(dim=(0, 2)) + a[-1].sum(dim=1)

    check(main, expected, target=target)


def test_a_sum_outside_of_loops():
    @T.prim_func
    def main(A: T.Tensor((ROWS, COLUMNS), "float32"), C: T.Tensor((ROWS,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((ROWS, COLUMNS), "float32")
            part = T.alloc_fragment((ROWS,), "float32")
            T.copy(A, x)
            T.reduce_sum(x, part, dim=1)
            T.copy(part, C)

    assert not is_behind(main)


def test_rows_that_a_thread_holds_alone():
    """There is nothing to exchange."""

    @T.prim_func
    def main(A: T.Tensor((STEPS, 64, 8), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((64, 8), "float32")
            total = T.alloc_fragment((64,), "float32")
            T.annotate_layout({x: T.Fragment((64, 8), forward_thread_fn=lambda i, j: i)})
            T.clear(total)
            for k in T.serial(STEPS):
                T.copy(A[k, 0, 0], x)
                T.reduce_sum(x, total, dim=1, clear=False)
            T.copy(total, C)

    assert not is_behind(main)
