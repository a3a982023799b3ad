"""Conversion of float32 to narrower floats with a chosen rounding, as arithmetic on bits.

The significand is shifted to the last place of the narrow dtype, which for a subnormal result lies
higher. What is shifted out decides with the rounding whether the last place counts one more; a carry
raises the exponent, since the code of the next number is the next integer.

`rn` is to nearest, ties to even; `rz` to zero, `rp` up, `rm` down; `rs` stochastic: up with the
probability of what is shifted out, of `n` bits, when it and the upper `n` of 32 random bits make a
carry. A result beyond the largest number is that number if the conversion saturates; else it is
infinity, NaN where the dtype has none, or the largest number where the rounding leads towards zero.
float4_e2m1fn has neither, so that its conversions saturate; NaN becomes zero of the other sign, as it
does without a rounding.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tvm import ir, tirx

from tvmtile.codegen.narrow_floats import NARROW_FLOATS, NarrowFloat

ROUNDINGS = ("rn", "rz", "rp", "rm", "rs")
"""To nearest, to zero, up (to plus infinity), down (to minus infinity), stochastic."""
FORMATS = {
    "float16": NarrowFloat(16, 10, 15, largest=0x7BFF, infinity=0x7C00, nan=0x7E00),
    **{name: kind for name, kind in NARROW_FLOATS.items() if kind.mantissa},
}
"""The dtypes that values are rounded to."""

_NAME = re.compile(rf"tvmtile_round_({'|'.join(FORMATS)})_({'|'.join(ROUNDINGS)})_(sat|inf)")
_BIAS = 127
_MANTISSA = 23
_INFINITY = 0x7F800000


def name_of(dtype: str, rounding: str, saturate: bool) -> str:
    """The name of the function that converts on a GPU."""
    return f"tvmtile_round_{dtype}_{rounding}_{'sat' if saturate else 'inf'}"


def _overflow(kind: NarrowFloat, rounding: str, saturate: bool) -> tuple[int, int]:
    """What a number beyond the largest becomes: a positive one, and a negative one without its sign."""
    beyond = kind.nan if kind.infinity is None else kind.infinity
    inward = {"rz": (True, True), "rp": (False, True), "rm": (True, False)}
    to_largest = (True, True) if saturate else inward.get(rounding, (False, False))
    positive, negative = (kind.largest if inside else beyond for inside in to_largest)
    return positive, negative


def _up(
    rounding: str, *, kept: ir.Expr, rest: ir.Expr, shift: ir.Expr, negative: Any, random: ir.Expr
) -> ir.Expr:
    """1 where the last place counts one more, else 0."""
    one, zero = _u32(1), _u32(0)
    if rounding == "rz":
        return zero
    if rounding == "rn":
        return (rest + ((one << (shift - one)) - one) + (kept & one)) >> shift
    if rounding == "rs":
        return (rest + (random >> (_u32(32) - shift))) >> shift
    outward = negative if rounding == "rm" else tirx.Not(negative)
    return tirx.Select(tirx.And(outward, rest != zero), one, zero)


def encode(
    dtype: str, value: ir.Expr, rounding: str, saturate: bool, random: Any = None
) -> ir.Expr:
    """The code, an unsigned integer of the width of the dtype, of a rounded float32.

    The value is a scalar. With `saturate` numbers beyond the largest become the largest; `random` is a
    uint32, for `rs`.
    """
    kind = FORMATS[dtype]
    bits, random_bits = tirx.Var("bits", "uint32"), tirx.Var("random", "uint32")
    body = _encode(kind, bits, rounding, saturate, random_bits)
    body = tirx.Let(bits, tirx.reinterpret("uint32", value), body)
    if random is not None:
        body = tirx.Let(random_bits, random, body)
    return tirx.Cast(kind.storage, body)


def _u32(value: int) -> ir.Expr:
    return tirx.const(value, "uint32")


def _encode(
    kind: NarrowFloat, bits: ir.Expr, rounding: str, saturate: bool, random: ir.Expr
) -> ir.Expr:
    magnitude, field, significand, shift, code = (
        tirx.Var(name, "uint32") for name in ("magnitude", "field", "significand", "shift", "code")
    )
    least = _BIAS - kind.bias + 1  # the exponent field of the smallest normal number
    negative = (bits >> _u32(31)) != _u32(0)
    kept, rest = significand >> shift, significand & ((_u32(1) << shift) - _u32(1))
    up = _up(rounding, kept=kept, rest=rest, shift=shift, negative=negative, random=random)
    exponent = tirx.Select(field < _u32(least), _u32(0), field - _u32(least))
    finite = (exponent << _u32(kind.mantissa)) + kept + up
    positive, otherwise = _overflow(kind, rounding, saturate)
    beyond = tirx.Select(negative, _u32(otherwise), _u32(positive))
    infinity = kind.nan if kind.infinity is None else kind.infinity
    unsigned = tirx.Select(code > _u32(kind.largest), beyond, code)
    of_infinity = _u32(kind.largest if saturate else infinity)
    unsigned = tirx.Select(magnitude == _u32(_INFINITY), of_infinity, unsigned)
    unsigned = tirx.Select(magnitude > _u32(_INFINITY), _u32(kind.nan), unsigned)
    result = _signed(kind, unsigned, bits, magnitude)
    subnormal = tirx.Select(field < _u32(least), _u32(least) - field, _u32(0))
    wide = subnormal + _u32(_MANTISSA - kind.mantissa)
    result = tirx.Let(code, finite, result)
    result = tirx.Let(shift, tirx.min(wide, _u32(31)), result)
    hidden = tirx.Select((magnitude >> _u32(23)) != _u32(0), _u32(0x800000), _u32(0))
    # A stochastic rounding of less than 2^-31 of a place looks at the bits that are left of it.
    whole = (magnitude & _u32(0x7FFFFF)) | hidden
    if rounding == "rs":
        whole = whole >> tirx.min(tirx.Select(wide > _u32(31), wide - _u32(31), _u32(0)), _u32(31))
    result = tirx.Let(significand, whole, result)
    result = tirx.Let(field, tirx.max(magnitude >> _u32(23), _u32(1)), result)
    return tirx.Let(magnitude, bits & _u32(0x7FFFFFFF), result)


def _signed(kind: NarrowFloat, unsigned: ir.Expr, bits: ir.Expr, magnitude: ir.Expr) -> ir.Expr:
    sign = (bits >> _u32(32 - kind.bits)) & _u32(kind.sign)
    if not kind.has_nan:
        sign = sign ^ tirx.Select(magnitude > _u32(_INFINITY), _u32(kind.sign), _u32(0))
    if not kind.is_signed_zero_nan:
        return unsigned | sign
    plain = tirx.Or(unsigned == _u32(0), unsigned == _u32(kind.nan))
    return tirx.Select(plain, unsigned, unsigned | sign)


_UPS = {
    "rn": "(rest + ((1u << (shift - 1u)) - 1u) + (kept & 1u)) >> shift",
    "rz": "0u",
    "rp": "!negative && rest != 0u ? 1u : 0u",
    "rm": "negative && rest != 0u ? 1u : 0u",
    "rs": "(rest + (random >> (32u - shift))) >> shift",
}
_FUNCTION = """\
inline {storage} {name}(float value{parameter}) {{
  uint bits = as_type<uint>(value);
  uint magnitude = bits & 0x7fffffffu;
  bool negative = (bits >> 31) != 0u;
  uint field = magnitude >> 23;
  uint significand = (magnitude & 0x7fffffu) | (field != 0u ? 0x800000u : 0u);
  field = field != 0u ? field : 1u;
  uint shift = {shift}u + (field < {least}u ? {least}u - field : 0u);
{narrowing}  shift = shift > 31u ? 31u : shift;
  uint kept = significand >> shift;
  uint rest = significand & ((1u << shift) - 1u);
  uint up = {up};
  uint code = ((field < {least}u ? 0u : field - {least}u) << {mantissa}) + kept + up;
  if (code > {largest:#x}u) code = negative ? {negative:#x}u : {positive:#x}u;
  if (magnitude == 0x7f800000u) code = {infinity:#x}u;
  if (magnitude > 0x7f800000u) code = {nan:#x}u;
  uint sign = (bits >> {to_sign}) & {sign:#x}u;
{of_nan}  return ({storage})(code | sign);
}}
"""
_NARROWING = (
    "  uint excess = shift > 31u ? shift - 31u : 0u;\n"
    "  significand >>= excess > 31u ? 31u : excess;\n"
)


@cache
def definition(name: str) -> str | None:
    """The text of the function of a name, in the words of Metal; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    dtype, rounding, beyond = match.groups()
    kind, saturate = FORMATS[dtype], beyond == "sat"
    positive, negative = _overflow(kind, rounding, saturate)
    infinity = kind.nan if kind.infinity is None else kind.infinity
    return _FUNCTION.format(
        name=name,
        storage={"uint8": "uchar", "uint16": "ushort"}[kind.storage],
        parameter=", uint random" if rounding == "rs" else "",
        shift=_MANTISSA - kind.mantissa,
        least=_BIAS - kind.bias + 1,
        narrowing=_NARROWING if rounding == "rs" else "",
        up=_UPS[rounding],
        mantissa=kind.mantissa,
        largest=kind.largest,
        positive=positive,
        negative=negative,
        infinity=kind.largest if saturate else infinity,
        nan=kind.nan,
        to_sign=32 - kind.bits,
        sign=kind.sign,
        of_nan=_sign_of_nan(kind),
    )


def _sign_of_nan(kind: NarrowFloat) -> str:
    if not kind.has_nan:
        return f"  if (magnitude > 0x7f800000u) sign ^= {kind.sign:#x}u;\n"
    if kind.is_signed_zero_nan:
        return f"  if (code == 0u || code == {kind.nan:#x}u) sign = 0u;\n"
    return ""
