"""The floats of 8 bits on NVIDIA GPUs: functions in CUDA C++ that decode and encode them.

The two of them that CUDA's headers know are converted by these, which use instructions where there are
such. The others are converted as on Metal: the functions are those of `tvmtile.codegen.metal_floats`,
in the words of CUDA.
"""

from __future__ import annotations

import re
from functools import cache

from tvmtile.codegen import metal_floats, rounded_floats

_NAME = re.compile(r"tvmtile_(decode|halves|half|encode_half|encode)_(float[48]_\w+)")
_INTERPRETATIONS = {"float8_e4m3fn": "__NV_E4M3", "float8_e5m2": "__NV_E5M2"}
HALVES = tuple(_INTERPRETATIONS)
"""The dtypes that become float16 without becoming float32 before; it holds them all."""
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
_IN_CUDA = {
    "inline ": "__device__ __forceinline__ ",
    "as_type<float>": "__uint_as_float",
    "as_type<uint>": "__float_as_uint",
    "as_type<ushort>": "__half_as_ushort",
    "uint": "unsigned int",
    "uchar": "unsigned char",
    "ushort": "unsigned short",
}


def name_of(way: str, dtype: str) -> str:
    """The name of a function: `decode`, `half`, `halves` (of four codes), `encode`, `encode_half`."""
    return f"tvmtile_{way}_{dtype}"


@cache
def definition(name: str) -> str | None:
    """The text of the function of a name; None for a name of anything else."""
    match = _NAME.fullmatch(name)
    if match is not None and match[2] in _INTERPRETATIONS:
        kind = _INTERPRETATIONS[match[2]]
        function, by_bits = _TEXTS[match[1]]
        return function.format(name=name, kind=kind, by_bits=by_bits[match[2]])
    text = metal_floats.definition(name) or rounded_floats.definition(name)
    if text is None:
        return None
    words = re.compile(r"inline |as_type<\w+>|\b(?:uint|uchar|ushort)\b")
    return words.sub(lambda word: _IN_CUDA[word.group()], text)
