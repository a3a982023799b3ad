"""Statements of a kernel in plain Python functions: the error names the function and `@T.macro`."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import SyntaxNotSupported, UndefinedName


def parallel(tile, _):
    for i in T.Parallel(64):
        tile[i] = 0


def serial(tile, _):
    for i in T.serial(64):
        tile[i] = 0


def pipelined(tile, _):
    for i in T.Pipelined(64, num_stages=2):
        tile[i] = 0


def over_grid(tile, _):
    for i, j in T.grid(8, 8):
        tile[i * 8 + j] = 0


def persistent(tile, _):
    for (i,) in T.Persistent([64], 1, 0):
        tile[i] = 0


def in_a_group(tile, _):
    with T.ws(0):
        for i in T.unroll(64):
            tile[i] = 0


def bound(tile, _):
    for i in T.thread_binding(128, thread="threadIdx.x"):
        tile[i] = 0


def over_a_value(tile, n):
    for i in range(n):
        tile[i] = 0


def store(tile, n):
    tile[n] = 0


def augmented(tile, n):
    tile[n] += 1


def condition(tile, n):
    if n > 0:
        T.clear(tile)


def loop_with_a_condition(tile, n):
    while n > 0:
        T.clear(tile)


def checked(tile, n):
    assert n > 0
    T.clear(tile)


def chosen(tile, n):
    T.fill(tile, 1 if n > 0 else 2)


def both(tile, n):
    T.fill(tile, T.cast(n > 0 and n < 3, "int32"))


def between(tile, n):
    T.fill(tile, T.cast(0 < n < 3, "int32"))


def negated(tile, n):
    T.fill(tile, not n > 0)


SEEN = {
    parallel: "the loop over T.Parallel(64)",
    serial: "the loop over T.serial(64)",
    pipelined: "the loop over T.Pipelined(64, num_stages=2)",
    over_grid: "the loop over T.grid(8, 8)",
    persistent: "the loop over T.Persistent([64], 1, 0)",
    in_a_group: "the loop over T.unroll(64)",
    bound: "the loop over T.thread_binding(128, thread='threadIdx.x')",
    over_a_value: "the loop over range(n)",
    store: "the assignment to tile[n]",
    augmented: "the assignment to tile[n]",
    condition: "`if n > 0`",
    loop_with_a_condition: "`while n > 0`",
    checked: "`assert n > 0`",
    chosen: "`if n > 0`",
    both: "`n > 0 and n < 3`",
    between: "`0 < n < 3`",
    negated: "`not n > 0`",
}


def program(helper):
    @T.prim_func
    def main(C: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64,), "int32")
            helper(tile, n)
            T.copy(tile, C)

    return main


@pytest.mark.parametrize("helper", SEEN, ids=lambda helper: helper.__name__)
def test_a_statement_in_a_plain_function(helper):
    with pytest.raises(SyntaxNotSupported) as caught:
        program(helper)
    name = helper.__name__
    text = str(caught.value)
    assert f"{SEEN[helper]} stands in {name}, a plain Python function, whose" in text
    assert f"help: put @T.macro over {name}" in text
    first = helper.__code__.co_firstlineno
    assert first < caught.value.location.line <= first + 3


@pytest.mark.parametrize("helper", [parallel, serial, condition, store])
def test_the_remedy(helper):
    tvmtile.compile(program(T.macro(helper)), target="llvm")


def test_a_condition_in_a_lambda():
    with pytest.raises(SyntaxNotSupported, match="`if n > 0` stands in a lambda") as caught:
        program(lambda tile, n: T.fill(tile, 1 if n > 0 else 2))
    assert "write it as a function under @T.macro" in str(caught.value)


def test_a_loop_of_the_kernel_in_a_comprehension():
    with pytest.raises(SyntaxNotSupported, match=r"and T\.serial\(4\) is a loop of the running"):

        @T.prim_func
        def main(C: T.Tensor((64,), "int32")):
            with T.Kernel(1):
                C[0] = sum([C[i] for i in T.serial(4)])


@pytest.mark.parametrize(
    ("use", "remedy"),
    [
        (lambda: T.clc_is_canceled(0), "T.PersistentTileScheduler"),
        (lambda: T.float4_e2m1_unpacked(0), "T.float4_e2m1fn lies in pairs in bytes"),
        (lambda: T.tcgen05_gemm(0), "tensor memory is not part of the language yet"),
        (lambda: T.tma_load_2sm(0), "use T.tma_copy"),
    ],
)
def test_names_of_tilelang_s_that_the_language_lacks(use, remedy):
    with pytest.raises(UndefinedName, match="is not a name of tvmtile.language") as caught:

        @T.prim_func
        def program(C: T.Tensor((64,), "int32")):
            with T.Kernel(1):
                use()

    assert remedy in caught.value.help


def assigned(k):
    k = 3


def added_to(k):
    k += 3


def in_a_branch(k, flag=True):
    T.evaluate(0)
    if flag:
        k = 3


LOST = {assigned: "k = 3", added_to: "k += 3", in_a_branch: "k = 3"}


def counting(helper):
    @T.prim_func
    def main(C: T.Tensor((2,), "int32")):
        with T.Kernel(1):
            k = T.alloc_var("int32", init=1)
            helper(k)
            C[0] = k
            helper(k=k)
            C[1] = k

    return main


@pytest.mark.parametrize("helper", LOST, ids=lambda helper: helper.__name__)
def test_a_variable_that_a_plain_function_assigns(helper):
    with pytest.raises(SyntaxNotSupported) as caught:
        counting(helper)
    text = str(caught.value)
    assert f"`{LOST[helper]}` stands in {helper.__name__}, a plain Python function" in text
    assert f"put @T.macro over {helper.__name__} and annotate the parameter, `k: T.Ref`" in text
    first = helper.__code__.co_firstlineno
    assert first < caught.value.location.line <= first + 3


def test_a_plain_function_that_uses_the_value_of_a_variable():
    stored = []

    def next_place(k):
        k = k + 1
        stored.append(k)

    def places(k):
        for _ in range(3):
            stored.append(k)
            k = k + 1

    def kept(k):
        k = k * 2
        return lambda: k

    def listed(*values, k=0):
        values = values[:1]

    for helper in (next_place, places, kept, listed):
        counting(helper)
    assert len(stored) == 2 + 6


def test_a_macro_assigns_the_variable():
    @T.macro
    def add(k: T.Ref):
        k += 3

    c = torch.zeros(2, dtype=torch.int32)
    tvmtile.compile(counting(add), target="llvm")(c)
    assert c.tolist() == [4, 7]
