"""Indices are compared as the machine computes them."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

from tests.passes.gpu.barriers.oracle import Oracle, RaceFound, barriers_in, with_pass
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate

TX = tirx.Var("tx", "int32")
THREADS = np.arange(512)
N = tirx.Var("n", "int32")


def cast(dtype, expression):
    return tirx.Cast(dtype, expression)


def number(dtype, value):
    return tirx.const(value, dtype)


def evaluated(expression):
    return evaluate(expression, {TX: THREADS}, N.same_as, 0)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (cast("int32", cast("uint8", TX * 4)), (THREADS * 4).astype("uint8")),
        (cast("int32", cast("int8", TX)), THREADS.astype("int8")),
        (cast("int32", cast("int16", TX * 100)), (THREADS * 100).astype("int16")),
        (cast("uint32", 5 - TX), (5 - THREADS).astype("uint32")),
        (cast("int32", cast("uint32", 5 - TX)), 5 - THREADS),
        (cast("uint16", cast("int64", TX) - 7), (THREADS - 7).astype("uint16")),
        (cast("uint32", TX) * number("uint32", 2654435761), THREADS * 2654435761 % 2**32),
        (cast("uint32", TX) - number("uint32", 9), (THREADS - 9) % 2**32),
        (
            (cast("uint32", TX) * number("uint32", 2654435761)) >> number("uint32", 26),
            THREADS * 2654435761 % 2**32 >> 26,
        ),
        (TX << 28, (THREADS << 28).astype("int32")),
        (cast("int64", TX - 5) << number("int64", 40), (THREADS - 5) << 40),
        (cast("uint64", TX) << number("uint64", 50), THREADS << 50),
        ((5 - TX) >> 2, (5 - THREADS) >> 2),
        (tirx.floordiv(5 - TX, 4), (5 - THREADS) // 4),
        (tirx.floormod(5 - TX, 4), (5 - THREADS) % 4),
        (cast("int32", TX < 7) + cast("int32", TX < 9), (THREADS < 7) * 1 + (THREADS < 9)),
        (cast("int32", cast("bool", TX)) - 1, (THREADS > 0) * 1 - 1),
        (cast("uint8", TX) + number("uint8", 0), THREADS.astype("uint8")),
    ],
)
def test_numbers_are_those_of_the_machine(expression, expected):
    value = evaluated(expression)
    assert value.term is None
    np.testing.assert_array_equal(value.numbers, expected.astype("int64"))


@pytest.mark.parametrize(
    "expression",
    [
        cast("uint8", TX) * number("uint8", 4),  # C++ promotes to int, LLVM does not
        cast("int16", TX) << number("int16", 12),
        cast("uint64", TX - 4),
        cast("uint64", TX) * cast("uint64", TX),
        cast("uint8", N),
        cast("uint32", N) + number("uint32", 1),
        cast("int32", cast("float16", TX)),
        tirx.floordiv(TX, TX - 5),
        TX << (TX - 5),
        cast("int64", TX) << number("int64", 60),  # bits are lost
        cast("uint64", TX) << number("uint64", 55),  # numpy has signs there
        tirx.truncdiv(TX - 5, 4),
    ],
)
def test_what_targets_compute_differently_is_unknown(expression):
    with pytest.raises(NotSeparable):
        evaluated(expression)


@pytest.mark.parametrize(
    "expression",
    [cast("int32", cast("int8", TX)), cast("uint8", TX * 4), TX << TX, cast("int64", TX) << 40],
)
def test_no_points_have_no_numbers(expression):
    """As where conditions leave out all threads that an access could be of."""
    value = evaluate(expression, {TX: THREADS[:0]}, N.same_as, 0)
    assert value.term is None
    assert np.size(value.numbers) == 0


def test_a_wider_dtype_keeps_a_uniform_term():
    value = evaluated(cast("int64", TX + N * 8))
    np.testing.assert_array_equal(value.numbers, THREADS)
    assert value.term is not None


def exchange(first, second):
    @T.prim_func
    def main(C: T.Buffer((128,), "float32"), n: T.int32):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, "threadIdx.x"):
                S = T.alloc_buffer((1024,), "float32", scope="shared")
                S[first(tx)] = C[tx]
                C[tx] = S[second(tx)]

    return main


def narrow(tx):
    return T.Cast("int32", T.Cast("uint8", tx * 4))


def product_of_bytes(tx):
    return T.Cast("int32", T.Cast("uint8", tx) * T.uint8(4))


def shifted_out(tx):
    return T.Cast("int32", T.Cast("uint32", tx << 26) >> T.uint32(24))


@pytest.mark.parametrize("second", [narrow, product_of_bytes, shifted_out])
def test_an_index_that_wraps_is_another_element(second):
    func = with_pass(exchange(lambda tx: tx * 4, second))
    assert len(barriers_in(func)) == 1
    if second is not product_of_bytes:
        with pytest.raises(RaceFound):
            Oracle(exchange(lambda tx: tx * 4, second)).run()


def test_an_index_that_fits_a_narrow_dtype_is_the_same_element():
    func = exchange(lambda tx: tx * 2, lambda tx: T.Cast("int32", T.Cast("uint8", tx * 2)))
    assert not barriers_in(with_pass(func))


def test_a_uniform_index_that_wraps_may_be_any():
    """TVM's bounds of `uint8(n)`, where n is from 300 to 399, are those of nothing."""

    @T.prim_func
    def main(C: T.Buffer((128,), "float32")):
        for bx in T.thread_binding(100, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, "threadIdx.x"):
                S = T.alloc_buffer((1024,), "float32", scope="shared")
                S[tx] = C[tx]
                C[tx] = S[T.Cast("int32", T.Cast("uint8", bx + 300))]

    assert len(barriers_in(with_pass(main))) == 1
