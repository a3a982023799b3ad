"""Arithmetic is that of CUDA's headers, bit for bit, and rounds where its functions say so."""

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from tvmtile.emulator.cuda import compile_cuda

CONVERSIONS = {
    "half": ("__half_as_ushort(__float2half_rn(x))", torch.float16),
    "bfloat16": ("__bfloat16_as_ushort(__float2bfloat16_rn(x))", torch.bfloat16),
    "e4m3": ("__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)", torch.float8_e4m3fn),
    "e5m2": ("__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)", torch.float8_e5m2),
}
OPERATIONS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
SOURCE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
"""
DIRECTIONS = ("rn", "rz", "rd", "ru")


@cache
def module():
    kernels = [SOURCE]
    kernels += [
        f"""
extern "C" __global__ void to_{name}(const float* a, unsigned short* out) {{
  float x = a[threadIdx.x];
  out[threadIdx.x] = {expression};
}}"""
        for name, (expression, _) in CONVERSIONS.items()
    ]
    kernels += [
        f"""
extern "C" __global__ void {name}_{dtype}(const {dtype}* a, const {dtype}* b, {dtype}* out) {{
  out[threadIdx.x] = a[threadIdx.x] {operator} b[threadIdx.x];
}}"""
        for name, operator in OPERATIONS.items()
        for dtype in ("__half", "__nv_bfloat16")
    ]
    kernels += [
        f"""
extern "C" __global__ void {name}_{toward}(const float* a, const float* b, float* out) {{
  out[threadIdx.x] = __f{name}_{toward}(a[threadIdx.x], b[threadIdx.x]);
}}"""
        for name in OPERATIONS
        for toward in DIRECTIONS
    ]
    kernels.append("""
extern "C" __global__ void integers(const float* a, int* out) {
  float x = a[threadIdx.x];
  int* row = out + threadIdx.x * 4;
  row[0] = __float2int_rn(x), row[1] = __float2int_rz(x), row[2] = __float2int_rd(x);
  row[3] = __float2int_ru(x);
}""")
    return compile_cuda("".join(kernels))


def numbers(count=1024):
    generator = np.random.default_rng(0)
    values = generator.standard_normal(count) * 10.0 ** generator.integers(-9, 6, count)
    special = [0, -0.0, np.inf, -np.inf, 448, 464, 57344, 65504, 65520, 6e-8, -1.5, 2.5]
    values[: len(special)] = special
    return values.astype(np.float32)


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_are_as_torch_rounds(name):
    dtype = CONVERSIONS[name][1]
    a, out = numbers(), np.zeros(1024, np.uint16)
    module().kernel(f"to_{name}")(a, out, grid=1, block=1024)
    expected = torch.from_numpy(a)
    if dtype.itemsize == 1:  # CUDA's saturate
        most = torch.finfo(dtype).max
        expected = expected.clamp(-most, most)
    bits = torch.uint8 if dtype.itemsize == 1 else torch.uint16
    np.testing.assert_array_equal(out, expected.to(dtype).view(bits).to(torch.int32).numpy())


@pytest.mark.parametrize("dtype", ["__half", "__nv_bfloat16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic_of_16_bits_rounds_each_operation(name, dtype):
    of_torch = torch.float16 if dtype == "__half" else torch.bfloat16
    a, b = (torch.from_numpy(numbers()[::step].copy()).to(of_torch) for step in (1, -1))
    out = torch.empty_like(a)
    module().kernel(f"{name}_{dtype}")(a, b, out, grid=1, block=1024)
    operate = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}[name]
    expected = operate(a, b)
    same = (out.view(torch.int16) == expected.view(torch.int16)) | (out.isnan() & expected.isnan())
    assert same.all()


@pytest.mark.parametrize("toward", DIRECTIONS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_floats_are_rounded_towards(name, toward):
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(256).astype(np.float32) for _ in range(2))
    b[:64] *= np.float32(2.0**-30)  # sums of which need more bits than a double has
    out = np.zeros(256, np.float32)
    module().kernel(f"{name}_{toward}")(a, b, out, grid=1, block=256)
    for x, y, result in zip(a, b, out, strict=True):
        p, q = Fraction(float(x)), Fraction(float(y))
        exact = {"add": p + q, "sub": p - q, "mul": p * q}.get(name) or p / q
        assert result == rounded(exact, toward), (x, y)


def rounded(exact, toward):
    near = np.float32(float(exact))  # doubly rounded at worst, which the neighbours mend
    around = [np.nextafter(near, np.float32(s * np.inf)) for s in (-1, 1)]
    below = max(f for f in (near, *around) if Fraction(float(f)) <= exact)
    above = min(f for f in (near, *around) if Fraction(float(f)) >= exact)
    if toward == "rn":
        low, high = exact - Fraction(float(below)), Fraction(float(above)) - exact
        if low == high:
            return below if below.view(np.uint32) % 2 == 0 else above
        return below if low < high else above
    zero = below if exact > 0 else above
    return {"rz": zero, "rd": below, "ru": above}[toward]


def test_integers_are_rounded_towards():
    a = np.array([2.5, -2.5, 0.5, 1e10, -1e10, np.nan], np.float32)
    out = np.zeros((len(a), 4), np.int32)
    module().kernel("integers")(a, out, grid=1, block=len(a))
    beyond = [2**31 - 1, -(2**31), 0]
    expected = [[2, -2, 0], [2, -2, 0], [2, -3, 0], [3, -2, 1]]
    assert out.T.tolist() == [row + beyond for row in expected]


APPROXIMATIONS = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
}


def test_approximations_are_near():
    kernels = (
        f"""
extern "C" __global__ void near_{name}(const float* a, float* out) {{
  asm("{name}.approx.ftz.f32 %0, %1;" : "=f"(out[threadIdx.x]) : "f"(a[threadIdx.x]));
}}"""
        for name in APPROXIMATIONS
    )
    compiled = compile_cuda("".join(kernels))
    a = np.linspace(0.1, 3, 32, dtype=np.float32)
    for name, function in APPROXIMATIONS.items():
        out = np.zeros(32, np.float32)
        compiled.kernel(f"near_{name}")(a, out, grid=1, block=32)
        np.testing.assert_allclose(out, function(a.astype(np.float64)), rtol=1e-6, atol=1e-7)
