"""Arithmetic with a chosen rounding: an operation is a row of `OPERATIONS`, a backend a column.

On a CPU a directed rounding is a mode of the processor: a function in LLVM's language sets it,
computes, and sets it back to nearest. It is neither inlined nor computed at compile time, since LLVM
takes the mode for constant in code that is not marked `strictfp`. To nearest, it is the plain
instruction, in a function so that TVM's simplifier, for which floats are real numbers, leaves it alone.

CUDA has a function for each operation and rounding.

Metal rounds to nearest only. Its functions, of float32, compute with integers: the exact result, or its
first bits and whether any follow, and then one rounding. Nothing depends on what a compiler may do with
floats, or on whether the GPU keeps subnormal numbers.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Operation(NamedTuple):
    """The backends' names of an operation."""

    operands: int
    llvm: str
    """Empty where it is made of others."""
    cuda: dict[str, str]
    """Of the dtypes that it takes, the name between "__" and the rounding."""


_TYPES = {"float32": ("float", "f32"), "float64": ("double", "f64")}
OPERATIONS = {
    name: Operation(operands, llvm, dict(zip(_TYPES, cuda, strict=False)))
    for name, operands, llvm, *cuda in (
        ("add", 2, "fadd", "fadd", "dadd"),
        ("sub", 2, "fsub", "fsub", "dsub"),
        ("mul", 2, "fmul", "fmul", "dmul"),
        ("div", 2, "fdiv", "fdiv", "ddiv"),
        ("fma", 3, "fma", "fmaf", "fma"),
        ("sqrt", 1, "sqrt", "fsqrt", "dsqrt"),
        ("rcp", 1, "", "frcp", "drcp"),
        ("rsqrt", 1, "", "frsqrt"),
    )
}
ROUNDINGS = {"rn": 1, "rz": 0, "ru": 2, "rd": 3}
"""To nearest, ties to even; to zero; up; down; with the numbers that C and LLVM have for them."""

# LLVM ---------------------------------------------------------------------------------------------

_CALL = "call {type} @llvm.{operation}.{suffix}({parameters})"
_FUNCTION = """\
declare void @llvm.set.rounding(i32)
declare {type} @llvm.experimental.constrained.{operation}.{suffix}({types}, metadata, metadata)

define {type} @{name}({parameters}) noinline strictfp {{
  call void @llvm.set.rounding(i32 {mode}) strictfp
  %result = call {type} @llvm.experimental.constrained.{operation}.{suffix}({parameters}, \
metadata !"round.dynamic", metadata !"fpexcept.ignore") strictfp
  call void @llvm.set.rounding(i32 1) strictfp
  ret {type} %result
}}
"""
_FUNCTION_TO_NEAREST = """\
declare {type} @llvm.fma.{suffix}({type}, {type}, {type})
declare {type} @llvm.sqrt.{suffix}({type})

define {type} @{name}({parameters}) {{
  %result = {instruction}
  ret {type} %result
}}
"""


@cache
def llvm_function(operation: str, dtype: str, rounding: str) -> tuple[str, str]:
    """The name and the text of an operation on float32 or float64 with a rounding, as a function."""
    name = f"tvmtile_{operation}_{dtype}_{rounding}"
    kind, suffix = _TYPES[dtype]
    count = OPERATIONS[operation].operands
    words = {
        "name": name,
        "type": kind,
        "suffix": suffix,
        "operation": OPERATIONS[operation].llvm,
        "types": ", ".join([kind] * count),
        "parameters": ", ".join(f"{kind} %x{i}" for i in range(count)),
    }
    if rounding == "rn":
        plain = "{operation} {type} %x0, %x1" if count == 2 else _CALL
        return name, _FUNCTION_TO_NEAREST.format(instruction=plain.format(**words), **words)
    return name, _FUNCTION.format(mode=ROUNDINGS[rounding], **words)


# Metal --------------------------------------------------------------------------------------------

_NAME = re.compile(r"tvmtile_ieee_(add|sub|mul|div|fma|sqrt|rsqrt)")


def metal_name(operation: str) -> str:
    """The name of the function of an operation; its last argument is the number of the rounding."""
    return f"tvmtile_ieee_{operation}"


def definition(name: str) -> str | None:
    """The text with the function of a name, which is one for all of them; None for other names."""
    return _TEXT if _NAME.fullmatch(name) else None


_TEXT = """\
// A float32 that is neither infinite nor NaN: significand * 2^exponent.
struct tvmtile_parts { bool negative; int exponent; ulong significand; };

inline tvmtile_parts tvmtile_parts_of(uint bits) {
  int field = (int)(bits >> 23) & 0xff;
  ulong fraction = bits & 0x7fffffu;
  bool negative = (bits >> 31) != 0;
  return {negative, max(field, 1) - 150, field == 0 ? fraction : fraction | 0x800000u};
}

inline int tvmtile_length(ulong x) {
  int length = 0;
  for (int step = 32; step > 0; step >>= 1)
    if (x >> step) { x >>= step; length += step; }
  return length + (x != 0);
}

// The significand with its highest bit at `length - 1`.
inline tvmtile_parts tvmtile_normal(tvmtile_parts x, int length) {
  int shift = length - tvmtile_length(x.significand);
  x.significand <<= shift;
  x.exponent -= shift;
  return x;
}

// Rounds (significand + rest) * 2^exponent, with 0 < rest < 1 if `more`; 0: to zero, 1: to nearest,
// 2: up, 3: down.
inline float tvmtile_rounded(tvmtile_parts x, bool more, int mode) {
  uint sign = x.negative ? 0x80000000u : 0u;
  int shift = max(tvmtile_length(x.significand) - 24, -149 - x.exponent);
  if (shift > 62) {
    int excess = shift - 62;
    more = more || excess > 63 || (x.significand & ((1ul << (excess & 63)) - 1)) != 0;
    x.significand = excess > 63 ? 0ul : x.significand >> excess;
    x.exponent += excess;
    shift = 62;
  }
  ulong kept = shift > 0 ? x.significand >> shift : x.significand << -shift;
  ulong rest = shift > 0 ? x.significand & ((1ul << shift) - 1) : 0ul;
  ulong half_unit = shift > 0 ? 1ul << (shift - 1) : 1ul;
  bool inexact = rest != 0 || more;
  bool up = mode == 1   ? rest > half_unit || (rest == half_unit && (more || (kept & 1)))
            : mode == 2 ? inexact && !x.negative
            : mode == 3 ? inexact && x.negative
                        : false;
  kept += up ? 1 : 0;
  int exponent = x.exponent + shift;
  if (kept >> 24) { kept >>= 1; ++exponent; }
  int field = (kept >> 23) ? exponent + 150 : 0;
  if (field >= 255) {
    bool to_infinity = mode == 1 || mode == (x.negative ? 3 : 2);
    return as_type<float>(sign | (to_infinity ? 0x7f800000u : 0x7f7fffffu));
  }
  return as_type<float>(sign | ((uint)field << 23) | ((uint)kept & 0x7fffffu));
}

inline bool tvmtile_not_number(uint bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }
inline bool tvmtile_infinite(uint bits) { return (bits & 0x7fffffffu) == 0x7f800000u; }
inline bool tvmtile_zero(uint bits) { return (bits & 0x7fffffffu) == 0; }

inline float tvmtile_fma_of(uint x, uint y, uint z, int mode) {
  const float nan = as_type<float>(0x7fc00000u);
  uint sign = (x ^ y) & 0x80000000u;
  if (tvmtile_not_number(x) || tvmtile_not_number(y) || tvmtile_not_number(z)) return nan;
  if (tvmtile_infinite(x) || tvmtile_infinite(y)) {
    if (tvmtile_zero(x) || tvmtile_zero(y)) return nan;
    if (tvmtile_infinite(z) && (z >> 31) != (sign >> 31)) return nan;
    return as_type<float>(sign | 0x7f800000u);
  }
  if (tvmtile_infinite(z)) return as_type<float>(z);
  tvmtile_parts a = tvmtile_parts_of(x), b = tvmtile_parts_of(y), c = tvmtile_parts_of(z);
  a = {sign != 0, a.exponent + b.exponent, a.significand * b.significand};
  if (a.significand == 0 && c.significand == 0) {
    uint zero = a.negative == c.negative ? sign : mode == 3 ? 0x80000000u : 0u;
    return as_type<float>(zero);
  }
  if (c.significand == 0) return tvmtile_rounded(a, false, mode);
  if (a.significand == 0) return as_type<float>(z);
  a = tvmtile_normal(a, 62);
  c = tvmtile_normal(c, 62);
  bool first = a.exponent != c.exponent ? a.exponent > c.exponent : a.significand >= c.significand;
  tvmtile_parts large = first ? a : c, small = first ? c : a;
  int distance = large.exponent - small.exponent;
  bool more = distance > 63 || (small.significand & ((1ul << (distance & 63)) - 1)) != 0;
  ulong aligned = distance > 63 ? 0ul : small.significand >> distance;
  if (large.negative == small.negative)
    large.significand += aligned;
  else
    large.significand -= aligned + (more ? 1 : 0);
  if (large.significand == 0 && !more) return as_type<float>(mode == 3 ? 0x80000000u : 0u);
  return tvmtile_rounded(large, more, mode);
}

inline float tvmtile_ieee_fma(float x, float y, float z, int mode) {
  return tvmtile_fma_of(as_type<uint>(x), as_type<uint>(y), as_type<uint>(z), mode);
}
inline float tvmtile_ieee_add(float x, float y, int mode) {
  return tvmtile_fma_of(as_type<uint>(x), 0x3f800000u, as_type<uint>(y), mode);
}
inline float tvmtile_ieee_sub(float x, float y, int mode) {
  return tvmtile_fma_of(as_type<uint>(x), 0x3f800000u, as_type<uint>(y) ^ 0x80000000u, mode);
}
inline float tvmtile_ieee_mul(float x, float y, int mode) {
  uint a = as_type<uint>(x), b = as_type<uint>(y);
  return tvmtile_fma_of(a, b, (a ^ b) & 0x80000000u, mode);
}

inline float tvmtile_ieee_div(float x, float y, int mode) {
  uint a = as_type<uint>(x), b = as_type<uint>(y), sign = (a ^ b) & 0x80000000u;
  if (tvmtile_not_number(a) || tvmtile_not_number(b) || (tvmtile_infinite(a) && tvmtile_infinite(b)) ||
      (tvmtile_zero(a) && tvmtile_zero(b)))
    return as_type<float>(0x7fc00000u);
  if (tvmtile_infinite(a) || tvmtile_zero(b)) return as_type<float>(sign | 0x7f800000u);
  if (tvmtile_infinite(b) || tvmtile_zero(a)) return as_type<float>(sign);
  tvmtile_parts n = tvmtile_normal(tvmtile_parts_of(a), 62);
  tvmtile_parts d = tvmtile_normal(tvmtile_parts_of(b), 24);
  ulong quotient = n.significand / d.significand;
  bool more = quotient * d.significand != n.significand;
  return tvmtile_rounded({sign != 0, n.exponent - d.exponent, quotient}, more, mode);
}

inline float tvmtile_ieee_sqrt(float x, int mode) {
  uint a = as_type<uint>(x);
  if (tvmtile_zero(a) || a == 0x7f800000u) return x;
  if (tvmtile_not_number(a) || (a >> 31)) return as_type<float>(0x7fc00000u);
  tvmtile_parts s = tvmtile_normal(tvmtile_parts_of(a), 62);
  if (s.exponent & 1) { s.significand >>= 1; ++s.exponent; }
  ulong root = 0;
  for (int bit = 30; bit >= 0; --bit) {
    ulong next = root | (1ul << bit);
    if (next * next <= s.significand) root = next;
  }
  return tvmtile_rounded({false, s.exponent / 2, root}, root * root != s.significand, mode);
}

// The first bits of root with significand * root^2 <= 2^75, of which products have 128 bits.
inline float tvmtile_ieee_rsqrt(float x, int mode) {
  uint a = as_type<uint>(x);
  if (tvmtile_zero(a)) return as_type<float>((a & 0x80000000u) | 0x7f800000u);
  if (a == 0x7f800000u) return 0.0f;
  if (tvmtile_not_number(a) || (a >> 31)) return as_type<float>(0x7fc00000u);
  tvmtile_parts s = tvmtile_normal(tvmtile_parts_of(a), 24);
  if (!(s.exponent & 1)) { s.significand <<= 1; --s.exponent; }
  ulong root = 0;
  bool more = true;
  for (int bit = 26; bit >= 0; --bit) {
    ulong next = root | (1ul << bit), product = s.significand * next;
    ulong low = (product & 0xfffffful) * next, high = (product >> 24) * next + (low >> 24);
    low &= 0xfffffful;
    if (high < (1ul << 51) || (high == (1ul << 51) && low == 0)) {
      root = next;
      more = high != (1ul << 51);
    }
  }
  return tvmtile_rounded({false, -(75 + s.exponent) / 2, root}, more, mode);
}
"""
