"""Statements of a kernel in plain Python functions: the error names the function and `@T.macro`."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T


def parallel(tile, _):
    for i in T.Parallel(64):
        tile[i] = 0


def serial(tile, _):
    for i in T.serial(64):
        tile[i] = 0


def store(tile, n):
    tile[n] = 0


def condition(tile, n):
    if n > 0:
        T.clear(tile)


def program(helper):
    @T.prim_func
    def main(C: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64,), "int32")
            helper(tile, n)
            T.copy(tile, C)

    return main


@pytest.mark.parametrize("helper", [parallel, serial, condition, store])
def test_the_remedy(helper):
    tvmtile.compile(program(T.macro(helper)), target="llvm")


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
