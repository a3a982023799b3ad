"""What Apple's compiler refuses, the emulator refuses too."""

import re

import numpy as np
import pytest

from tvmtile.emulator.metal import compile_msl
from tvmtile.errors import MetalCompileError

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def kernel(body, parameters="device int* out [[buffer(0)]]"):
    return f"{HEADER}kernel void k({parameters}) {{\n{body}\n}}"


REFUSED = {
    # Overloads: several conversions, none better.
    "out[0] = select(1, (char)2, true);": "select",
    "out[0] = max(1, 2u);": "max",
    "out[0] = min((short)1, 2);": "min",
    "out[0] = clamp((uchar)1, 0, 2l);": "clamp",
    "out[0] = sqrt(2);": "sqrt",
    "out[0] = pow(2.0f, (half)2) > 0;": "deleted",
    "out[0] = max((half)1, 2.0f) > 0;": "deleted",
    "out[0] = clamp((half)1, 0.0f, 2.0f) > 0;": "deleted",
    "out[0] = fma(1.0f, (half)1, 2.0f) > 0;": "deleted",
    "out[0] = abs(true) + popcount(1.5f);": "popcount",
    # Functions that Metal has not.
    "out[0] = ldexpf(1.0f, 2);": "ldexpf",
    "out[0] = erf(1.0f);": "erf",
    "out[0] = isnanf(1.0f);": "isnanf",
    # bfloat
    "bfloat b = bfloat(1.5f); out[0] = int(ceil(b));": "ceil",
    "bfloat b = bfloat(1.5f); out[0] = int(float(max(b, b)));": "max",
    "bfloat b = bfloat(1.5f); out[0] = int(float(select(b, b, true)));": "select",
    "bfloat b = bfloat(1.5f); out[0] = int(fma(b, b, b));": "fma",
    "bfloat b = 1.5f;": "conversion",
    "bfloat b = half(1.5f);": "conversion",
    "half h = bfloat(1.5f);": "conver",
    "out[0] = int(bfloat(1.5f) + half(1.5f));": None,
    # Functions of a simdgroup
    "out[0] = simd_shuffle(5l, 1);": "no long",
    "out[0] = simd_shuffle_xor(5ul, 1);": "no long",
    "out[0] = int(float(simd_shuffle_down(bfloat(1.0f), 1)));": "no long, bool or bfloat",
    "out[0] = simd_sum(5l);": "no long",
    # Vectors do not convert by themselves.
    "float4 f = int4(1);": "convers",
    "half4 h = float4(1);": "convers",
    # What Metal lacks
    "double d = 1.0;": "no 'double'",
    "long long n = 1;": "no long long",
    "ulong n = 1ULL;": "1ULL: Metal has no long long",
    "goto end; end: out[0] = 1;": "no 'goto'",
    "int half = 3; out[0] = half;": "'half' is the name of a type",
    "float uint4[2]; out[0] = uint4[0];": "'uint4' is the name of a type",
    # Atomics
    "threadgroup atomic_float x;": "atomic_float is for device memory",
    "atomic_fetch_max_explicit((device atomic_float*)out, 1.0f, memory_order_relaxed);": "fetch_max",
    "atomic_fetch_add_explicit((device atomic_ulong*)out, 1, memory_order_relaxed);": "fetch_add",
    "device atomic<short>* p = (device atomic<short>*)out; p->value = 1;": "atomic types are",
    # Matrices
    "simdgroup_bfloat8x8 m; threadgroup half s[64]; simdgroup_load(m, s);": "simdgroup_load",
    "simdgroup_bfloat8x8 c(bfloat(0.0f)); simdgroup_half8x8 a(1.0h);"
    " simdgroup_multiply_accumulate(c, a, a, c);": "half and bfloat matrices",
}


@pytest.mark.full(but=5)
@pytest.mark.parametrize("body", REFUSED)
def test_a_source_that_apples_compiler_refuses(body):
    with pytest.raises(MetalCompileError, match="the Metal source does not compile") as error:
        compile_msl(kernel(body))
    assert "line 4: " in str(error.value)
    assert REFUSED[body] is None or REFUSED[body] in str(error.value)


TAKEN = """
  char c = 5, d = 3;
  out[0] = select(d, char(c / d), c > d);
  out[1] = int(float(bfloat(1.5f)) + 0.5f);
  bfloat b = 1, e = bfloat(2.5f);
  b = b * e + e;
  float f = b;
  out[2] = int(f) + int(b < e) + int(b > 1.0f) + int(half(b) == 5.0h);
  out[3] = as_type<long>(simd_shuffle_xor(as_type<uint2>(7l), 1));
  out[4] = ldexp(3.0f, 2) + ldexp(1.0h, 1) + abs((short)-2) + max(c, d) + min(2ul, 3ul);
  out[5] = int4(float4(1.5f))[0] + select(int2(1), int2(2), bool2(true, false))[1] - 1;
"""


def test_a_source_that_it_takes():
    out = np.zeros(6, np.int32)
    compile_msl(kernel(TAKEN)).kernel("k")(out, grid=1, threads=32, check_device_races=False)
    assert out.tolist() == [1, 2, 7, 7, 23, 1]


@pytest.mark.parametrize("index", [30, 31])
def test_the_last_buffer_is_number_30(index):
    source = kernel("out[0] = 1;", f"device int* out [[buffer({index})]]")
    if index == 30:
        assert compile_msl(source).kernel_names == ("k",)
        return
    with pytest.raises(MetalCompileError, match=re.escape("[[buffer(31)]], where 30 is the last")):
        compile_msl(source)
