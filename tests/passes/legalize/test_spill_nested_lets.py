"""SpillNestedLets: names in one another are stored, where TVM would multiply their values."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
import torch
import tvm
from tvm import ir, tirx
from tvm.script import tirx as S

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import _processor_time as processor_time
from tvmtile._tvm import mapped, nodes_in, walk
from tvmtile.ir.rewriting import contains
from tvmtile.passes import SpillNestedLets
from tvmtile.pipeline import lowering_passes
from tvmtile.target import parse


@S.prim_func
def kernel(A: S.Buffer((8,), "float32")):
    for bx in S.thread_binding(8, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        A[0] = A[1]


A = kernel.params[0]


def chain(length, uses, value):
    """A sum of `uses` times the name before, `length` times; the first name stands for `value`."""
    names = [tirx.Var(f"x{i}", "float32") for i in range(length)]
    body = names[-1]
    for name, before in reversed(list(zip(names[1:], names[:-1], strict=True))):
        body = tirx.Let(name, sum([before] * (uses - 1), before), body)
    return tirx.Let(names[0], value, body)


def program(value):
    """The kernel that stores a value."""
    body = mapped(kernel.body, (tirx.BufferStore, lambda _: tirx.BufferStore(A, value, [0])))
    on_cpu = kernel.with_attr("target", tvm.target.Target("llvm"))
    return ir.IRModule({"main": on_cpu.with_body(body)})


def stored(value):
    return SpillNestedLets(program(value))["main"].body


def test_what_is_computed_under_a_condition_stays_there():
    body = stored(tirx.if_then_else(A[0] > 0, chain(9, 4, A[1]), A[2]))
    assert not contains(body, tirx.Let)
    (branch,) = found(body, tirx.IfThenElse)
    assert len(found(branch.then_case, tirx.BufferStore)) == 10
    assert len(found(branch.else_case, tirx.BufferStore)) == 1
    assert len(found(body, tirx.BufferStore)) == 12


def test_names_are_stored_whose_values_have_many_outcomes_each():
    """None counts as one of which nothing is known only because its own value is too much."""
    names = [tirx.Var(f"x{i}", "int32") for i in range(5)]
    body = tirx.Cast("float32", names[-1])
    for name, before in reversed(list(zip(names[1:], names[:-1], strict=True))):
        body = tirx.Let(name, tirx.floordiv(7, before), body)
    body = stored(tirx.Let(names[0], tirx.Cast("int32", A[1]), body))
    assert not contains(body, tirx.Let)


def found(node, kind):
    nodes = []
    walk(node, (kind, nodes.append))
    return nodes


def test_a_choice_without_names_sees_those_around_it():
    name = tirx.Var("outer", "float32")
    choice = tirx.if_then_else(name > 0, name * 2, name * 3)
    body = stored(tirx.Let(name, chain(9, 4, A[1]), choice))
    assert not contains(body, tirx.Let)
    assert not contains(body, ir.Var, name.same_as)
    assert not found(body, tirx.IfThenElse)


TARGETS = {
    "llvm": {"target": "llvm"},
    "sm_90a": {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}


@pytest.mark.parametrize("target", TARGETS)
def test_names_that_are_used_twice_each_take_time_in_proportion(target):
    """In elementwise loops, of which GPUs make vectors, and of the threads; and a long sum."""

    many = [None] * 40

    @T.prim_func
    def main(
        A: T.Tensor((256,), "uint32"), C: T.Tensor((256,), "uint32"), D: T.Tensor((4,), "uint32")
    ):
        with T.Kernel(4, threads=32) as bx:
            for i in T.Parallel(256):
                value = A[i]
                for _ in many:
                    value = value * value + (value ^ A[i])
                C[i] = value
            number = T.cast(bx, "uint32")
            for _ in many:
                number = number * number + number + 1
            for i in [*range(256)]:
                number = number + A[i]
            D[bx] = number

    given = np.arange(256, dtype=np.uint32)
    value, number = given, np.arange(4, dtype=np.uint32)
    for _ in range(40):
        value = value * value + (value ^ given)
        number = number * number + number + 1
    start = processor_time()
    result, numbers = np.empty_like(given), np.empty_like(number)
    tvmtile.compile(main, **TARGETS[target])(given, result, numbers)
    assert processor_time() - start < 20
    assert np.array_equal(result, value)
    assert np.array_equal(numbers, number + given.sum(dtype=np.uint32))


@pytest.mark.parametrize("length", [4, 24])
def test_a_chain_of_conversions_takes_time_in_proportion(length):
    @T.prim_func
    def main(A: T.Tensor((64,), "bfloat16"), C: T.Tensor((64,), "bfloat16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                value = A[i]
                for _ in T.unroll(length):
                    value = value * value + A[i]
                C[i] = value

    given = (torch.arange(64) / 128).bfloat16()
    expected = given.clone()
    for _ in range(length):
        expected = expected * expected + given
    start = processor_time()
    result = torch.empty_like(given)
    tvmtile.compile(main, target="llvm")(given, result)
    assert processor_time() - start < 10
    assert torch.equal(result, expected)


def test_names_of_divisions_by_one_another_take_time_in_proportion():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(1, threads=64):
            i = T.get_thread_binding()
            a = A[i]
            b = n // a - a % n
            c = n // b - b % n
            d = n // c - c % n
            e = n // d - d % n
            f = n // e - e % n
            A[i] = n // f - f % n

    given = torch.arange(64, dtype=torch.int32)
    expected = given.tolist()
    for _ in range(6):
        expected = [100 // (x or 1) - x % 100 for x in expected]
    start = processor_time()
    tvmtile.compile(main, target="llvm")(given, 100)
    assert processor_time() - start < 10
    assert given.tolist() == expected


@pytest.mark.parametrize("combine", [operator.add, operator.mul])
def test_large_expressions_of_integers_are_not_one_to_llvm(combine):
    count = 350  # three parts of 100 have names

    @T.prim_func
    def main(A: T.Tensor((count,), "int32"), C: T.Tensor((1,), "int32")):
        with T.Kernel(1):
            C[0] = functools.reduce(combine, [A[i] for i in range(count)])

    mod = ir.IRModule({"main": main.with_attr("global_symbol", "main")})
    for step in lowering_passes(parse("llvm")):
        mod = step(mod)
    parts = [each for each in nodes_in(mod["main"].body, tirx.Bind) if each.var.name == "part"]
    assert len(parts) == 3
    assert all(isinstance(each.value, tirx.BitwiseXor) for each in parts)
