"""Scalars and vectors: `kernels/types.metal`, written by hand from the Metal specification."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tvmtile.emulator.metal import compile_msl

KERNELS = Path(__file__).parent / "kernels"
RNG = np.random.default_rng(0)


@cache
def kernel(name):
    return compile_msl((KERNELS / "types.metal").read_text(encoding="utf-8")).kernel(name)


def test_components_swizzles_and_conversions():
    a = RNG.standard_normal((32, 4)).astype(np.float32) * 10
    out = np.zeros((32, 3, 4), np.float32)
    kernel("components")(a, out, grid=4, threads=8)
    x, y, z, w = a.T
    np.testing.assert_array_equal(out[:, 0], np.stack([w + z, z + w, x * w, -w], axis=1))
    np.testing.assert_array_equal(out[:, 1], np.stack([2 * x, 2 * y, 2 * z, 1 + 0 * x], axis=1))
    np.testing.assert_array_equal(out[:, 2], np.trunc(a) + 0.5)


def test_packed_vectors_are_dense():
    a = RNG.standard_normal((5, 3)).astype(np.float32)
    out = np.zeros((5, 3), np.float16)
    kernel("packed")(a, out, grid=1, threads=5)
    np.testing.assert_array_equal(out, (2 * a).astype(np.float16))


def test_integer_vectors():
    a, b = RNG.integers(-1000, 1000, (2, 16, 4)).astype(np.int32)
    b[3] = a[3]
    out = np.zeros((16, 6, 4), np.int32)
    kernel("integers")(a, b, out, grid=1, threads=16)
    np.testing.assert_array_equal(
        out[:, 0], (a + b) * 3 - np.trunc(a / (abs(b) + 1)).astype(np.int32)
    )
    np.testing.assert_array_equal(out[:, 1], (a & b) | (a ^ 7))
    np.testing.assert_array_equal(out[:, 2], (a << 2) >> 1)
    np.testing.assert_array_equal(out[:, 3], np.where(a < b, b, a))
    np.testing.assert_array_equal(
        out[:, 4], a.astype(np.int16).astype(np.int32) + b.astype(np.uint8).astype(np.int32)
    )
    np.testing.assert_array_equal(out[:, 5, 0], (a == b).any(axis=1))
    np.testing.assert_array_equal(out[:, 5, 1], (a != b).all(axis=1))
    ones = [int(v).bit_count() for v in a[:, 0].view(np.uint32)]
    np.testing.assert_array_equal(out[:, 5, 2], ones)
    leading = [32 - int(v).bit_length() for v in b[:, 1].view(np.uint32)]
    np.testing.assert_array_equal(out[:, 5, 3], leading)


def test_half_arithmetic_rounds_after_each_operation():
    a, b = RNG.standard_normal((2, 64)).astype(np.float16) * np.float16(30)
    out = np.zeros((64, 4), np.float16)
    kernel("halves")(a, b, out, grid=2, threads=32)
    np.testing.assert_array_equal(out[:, 0], a * b - np.float16(0.5))
    np.testing.assert_array_equal(
        out[:, 1], (a.astype(np.float32) / b.astype(np.float32)).astype(np.float16)
    )
    np.testing.assert_array_equal(out[:, 2], b + np.float16(1.5))
    np.testing.assert_array_equal(out[:, 3], np.maximum(a, b) + a * np.float16(2))


def test_bfloat_arithmetic_is_torchs():
    a = torch.randn(64).to(torch.bfloat16)
    b = torch.randn(64).to(torch.bfloat16)
    a[0], b[1] = float("inf"), float("nan")
    out = torch.zeros((64, 3), dtype=torch.bfloat16)
    wide = torch.zeros(64)
    kernel("bfloats")(a, b, out, wide, grid=2, threads=32)
    close = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(out[:, 0], a * b, **close)
    torch.testing.assert_close(out[:, 1], (a.float() + 1).to(torch.bfloat16), **close)
    torch.testing.assert_close(out[:, 2], torch.where(a < b, a, b), **close)
    torch.testing.assert_close(wide, a.float() + 0.25, **close)


def test_as_type_keeps_bits():
    a = RNG.standard_normal(32).astype(np.float32)
    out = np.zeros((32, 3), np.uint32)
    kernel("bits")(a, out, grid=1, threads=32)
    np.testing.assert_array_equal(out[:, 0], a.view(np.uint32))
    np.testing.assert_array_equal(out[:, 1] & 0xFFFF, a.astype(np.float16).view(np.uint16))
    assert (out[:, 1] >> 16 == 0x3C00).all()
    rounded = torch.from_numpy(a).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(out[:, 2], rounded)


def test_functions_templates_and_program_scope_constants():
    a = RNG.standard_normal(40).astype(np.float32)
    out = np.zeros(8, np.float32)
    kernel("functions")(a, out, 7, grid=1, threads=8)
    weights = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    expected = [2 * sum(w * a[i + 7 * k] for k, w in enumerate(weights)) for i in range(8)]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_attributes_tell_each_thread_its_place():
    grid, threads = (3, 2, 2), (10, 4, 1)
    extent = [g * t for g, t in zip(grid, threads, strict=True)]
    out = np.zeros((extent[2], extent[1], extent[0], 16), np.uint32)
    shape = np.array([(7, 2.5, 11, 13)], "i4,f4,u4,u4")[0]
    kernel("attributes")(out, shape, grid=grid, threads=threads)
    z, y, x = np.indices(out.shape[:3])
    local_x, local_y = x % 10, y % 4
    index = local_y * 10 + local_x
    expected = [local_x, local_y, x // 10, y // 4, z, index, index % 32, index // 32]
    for column, value in enumerate(expected):
        np.testing.assert_array_equal(out[..., column], value)
    for column, value in enumerate([100401, 302, 32, 2, 7, 10, 13, 2], start=8):
        assert (out[..., column] == value).all()


UNARY = {
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: 10.0**x,
    "log": lambda x: np.log(np.abs(x)),
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x)),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "tanh": np.tanh,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "fabs": np.abs,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "fract": lambda x: x - np.floor(x),
    "sign": np.sign,
    "saturate": lambda x: np.clip(x, 0, 1),
    "sinpi": lambda x: np.sin(np.pi * x),
    "cospi": lambda x: np.cos(np.pi * x),
}
POSITIVE_ONLY = {"log", "sqrt", "rsqrt"}
BINARY = {
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.maximum,
    "fmin": np.minimum,
    "fmod": np.fmod,
    "pow": lambda x, y: np.abs(x) ** y,
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "step": lambda x, y: np.where(y < x, 0.0, 1.0),
}


NAMES = [*UNARY, *BINARY]
OTHERS = {
    "fma(x, y, x)": lambda x, y: x * y + x,
    "clamp(x, -0.5, 0.25)": lambda x, _: np.clip(x, -0.5, 0.25),
    "mix(x, y, 0.25)": lambda x, y: x + (y - x) * 0.25,
}


def math_source():
    """Each function of vectors and of scalars, in a namespace of Metal."""
    lines = []
    for at, name in enumerate(NAMES):
        first = "fabs({0})" if name in POSITIVE_ONLY | {"pow"} else "{0}"
        call = f"{('', 'metal::', 'fast::', 'precise::')[at % 4]}{name}({first}"
        call += ")" if name in UNARY else ", {1})"
        lines.append(f"out[{at}] = {call.format('x', 'y')};")
        lines.append(f"scalar[{at}] = {call.format('x.x', 'y.x')};")
    lines += [f"out[{at}] = {call};" for at, call in enumerate(OTHERS, len(NAMES))]
    body = "\n".join(lines)
    return f"""
    #include <metal_stdlib>
    using namespace metal;
    kernel void functions(device const float4* a [[buffer(0)]], device const float4* b [[buffer(1)]],
                          device float4* out [[buffer(2)]], device float* scalar [[buffer(3)]],
                          uint i [[thread_position_in_grid]]) {{
      float4 x = a[i], y = b[i];
      out += {len(NAMES) + len(OTHERS)} * i;
      scalar += {len(NAMES)} * i;
      {body}
    }}"""


@pytest.mark.full
def test_mathematical_functions_of_scalars_and_vectors():
    a = RNG.uniform(-3, 3, (64, 4)).astype(np.float32)
    b = RNG.uniform(-3, 3, (64, 4)).astype(np.float32)
    count = len(NAMES)
    out = np.zeros((64, count + len(OTHERS), 4), np.float32)
    scalar = np.zeros((64, count), np.float32)
    compile_msl(math_source()).kernel("functions")(a, b, out, scalar, grid=2, threads=32)
    x, y = a.astype(np.float64), b.astype(np.float64)
    for at, (name, reference) in enumerate((UNARY | BINARY | OTHERS).items()):
        expected = reference(x) if name in UNARY else reference(x, y)
        within = {"rtol": 2e-5 if at < count else 1e-5, "atol": 1e-6}
        within = {} if name.startswith("clamp") else within
        np.testing.assert_allclose(out[:, at], expected, **within, err_msg=name)
    np.testing.assert_array_equal(scalar, out[:, :count, 0])


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", ["max", "fmax", "min", "fmin"])
def test_max_and_min_of_nan_give_the_other(name):
    source = f"""
        #include <metal_stdlib>
        using namespace metal;
        kernel void choose(device const half* a [[buffer(0)]], device half* out [[buffer(1)]],
                           uint i [[thread_position_in_grid]]) {{
          out[i] = {name}(a[i], (half)NAN);
        }}"""
    a = np.array([1, -2, np.inf, 0], np.float16)
    out = np.zeros(4, np.float16)
    compile_msl(source).kernel("choose")(a, out, grid=1, threads=4)
    np.testing.assert_array_equal(out, a)
