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


APPROXIMATIONS = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
}


def function(name, in_type, out_type, statement):
    """A kernel that computes `r` of x and y."""
    return f"""
extern "C" __global__ void {name}(const {in_type}* a, const {in_type}* b, {out_type}* out) {{
  {in_type} x = a[threadIdx.x], y = b[threadIdx.x];
  {out_type} r;
  {statement}
  out[threadIdx.x] = r;
}}"""


@cache
def module():
    kernels = [
        function(f"to_{name}", "float", "unsigned short", f"r = {expression};")
        for name, (expression, _) in CONVERSIONS.items()
    ]
    kernels += [
        function(f"{name}_{dtype}", dtype, dtype, f"r = x {operator} y;")
        for name, operator in OPERATIONS.items()
        for dtype in ("__half", "__nv_bfloat16")
    ]
    for toward in DIRECTIONS:
        kernels.append(function(f"int_{toward}", "float", "int", f"r = __float2int_{toward}(x);"))
        kernels += [
            function(f"{name}_{toward}", "float", "float", f"r = __f{name}_{toward}(x, y);")
            for name in OPERATIONS
        ]
    asm = 'asm("{}.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));'
    kernels += [
        function(f"near_{name}", "float", "float", asm.format(name)) for name in APPROXIMATIONS
    ]
    return compile_cuda(SOURCE + "".join(kernels))


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
    module().kernel(f"to_{name}")(a, a, out, grid=1, block=1024)
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


@pytest.mark.parametrize(
    ("toward", "expected"),
    [("rn", [2, -2, 0]), ("rz", [2, -2, 0]), ("rd", [2, -3, 0]), ("ru", [3, -2, 1])],
)
def test_integers_are_rounded_towards(toward, expected):
    a, out = np.array([2.5, -2.5, 0.5, 1e10, -1e10, np.nan], np.float32), np.zeros(6, np.int32)
    module().kernel(f"int_{toward}")(a, a, out, grid=1, block=6)
    assert out.tolist() == [*expected, 2**31 - 1, -(2**31), 0]


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_approximations_are_near(name):
    a, out = np.linspace(0.1, 3, 32, dtype=np.float32), np.zeros(32, np.float32)
    module().kernel(f"near_{name}")(a, a, out, grid=1, block=32)
    expected = APPROXIMATIONS[name](a.astype(np.float64))
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-7)
