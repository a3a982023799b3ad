"""Expressions that are sums of scaled elements."""

import pytest
from tvm import tirx

from tvmtile.analysis.linearity import is_linear

X = tirx.decl_buffer((4,), "float32", name="x")
Y = tirx.decl_buffer((4,), "float32", name="y")
I, J = (tirx.Var(name, "int32") for name in "ij")
x, other, y = (tirx.BufferLoad(*at) for at in ((X, [I]), (X, [J]), (Y, [I])))
TWO, ZERO = tirx.FloatImm("float32", 2.0), tirx.FloatImm("float32", 0.0)


def of_x(load):
    if not load.source.same_as(X):
        return False
    return load.indices[0].same_as(I) or None


@pytest.mark.parametrize(
    "value",
    [
        x,
        ZERO,
        x + x,
        x * y,
        y * x,
        x * TWO - x * y,
        tirx.Div(x, y),
        tirx.Mul(x, tirx.exp2(y)),
        ZERO - x,
    ],
    ids=str,
)
def test_sums_of_scaled_elements(value):
    assert is_linear(value, of_x)


@pytest.mark.parametrize(
    "value",
    [
        y,
        TWO,
        x + y,
        x - TWO,
        x * x,
        tirx.Div(y, x),
        tirx.max(x, ZERO),
        tirx.exp2(x),
        tirx.Select(x > ZERO, x, ZERO),
        tirx.Mul(x, tirx.exp2(x)),
        tirx.Cast("float32", tirx.Cast("float16", x)),
        other,
        x + other,
        tirx.Mul(x, tirx.exp2(other)),
    ],
    ids=str,
)
def test_anything_else(value):
    assert not is_linear(value, of_x)


def test_integers_are_not_divided():
    count = tirx.BufferLoad(tirx.decl_buffer((4,), "int32", name="n"), [I])
    assert is_linear(count * 3, lambda _: True)
    assert not is_linear(tirx.Div(count, tirx.const(2, "int32")), lambda _: True)
    assert not is_linear(tirx.FloorDiv(count, tirx.const(2, "int32")), lambda _: True)
