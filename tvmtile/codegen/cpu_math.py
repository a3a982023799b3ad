"""Elementary functions of float32 as arithmetic that LLVM vectorises.

TVM leaves `exp` to the C library, one call an element. Here it is

    exp(x) = 2^n exp(r),  n = round(x / ln 2),  r = x - n ln 2,  |r| <= ln(2) / 2

with r in two steps (Cody and Waite: ln 2 is split so that n times its first part is exact) and
exp(r) = 1 + r + r^2 P(r). The coefficients of P are a near-minimax fit of the relative error, by
Lawson's reweighted least squares; with coefficients rounded to float32 it is 3.6e-9, a sixteenth of
a rounding.

- n comes from adding 1.5 * 2^23, which leaves it, rounded to nearest, in the low bits of the sum.
- x is limited to [-104, 89]: below the result is 0 and above it is inf. The limits compare in an order
  that keeps a NaN, since TIR's max and min give their second operand if one is NaN.
- 2^n is applied in two normal factors: the first product is exact and the second rounds once, so that
  subnormal results are right and overflow gives inf.

The error is below 1 ulp, over all float32 values; 0, inf, -inf and NaN are exact.

TVM computes `tanh` as a quotient of differences of exponentials, in which nothing is left of a small
argument, and writes the argument five times. Here it is, for z = |x|,

    tanh(x) = x (1 + x^2 Q(x^2))  where z < 5/8,  else  1 - 2 / (exp(2 z) + 1)  with the sign of x.

The coefficients of Q are fitted likewise: the relative error is 8.6e-9 before roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx

_P = (
    0.4999999403953552,
    0.1666652113199234,
    0.04166838899254799,
    0.00836874544620514,
    0.0013814539415761828,
)
TANH = (
    -0.3333328068256378,
    0.13331441581249237,
    -0.05373971536755562,
    0.02063908614218235,
    -0.005704986397176981,
)
"""The coefficients of Q, its constant first."""
SMALL_TANH = 0.625
"""Below it Q is used."""
_LN2 = 0.6931471805599453
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723212e-6
_ROUNDER = 12582912.0  # 1.5 * 2^23
_ROUNDER_BITS = 0x4B400000


def _f(value: float) -> ir.Expr:
    return tirx.const(value, "float32")


def _i(value: int) -> ir.Expr:
    return tirx.const(value, "int32")


def exp_float32(x: ir.Expr) -> ir.Expr:
    """The exponential of a float32 expression."""

    def remainder(limited: ir.Expr, n: ir.Expr) -> ir.Expr:
        return (limited - n * _f(_LN2_HIGH)) - n * _f(_LN2_LOW)

    return _power(x, 1 / _LN2, remainder, (-104.0, 89.0))


def exp2_float32(x: ir.Expr) -> ir.Expr:
    """2 to the power of a float32 expression; exact at integers."""

    def remainder(limited: ir.Expr, n: ir.Expr) -> ir.Expr:
        return (limited - n) * _f(_LN2)

    return _power(x, 1.0, remainder, (-151.0, 129.0))


def tanh_float32(x: ir.Expr) -> ir.Expr:
    """The hyperbolic tangent of a float32 expression."""
    argument, square, large = (tirx.Var(name, "float32") for name in ("a", "s", "l"))
    magnitude = tirx.abs(argument)
    small = argument * (_f(1.0) + square * _polynomial(TANH, square))
    signed = tirx.Select(argument < _f(0.0), _f(0.0) - large, large)
    body: ir.Expr = tirx.Select(magnitude < _f(SMALL_TANH), small, signed)
    body = tirx.Let(square, argument * argument, body)
    power = exp_float32(magnitude * _f(2.0))
    body = tirx.Let(large, _f(1.0) - _f(2.0) / (power + _f(1.0)), body)
    return tirx.Let(argument, x, body)


def _polynomial(coefficients: tuple[float, ...], x: ir.Expr) -> ir.Expr:
    """The value of a polynomial, its constant first."""
    value = _f(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + _f(coefficient)
    return value


def _power(
    x: ir.Expr, scale: float, remainder: Callable[[Any, Any], Any], limits: tuple[float, float]
) -> ir.Expr:
    """`2^n * exp(remainder(x, n))` with `n = round(x * scale)`."""
    limited, shifted, n, r = (tirx.Var(name, "float32") for name in ("x", "t", "n", "r"))
    exponent, half = tirx.Var("i", "int32"), tirx.Var("h", "int32")
    polynomial = _polynomial(_P, r)
    body = (polynomial * (r * r) + r) + _f(1.0)
    body = (body * _power_of_two(half)) * _power_of_two(exponent - half)
    body = tirx.Let(half, exponent >> _i(1), body)
    body = tirx.Let(r, remainder(limited, n), body)
    # Not shifted - _ROUNDER: TVM's simplifier takes floats for real numbers and would find r = 0.
    body = tirx.Let(n, tirx.Cast("float32", exponent), body)
    body = tirx.Let(exponent, tirx.reinterpret("int32", shifted) - _i(_ROUNDER_BITS), body)
    scaled = limited if scale == 1.0 else limited * _f(scale)
    body = tirx.Let(shifted, scaled + _f(_ROUNDER), body)
    low, high = limits
    return tirx.Let(limited, tirx.Min(_f(high), tirx.Max(_f(low), x)), body)


def _power_of_two(exponent: ir.Expr) -> ir.Expr:
    return tirx.reinterpret("float32", (exponent + _i(127)) << _i(23))
