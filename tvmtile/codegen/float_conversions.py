"""Conversions of narrow floats on GPUs: functions by name, in the language of the GPU.

They are printed of the expressions of `tvmtile.codegen.narrow_floats`; as functions, since the
generator of Metal would repeat an expression wherever its value is used. The two floats of 8 bits that
CUDA's headers know are converted by these, which use instructions where there are such.
"""

from __future__ import annotations

import re
from functools import cache

from tvm import tirx

from tvmtile.codegen.c_functions import c_function, in_cuda
from tvmtile.codegen.narrow_floats import (
    FORMATS,
    NARROW_FLOATS,
    ROUNDINGS,
    decode,
    encode,
    encode_bits,
    encode_rounded,
)

_NAME = re.compile(r"tvmtile_(decode|halves|half|encode_half|encode)_(float[48]_\w+)")
_ROUNDED = re.compile(rf"tvmtile_round_({'|'.join(FORMATS)})_({'|'.join(ROUNDINGS)})_(sat|inf)")


def name_of(way: str, dtype: str) -> str:
    """The name of a function: `decode`, `half`, `halves` (of four codes), `encode`, `encode_half`.

    `half` and `halves` are of CUDA, for `HALVES`. GPUs drop the sign of NaN when they widen a float16,
    which matters to a dtype that has zero for NaN: `encode_half` is for those.
    """
    return f"tvmtile_{way}_{dtype}"


def rounding_name_of(dtype: str, rounding: str, saturate: bool) -> str:
    """The name of the function that converts a float32 with a rounding."""
    return f"tvmtile_round_{dtype}_{rounding}_{'sat' if saturate else 'inf'}"


def llvm_widened(dtype: str, bits: str, value: str) -> str:
    """Instructions of LLVM that make a float of the 16 bits of a float16 or bfloat16."""
    if dtype == "float16":
        return f"""\
  {value}.half = bitcast i16 {bits} to half
  {value} = fpext half {value}.half to float"""
    return f"""\
  {value}.wide = zext i16 {bits} to i32
  {value}.high = shl i32 {value}.wide, 16
  {value} = bitcast i32 {value}.high to float"""


def llvm_rounded(dtype: str, value: str, bits: str) -> str:
    """Instructions of LLVM that round a float to those 16 bits, to nearest, ties to even."""
    if dtype == "float16":
        return f"""\
  {bits}.half = fptrunc float {value} to half
  {bits} = bitcast half {bits}.half to i16"""
    return f"""\
  {bits}.all = bitcast float {value} to i32
  {bits}.shifted = lshr i32 {bits}.all, 16
  {bits}.odd = and i32 {bits}.shifted, 1
  {bits}.bias = add i32 {bits}.odd, 32767
  {bits}.sum = add i32 {bits}.all, {bits}.bias
  {bits}.rounded = lshr i32 {bits}.sum, 16
  {bits}.isnan = fcmp uno float {value}, 0.0
  {bits}.chosen = select i1 {bits}.isnan, i32 32704, i32 {bits}.rounded
  {bits} = trunc i32 {bits}.chosen to i16"""


@cache
def metal_definition(name: str) -> str | None:
    """The text of Metal's function of a name; None for a name of anything else."""
    value, rounded = tirx.Var("value", "float32"), _ROUNDED.fullmatch(name)
    if rounded is not None:
        dtype, rounding, beyond = rounded.groups()
        random = [tirx.Var("random", "uint32")] * (rounding == "rs")
        code = encode_rounded(dtype, value, rounding, beyond == "sat", *random)
        return c_function(name, [value, *random], code)
    way, dtype = match.groups() if (match := _NAME.fullmatch(name)) else ("", "")
    if dtype not in NARROW_FLOATS:
        return None
    if way == "decode":
        code = tirx.Var("code", "uint8")
        return c_function(name, [code], decode(dtype, code))
    if way == "encode":
        return c_function(name, [value], encode(dtype, value))
    half = tirx.Var("value", "float16")
    magnitude = tirx.reinterpret("uint32", tirx.Cast("float32", half)) & _u32(0x7FFFFFFF)
    sign = tirx.Cast("uint32", tirx.reinterpret("uint16", half)) & _u32(0x8000)
    return c_function(name, [half], encode_bits(dtype, magnitude | (sign << _u32(16))))


def _u32(value: int) -> tirx.IntImm:
    return tirx.IntImm("uint32", value)


# CUDA ---------------------------------------------------------------------------------------------


@cache
def cuda_definition(name: str) -> str | None:
    """The same of CUDA."""
    match = _NAME.fullmatch(name)
    if match is not None and match[2] in _INTERPRETATIONS:
        kind = _INTERPRETATIONS[match[2]]
        function, by_bits = _TEXTS[match[1]]
        return function.format(name=name, kind=kind, by_bits=by_bits[match[2]])
    text = metal_definition(name)
    return None if text is None else in_cuda(text)


_INTERPRETATIONS = {"float8_e4m3fn": "__NV_E4M3", "float8_e5m2": "__NV_E5M2"}
HALVES = tuple(_INTERPRETATIONS)
"""The dtypes that CUDA's headers know. They become float16 without becoming float32 before."""
_DECODE = """\
#include <cuda_fp8.h>
__device__ __forceinline__ float {name}(unsigned char code) {{
#if __CUDA_ARCH__ >= 890
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, {kind})));
#else
{by_bits}
#endif
}}
"""
# Before sm_89 CUDA's function has branches for subnormal numbers. A half's exponents hold those of both
# dtypes: e5m2 is its upper byte, and e4m3 with its exponent one bit lower is 2^-8 of the value.
_BY_BITS = {
    "float8_e5m2": "  return __half2float(__ushort_as_half((unsigned short)(code << 8)));",
    "float8_e4m3fn": """\
  unsigned int magnitude = code & 0x7fu;
  unsigned int bits = (magnitude << 7) | ((code & 0x80u) << 8);
  float value = __half2float(__ushort_as_half((unsigned short)bits)) * 256.0f;
  return magnitude == 0x7fu ? __uint_as_float(0x7fc00000u) : value;""",
}
_HALF = """\
#include <cuda_fp8.h>
__device__ __forceinline__ half {name}(unsigned char code) {{
#if __CUDA_ARCH__ >= 890
  return __half(__nv_cvt_fp8_to_halfraw(code, {kind}));
#else
{by_bits}
#endif
}}
"""
_HALF_BY_BITS = {
    "float8_e5m2": "  return __ushort_as_half((unsigned short)(code << 8));",
    "float8_e4m3fn": """\
  unsigned int bits = ((code << 7) & 0x3f80u) | ((code << 8) & 0x8000u);
  half value = __hmul(__ushort_as_half((unsigned short)bits), __ushort_as_half(0x5c00));
  return (code & 0x7fu) == 0x7fu ? __ushort_as_half(0x7fff) : value;""",
}
# Four neighbours at once. An e4m3 below copies of its sign, shifted and without the second copy, is
# 2^-8 of its value as a half; NaN is 1.875, the only one above 1.75. A comparison makes NaN of that and
# 0 of the others, which is subtracted, so that -0 stays: by the same instruction that multiplies.
_HALVES = """\
#include <cuda_fp8.h>
__device__ __forceinline__ void {name}(half* halves, const unsigned char* codes) {{
#pragma unroll
  for (int i = 0; i < 2; ++i) {{
#if __CUDA_ARCH__ >= 890
    __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(((const unsigned short*)codes)[i], {kind});
    ((unsigned int*)halves)[i] = *(unsigned int*)&pair;
#else
    unsigned int word = *(const unsigned int*)codes, bits;
{by_bits}
#endif
  }}
}}
"""
_HALVES_BY_BITS = {
    "float8_e5m2": """\
    bits = __byte_perm(word, 0u, i == 0 ? 0x1404u : 0x3424u);
    ((unsigned int*)halves)[i] = bits;""",
    "float8_e4m3fn": """\
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(bits) : "r"(word), "r"(i == 0 ? 0x9180u : 0xb3a2u));
    bits = (bits << 7) & 0xbf80bf80u;
    half2 small = *(half2*)&bits;
    unsigned int nan = __hgt2_mask(__habs2(small), __half2half2(__ushort_as_half(0x3f00)));
    half2 scaled = __hmul2(small, __half2half2(__ushort_as_half(0x5c00)));
    half2 pair = __hsub2(scaled, *(half2*)&nan);
    ((unsigned int*)halves)[i] = *(unsigned int*)&pair;""",
}
_ENCODE = """\
#include <cuda_fp8.h>
__device__ __forceinline__ unsigned char {name}(float value) {{
  unsigned char code = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, {kind});
  return {by_bits};
}}
"""
# The instruction saturates; CUDA's function that doesn't goes by float64.
_BEYOND = {
    "float8_e5m2": "fabsf(value) >= 61440.0f ? (code & 0x80u) | 0x7cu : code",
    "float8_e4m3fn": "code",
}
_TEXTS = {
    "decode": (_DECODE, _BY_BITS),
    "half": (_HALF, _HALF_BY_BITS),
    "halves": (_HALVES, _HALVES_BY_BITS),
    "encode": (_ENCODE, _BEYOND),
}
