"""bfloat16 and the floats of 8 and 4 bits as arithmetic on their bits and on float32.

A value of such a dtype is a sign, an exponent field e and a mantissa field of m bits. Decoding moves
the fields to their places in a float32 and adds the difference of the biases to the exponent; where e
is 0, the mantissa counts steps of 2^(1 - bias - m), which float32 multiplies exactly. Encoding rounds
to the nearest, ties to even: by adding half a step less the last kept bit, so that a carry raises the
exponent, and, where the result has e = 0, by adding a float whose last place is one such step.

What rounds to a value beyond the largest finite one becomes infinity, where the dtype has one (bfloat16
and float8_e5m2); elsewhere it becomes the largest finite one, infinity too (`T.cast` saturates, as
TileLang's and CUDA's conversions do). NaN stays NaN; float4_e2m1fn, which has none, has zero in its
place, of the other sign (as ml_dtypes).
Nothing depends on how the processor treats subnormal numbers.

`encode_rounded` shifts the significand to the last place of the narrow dtype, which for a subnormal
result lies higher. What is shifted out decides with the rounding whether the last place counts one
more; a carry raises the exponent, since the code of the next number is the next integer. `rn` is to
nearest, ties to even; `rz` to zero, `rp` up, `rm` down; `rs` stochastic: up with the probability of
what is shifted out, of `n` bits, when it and the upper `n` of 32 random bits make a carry. A result
beyond the largest number is that number if the conversion saturates; else it is infinity, NaN where the
dtype has none, or the largest number where the rounding leads towards zero.

GPUs call functions that are printed of the same expressions (`tvmtile.codegen.float_conversions`).

Checked against torch: all codes of every dtype decode bit by bit and encode again; float32 values near
every code and half-way between codes encode as torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import DataType, ir, tirx

_FLOAT32_MANTISSA = 23
_FLOAT32_BIAS = 127
_FLOAT32_INFINITY = 0x7F800000


@dataclass(frozen=True)
class NarrowFloat:
    """The fields of a dtype."""

    bits: int
    mantissa: int
    """Width of the dtype and of its mantissa field."""
    bias: int
    """The number that is subtracted from the exponent field."""
    largest: int
    """The code of the largest finite value, without the sign."""
    infinity: int | None
    nan: int
    """Their codes; a NaN is any code above infinity, or the one given where there is none."""
    has_nan: bool = True
    """Whether there is a NaN; otherwise `nan` is what it becomes, with the other sign."""

    @property
    def storage(self) -> str:
        """The integer dtype that holds a code, in its low bits."""
        return f"uint{max(8, self.bits)}"

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.bits - 1)

    @property
    def beyond(self) -> int:
        """The code of what lies beyond the largest finite value, without the sign."""
        return self.largest if self.infinity is None else self.infinity

    @property
    def is_signed_zero_nan(self) -> bool:
        """Tell whether the code of -0 is the only NaN, so that there is no -0."""
        return self.nan == self.sign


NARROW_FLOATS = {
    "bfloat16": NarrowFloat(16, 7, 127, largest=0x7F7F, infinity=0x7F80, nan=0x7FC0),
    "float8_e4m3fn": NarrowFloat(8, 3, 7, largest=0x7E, infinity=None, nan=0x7F),
    "float8_e4m3fnuz": NarrowFloat(8, 3, 8, largest=0x7F, infinity=None, nan=0x80),
    "float8_e5m2": NarrowFloat(8, 2, 15, largest=0x7B, infinity=0x7C, nan=0x7F),
    "float8_e5m2fnuz": NarrowFloat(8, 2, 16, largest=0x7F, infinity=None, nan=0x80),
    "float4_e2m1fn": NarrowFloat(4, 1, 1, largest=0x7, infinity=None, nan=0, has_nan=False),
    "float8_e8m0fnu": NarrowFloat(8, 0, 127, largest=0xFE, infinity=None, nan=0xFF),
}
"""The dtypes by name. float8_e8m0fnu has neither sign nor zero: its code e is 2^(e - 127)."""


FORMATS = {
    "float16": NarrowFloat(16, 10, 15, largest=0x7BFF, infinity=0x7C00, nan=0x7E00),
    **{name: kind for name, kind in NARROW_FLOATS.items() if kind.mantissa},
}
"""The dtypes that values are rounded to with a chosen rounding."""
ROUNDINGS = ("rn", "rz", "rp", "rm", "rs")
"""To nearest, to zero, up (to plus infinity), down (to minus infinity), stochastic."""


def decode(dtype: str, code: Any) -> ir.Expr:
    """The float32 value of a code, a scalar or a vector of the dtype's `storage`."""
    kind = NARROW_FLOATS[dtype]
    u32 = _Lanes(code)
    is_constant = isinstance(code, tirx.IntImm)
    wide = u32(int(code)) if is_constant else tirx.Cast(u32.dtype("uint32"), code)
    if dtype == "bfloat16":
        return u32.as_float(wide << u32(16))
    if not kind.mantissa:
        return u32.let(wide, lambda bits: u32.as_float(_decode_e8m0(u32, bits)))
    return u32.let(wide, lambda bits: u32.as_float(_decode_bits(kind, u32, bits)))


def _decode_e8m0(u32: _Lanes, code: ir.Expr) -> ir.Expr:
    bits = tirx.Select(code == u32(0), u32(1 << 22), code << u32(_FLOAT32_MANTISSA))
    return tirx.Select(code == u32(0xFF), u32(0x7FC00000), bits)


def _decode_bits(kind: NarrowFloat, u32: _Lanes, code: ir.Expr) -> ir.Expr:
    """The bits of the float32 value, from those of the narrow one in a uint32."""
    shift = _FLOAT32_MANTISSA - kind.mantissa
    step = 2.0 ** (1 - kind.bias - kind.mantissa)

    def from_magnitude(magnitude: ir.Expr) -> ir.Expr:
        normal = (magnitude << u32(shift)) + u32(_exponents(kind) << _FLOAT32_MANTISSA)
        counted = tirx.Cast(u32.dtype("float32"), tirx.Cast(u32.dtype("int32"), magnitude))
        subnormal = u32.as_bits(counted * u32.float(step))
        bits = tirx.Select(magnitude < u32(1 << kind.mantissa), subnormal, normal)
        if kind.infinity is not None:
            special = (magnitude << u32(shift)) | u32(_FLOAT32_INFINITY)
            bits = tirx.Select(magnitude >= u32(kind.infinity), special, bits)
        elif kind.has_nan and not kind.is_signed_zero_nan:
            bits = tirx.Select(magnitude == u32(kind.nan), u32(0x7FC00000), bits)
        signed = bits | ((code & u32(kind.sign)) << u32(32 - kind.bits))
        if kind.is_signed_zero_nan:
            signed = tirx.Select(code == u32(kind.nan), u32(0x7FC00000), signed)
        return signed

    return u32.let(code & u32(kind.sign - 1), from_magnitude, "magnitude")


def encode(dtype: str, value: ir.Expr) -> ir.Expr:
    """The code of the value of a dtype that is nearest to a float32, a scalar or a vector."""
    return encode_bits(dtype, _Lanes(value).as_bits(value))


def encode_bits(dtype: str, float32: ir.Expr) -> ir.Expr:
    """The same of the bits of a float32, a uint32."""
    kind, u32 = NARROW_FLOATS[dtype], _Lanes(float32)
    if not kind.mantissa:
        encoded = u32.let(float32, lambda bits: _encode_e8m0(u32, bits))
    else:
        encoded = u32.let(float32, lambda bits: _encode_bits(kind, u32, bits))
    return tirx.Cast(u32.dtype(kind.storage), encoded)


def _encode_e8m0(u32: _Lanes, bits: ir.Expr) -> ir.Expr:
    """Round to a power of two; half-way goes up, but from a subnormal float32 to 0, which is even."""

    def from_magnitude(magnitude: ir.Expr) -> ir.Expr:
        subnormal = magnitude < u32(1 << _FLOAT32_MANTISSA)
        half = tirx.Select(subnormal, u32((1 << 22) - 1), u32(1 << 22))
        rounded = (magnitude + half) >> u32(_FLOAT32_MANTISSA)
        return tirx.Select(magnitude >= u32(_FLOAT32_INFINITY), u32(0xFF), rounded)

    return u32.let(bits & u32(0x7FFFFFFF), from_magnitude, "magnitude")


def _encode_bits(kind: NarrowFloat, u32: _Lanes, bits: ir.Expr) -> ir.Expr:
    """The bits of the narrow value in a uint32, from those of the float32."""
    shift = _FLOAT32_MANTISSA - kind.mantissa

    def from_magnitude(magnitude: ir.Expr) -> ir.Expr:
        odd = (magnitude >> u32(shift)) & u32(1)
        rounded = (magnitude + u32((1 << (shift - 1)) - 1) + odd) >> u32(shift)
        code = rounded - u32(_exponents(kind) << kind.mantissa)
        if kind.bias != _FLOAT32_BIAS:
            smallest = (_exponents(kind) + 1) << _FLOAT32_MANTISSA
            rounder = 2.0 ** (_FLOAT32_MANTISSA + 1 - kind.bias - kind.mantissa)
            shifted = u32.as_bits(u32.as_float(magnitude) + u32.float(rounder))
            subnormal = shifted - u32.as_bits(u32.float(rounder))
            code = tirx.Select(magnitude < u32(smallest), subnormal, code)
            code = tirx.Select(magnitude >= u32(_overflow(kind)), u32(kind.beyond), code)
        sign = (bits >> u32(32 - kind.bits)) & u32(kind.sign)
        if kind.is_signed_zero_nan:
            sign = tirx.Select(code == u32(0), u32(0), sign)
        sign_of_nan = sign if kind.has_nan else sign ^ u32(kind.sign)
        nan = u32(kind.nan) if kind.is_signed_zero_nan else u32(kind.nan) | sign_of_nan
        is_nan = magnitude > u32(_FLOAT32_INFINITY)
        return tirx.Select(is_nan, nan, code | sign)

    return u32.let(bits & u32(0x7FFFFFFF), from_magnitude, "magnitude")


def _exponents(kind: NarrowFloat) -> int:
    return _FLOAT32_BIAS - kind.bias


def _overflow(kind: NarrowFloat) -> int:
    """The bits of the float32 of the code `beyond`: what is not below it has that code.

    What lies below infinity and rounds to it has its code, too, since its exponent is the next one.
    """
    shift = _FLOAT32_MANTISSA - kind.mantissa
    return (kind.beyond << shift) + (_exponents(kind) << _FLOAT32_MANTISSA)


def encode_rounded(
    dtype: str, value: ir.Expr, rounding: str, saturate: bool, random: ir.Expr | None = None
) -> ir.Expr:
    """The code, an unsigned integer of the width of the dtype, of a rounded float32.

    The value is a scalar. With `saturate` numbers beyond the largest become the largest; `random` is a
    uint32, for `rs`.
    """
    kind, u32, bound = FORMATS[dtype], _Lanes(value), list[tuple[ir.Var, ir.Expr]]()

    def let(name: str, value: ir.Expr) -> Any:
        bound.append((tirx.Var(name, "uint32"), value))
        return bound[-1][0]

    chance = random if random is None or isinstance(random, ir.Var) else let("chance", random)
    bits = let("bits", u32.as_bits(value))
    magnitude = let("magnitude", bits & u32(0x7FFFFFFF))
    exponent = let("exponent", magnitude >> u32(_FLOAT32_MANTISSA))
    hidden = tirx.Select(exponent != u32(0), u32(1 << _FLOAT32_MANTISSA), u32(0))
    significand = (magnitude & u32((1 << _FLOAT32_MANTISSA) - 1)) | hidden
    field, least = (
        let("field", tirx.Select(exponent != u32(0), exponent, u32(1))),
        u32(_exponents(kind) + 1),
    )
    subnormal = tirx.Select(field < least, least - field, u32(0))
    wide = let("wide", subnormal + u32(_FLOAT32_MANTISSA - kind.mantissa))
    if rounding == "rs":  # less than 2^-31 of a place looks at the bits that are left of it
        excess = tirx.Select(wide > u32(31), wide - u32(31), u32(0))
        significand = significand >> tirx.min(excess, u32(31))
    significand, shift = let("significand", significand), let("shift", tirx.min(wide, u32(31)))
    kept, rest = significand >> shift, significand & ((u32(1) << shift) - u32(1))
    negative = (bits >> u32(31)) != u32(0)
    up = _up(u32, rounding, kept=kept, rest=rest, shift=shift, negative=negative, chance=chance)
    above = tirx.Select(field < least, u32(0), field - least)
    code = let("code", (above << u32(kind.mantissa)) + kept + up)
    beyond = kind.nan if kind.infinity is None else kind.infinity
    positive, otherwise = (
        kind.largest if saturate or inward else beyond for inward in _INWARD.get(rounding, (0, 0))
    )
    largest = tirx.Select(negative, u32(otherwise), u32(positive))
    unsigned: ir.Expr = tirx.Select(code > u32(kind.largest), largest, code)
    of_infinity = u32(kind.largest if saturate else beyond)
    unsigned = tirx.Select(magnitude == u32(_FLOAT32_INFINITY), of_infinity, unsigned)
    is_nan = magnitude > u32(_FLOAT32_INFINITY)
    unsigned = let("unsigned_code", tirx.Select(is_nan, u32(kind.nan), unsigned))
    result = unsigned | _sign(kind, u32, bits, unsigned, is_nan)
    for each in reversed(bound):
        result = tirx.Let(*each, result)
    return tirx.Cast(kind.storage, result)


_INWARD = {"rz": (True, True), "rp": (False, True), "rm": (True, False)}
"""Whether a positive number beyond the largest, and a negative one, is rounded to the largest."""


def _up(
    u32: _Lanes, rounding: str, *, kept: Any, rest: Any, shift: Any, negative: Any, chance: Any
) -> ir.Expr:
    """1 where the last place counts one more, else 0."""
    if rounding == "rz":
        return u32(0)
    if rounding == "rn":
        return (rest + ((u32(1) << (shift - u32(1))) - u32(1)) + (kept & u32(1))) >> shift
    if rounding == "rs":
        return (rest + (chance >> (u32(32) - shift))) >> shift
    outward = negative if rounding == "rm" else tirx.Not(negative)
    return tirx.Select(tirx.And(outward, rest != u32(0)), u32(1), u32(0))


def _sign(
    kind: NarrowFloat, u32: _Lanes, bits: ir.Expr, unsigned: ir.Expr, is_nan: ir.Expr
) -> ir.Expr:
    sign = (bits >> u32(32 - kind.bits)) & u32(kind.sign)
    if not kind.has_nan:
        return sign ^ tirx.Select(is_nan, u32(kind.sign), u32(0))
    if not kind.is_signed_zero_nan:
        return sign
    return tirx.Select(tirx.Or(unsigned == u32(0), unsigned == u32(kind.nan)), u32(0), sign)


class _Lanes:
    """Makes uint32 constants and conversions with the lanes of an expression."""

    def __init__(self, like: ir.Expr) -> None:
        self._lanes = int(DataType(str(like.ty.dtype)).lanes)

    def dtype(self, scalar: str) -> str:
        return scalar if self._lanes == 1 else f"{scalar}x{self._lanes}"

    def _constant(self, value: float, dtype: str) -> ir.Expr:
        constant = tirx.const(value, dtype)
        return constant if self._lanes == 1 else tirx.Broadcast(constant, self._lanes)

    def __call__(self, value: int) -> ir.Expr:
        return self._constant(value, "uint32")

    def float(self, value: float) -> ir.Expr:
        return self._constant(value, "float32")

    def as_float(self, bits: ir.Expr) -> ir.Expr:
        return tirx.reinterpret(self.dtype("float32"), bits)

    def as_bits(self, value: ir.Expr) -> ir.Expr:
        return tirx.reinterpret(self.dtype("uint32"), value)

    def let(self, value: ir.Expr, body: Callable[[Any], Any], name: str = "bits") -> ir.Expr:
        """`body(value)` with the value computed once.

        TVM's analyzer, which meets a Let twice, does not expect that it then knows a constant better.
        """
        if isinstance(value, tirx.IntImm):
            return body(value)
        var = tirx.Var(name, self.dtype("uint32"))
        return tirx.Let(var, value, body(var))
